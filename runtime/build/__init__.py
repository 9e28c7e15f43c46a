"""C source to shared library."""
