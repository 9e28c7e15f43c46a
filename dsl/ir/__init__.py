"""The language of programs: tile operations, the nest, data flow, verification, counts."""
