"""How fast a kernel is, and how fast the machine."""
