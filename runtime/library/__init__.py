"""Kernels as a library in C: sources for each target, run-time dispatch, build files, a self-test."""
