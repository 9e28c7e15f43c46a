"""Networks beside the graph compilers."""
