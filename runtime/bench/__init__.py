"""Benchmarks: how fast a kernel is, and how fast one core can be at most."""
