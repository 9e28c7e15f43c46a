"""Random kernels: their axes, cases, and the sweep over them."""
