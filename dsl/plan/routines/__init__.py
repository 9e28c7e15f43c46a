"""Plans of kernels that are no single product: a transposition, the packing of B, a stack."""
