"""What one lane computes: operations as numpy has them, and post-ops as programs of them."""
