"""Networks in place of whole sub-graphs of a graph that ``torch.compile`` compiles."""
