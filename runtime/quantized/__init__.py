"""Matrices of few bits from others: of floating point, and of containers that others write."""
