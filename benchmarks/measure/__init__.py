"""How it is measured: products and their operands, the timing loop, figures and limits."""
