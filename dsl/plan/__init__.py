"""Make every choice of a kernel, with its reason: packing, vector axis, loops, register tiles."""
