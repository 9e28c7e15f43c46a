"""What one lane computes: operations as numpy has them, conversions, expressions as programs."""
