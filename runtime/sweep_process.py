"""One process of a sweep: ``python -m tilewright.runtime.sweep_process TARGET SEED FIRST STOP``.

Writes a line of JSON before each case is run and one after it.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict

from .cases import draw
from .folders import remove
from .kernel import Kernel
from .sweep import made, verified

#: A kernel that runs longer than this many seconds ends the process.
_SECONDS = 300


def main(target: str, seed: int, first: int, stop: int) -> None:
    """Check the cases from ``first`` to before ``stop``."""
    libraries = set()
    for case, kernel in made([draw(seed, index) for index in range(first, stop)], target):
        _say({"started": case.index})
        if isinstance(kernel, Kernel):
            libraries.add(kernel.library.parent)
            signal.alarm(_SECONDS)
            _say(asdict(verified(case, kernel)))
            signal.alarm(0)
        else:
            _say(asdict(kernel))
    for library in libraries:
        remove(library)


def _say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    main(name, *map(int, numbers))
