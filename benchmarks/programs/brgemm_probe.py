"""Ends with 0 if oneDNN's ukernel, as PyTorch reaches it, multiplies two types on this CPU."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.peers.typed import probe

probe((sys.argv[1], sys.argv[2]))
