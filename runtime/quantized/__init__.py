"""Matrices of few bits: as arrays, from floating point, from the containers of others."""
