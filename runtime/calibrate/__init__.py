"""This machine's cores, measured: what the cost model asks of them, found by loops and kernels."""
