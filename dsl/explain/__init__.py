"""Plan and program in words."""
