"""Shared parts of the x86 targets: vectors by element type, features by the types they multiply."""
