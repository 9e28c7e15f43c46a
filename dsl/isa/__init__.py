"""Data classes that describe a target: vectors, instructions, matrix units, cores, compilers."""
