"""Elementary operations on lanes: their meaning in numpy, conversions, programs for epilogues."""
