"""Kernels that this CPU cannot run, in a process that emulates one that can."""
