"""``tw.matmul``: products of arrays of any size, by kernels that take the sizes at the call."""
