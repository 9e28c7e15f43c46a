"""Kernels that this CPU cannot run, in a process that can, arrays between guard pages."""
