"""Check the arrays and numbers of a call, and turn them into the C function's arguments."""
