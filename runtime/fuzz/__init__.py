"""Random kernels: the axes that they are drawn from, the cases, and the sweep over the cases."""
