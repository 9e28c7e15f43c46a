"""What the tests' own machinery consists of."""
