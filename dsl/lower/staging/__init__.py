"""Operands packed or converted before the tiles read them, and sums for zero points."""
