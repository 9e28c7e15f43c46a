"""What is asked: element types, sizes, operands, post-ops, schedule, and the C signature."""
