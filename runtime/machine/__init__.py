"""This machine: its CPU, the targets that run here, and by what means."""
