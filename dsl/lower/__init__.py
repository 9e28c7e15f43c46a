"""Turn a plan into a program of tile operations and loops."""
