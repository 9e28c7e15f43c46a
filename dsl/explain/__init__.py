"""Explain a plan and its program: as text, as data for programs, and as a picture."""
