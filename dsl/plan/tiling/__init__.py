"""Register tiles: their shapes and costs, how they cut C, and the loops around them."""
