"""Runs what the page of an installed tilewright on PyPI shows, and imports all of it.

It is run by the environment's own Python, from anywhere but the sources: ``scripts/try_dist.sh``.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import tilewright

#: What comes with extras alone; modules that need it cannot be imported without.
OPTIONAL = {"dask", "distributed", "jax", "matplotlib", "numba", "onnx", "optuna", "scipy",
            "sklearn", "threadpoolctl", "torch"}  # fmt: skip


def lacking(error: BaseException | None) -> str:
    """The package whose absence an ImportError comes from, also where it was said otherwise."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            return (error.name or "").partition(".")[0]
        error = error.__cause__
    return ""


def main() -> int:
    """The exit status: 0 where all runs, else there is an exception."""
    found = metadata("tilewright")
    assert found["Version"] == tilewright.__version__, (found["Version"], tilewright.__version__)
    assert Path(tilewright.__file__).is_relative_to(sys.prefix), tilewright.__file__
    for module in pkgutil.walk_packages(tilewright.__path__, "tilewright.", lambda name: None):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            if lacking(error) not in OPTIONAL:
                raise
    blocks = re.findall(r"^```python\n(.*?)^```$", found["Description"], re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4, "the page shows no code"
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "the page on PyPI", "exec"), names)
    command = [str(Path(sys.executable).parent / "tilewright"), "targets"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"{len(blocks)} blocks of the page run on Python {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
