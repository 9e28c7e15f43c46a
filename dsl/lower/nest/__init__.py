"""The loops over blocks, and the calls of tile programs inside of them."""
