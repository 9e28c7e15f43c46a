"""C to a shared library: compilers, their flags, headers compiled once, disassembly."""
