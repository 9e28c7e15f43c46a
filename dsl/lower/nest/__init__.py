"""The loops over blocks, and the calls of tile programs in them."""
