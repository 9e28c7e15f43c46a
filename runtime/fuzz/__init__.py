"""Random kernels: the axes they are drawn from, the cases, and the sweep over them."""
