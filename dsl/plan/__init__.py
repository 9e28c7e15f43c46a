"""Every choice with its reason: contraction, staging, vector axis, loops, tiles, formats."""
