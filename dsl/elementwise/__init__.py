"""Elementary operations on lanes: their meaning in numpy, conversions, and expressions as them."""
