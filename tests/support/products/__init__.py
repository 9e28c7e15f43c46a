"""Products as cases: drawn, run by any means, and compared with what they must be."""
