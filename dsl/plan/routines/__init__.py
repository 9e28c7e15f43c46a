"""Plans of kernels other than a single product: transpositions, packings of B, and stacks."""
