"""Quantized matrices: as arrays, from floating-point matrices, and from other projects' formats."""
