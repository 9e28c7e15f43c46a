"""Products of arrays of any size, by kernels whose sizes are those of the call."""
