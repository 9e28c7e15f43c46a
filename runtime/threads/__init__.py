"""Choose the threads that run the parallel loops of all kernels in a process, and their number."""
