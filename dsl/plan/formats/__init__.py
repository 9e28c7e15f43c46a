"""The layouts of matrices that are packed ahead, shared by kernels and packing functions."""
