"""Families of variants, and which is best."""
