"""Calibration: measure this machine's core with loops, caches and kernels, and fit the cost
model.
"""
