"""This machine: its CPU, the targets it runs, and by what means."""
