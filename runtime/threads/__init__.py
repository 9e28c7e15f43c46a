"""Threads of a process: who runs the parallel loops of all kernels, and on how many threads."""
