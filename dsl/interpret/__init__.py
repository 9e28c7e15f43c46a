"""A program run on numpy, every access checked: the oracle of every target."""
