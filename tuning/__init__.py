"""Tuning: generate families of variants, measure them, and remember the best."""
