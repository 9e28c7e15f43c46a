"""The words a target is described in: vectors, instructions, matrix units, cores, compilers."""
