"""Weights of few bits beside other types, ggml's kernels, and the memory that holds them."""
