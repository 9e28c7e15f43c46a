"""The reference: right results of a kernel, and how far each element may differ from them."""
