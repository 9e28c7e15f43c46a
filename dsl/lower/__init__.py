"""Plan to program."""
