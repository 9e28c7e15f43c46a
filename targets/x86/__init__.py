"""What the x86 targets share: vectors by their type, and features by the types they multiply."""
