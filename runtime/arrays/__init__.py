"""Arrays of any library: the type of their elements, their memory, and new arrays of that
library.
"""
