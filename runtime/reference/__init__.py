"""What a kernel must compute, and how far it may be off."""
