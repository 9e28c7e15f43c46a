"""The machine: its CPU, the targets that run here, and whether natively or emulated."""
