"""From plan to program."""
