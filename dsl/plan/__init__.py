"""Make every choice of a kernel, with reasons: multiply-add, packing, vector axis, loops, tiles,
formats.
"""
