"""Run a program on numpy, every access checked: each target's results are compared with this."""
