"""What a whole kernel costs: its work, and what its operands cost to arrive."""
