"""A program run on numpy: the oracle of every target."""
