"""Calibration: measure this machine's core, and fit the cost model to loops and whole kernels."""
