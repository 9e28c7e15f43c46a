"""Operands packed or converted before the tiles read them, and the sums that zero points need."""
