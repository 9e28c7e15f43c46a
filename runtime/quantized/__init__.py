"""Quantized matrices: as arrays, from floating point, and from other projects' formats."""
