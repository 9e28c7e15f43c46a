"""What happens on this machine: compiler, cache, emulator, call."""
