"""The loops over blocks of m, n and k, and the calls of tile programs in them."""
