"""``tw.matmul`` beside what its users have."""
