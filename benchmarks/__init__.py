"""The figures that tilewright promises, measured beside its peers: ``python -m benchmarks``."""
