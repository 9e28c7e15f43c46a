"""The part of tilewright that runs on this machine: compiler, cache, emulator and calls."""
