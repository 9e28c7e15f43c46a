"""C of single instructions and functions, what it is tried on, and what it must answer."""
