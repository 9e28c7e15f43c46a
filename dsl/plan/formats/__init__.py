"""The layouts of matrices that are packed ahead: what kernels and packers agree on."""
