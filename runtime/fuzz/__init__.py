"""Test random kernels: their properties (axes), the random cases, and the sweep over the cases."""
