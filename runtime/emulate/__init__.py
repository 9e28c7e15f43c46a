"""Run kernels of other CPUs in an emulator process, with each array between guard pages."""
