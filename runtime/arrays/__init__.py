"""Arrays of any library: what their elements are, where they lie, and new ones of their kind."""
