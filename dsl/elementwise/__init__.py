"""What one lane computes: operations and their numpy meaning, conversions, post-ops."""
