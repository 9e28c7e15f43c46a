"""Run kernels whose instructions this CPU lacks in another process, between guard pages."""
