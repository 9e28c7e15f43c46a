"""From C to a shared library: compilers, their flags, precompiled headers, disassembly."""
