"""Arrays of any library: their element type, their memory, and new arrays of the same library."""
