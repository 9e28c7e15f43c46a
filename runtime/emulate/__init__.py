"""Kernels that this CPU cannot run, in a process that can, with arrays between guard pages."""
