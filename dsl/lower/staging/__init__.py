"""Operands packed or converted before the tiles read them, sums of lines for zero points."""
