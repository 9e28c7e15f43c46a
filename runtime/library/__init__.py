"""Kernels as a library in C: sources by target, run-time dispatch, build files, a self-test."""
