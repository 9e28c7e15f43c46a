"""This machine's core, measured: loops, caches, and kernels to which the cost model is fitted."""
