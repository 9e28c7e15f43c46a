"""A Python-embedded language for matrix micro-kernels."""
