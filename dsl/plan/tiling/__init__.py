"""Register tiles: their shapes and what they cost, how C is cut into them, the loops around."""
