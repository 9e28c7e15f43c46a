"""What a kernel should compute, and how far it may be off."""
