"""One process of a sweep: ``python -m tilewright.runtime.fuzz.worker TARGET SEED FLAG...``.

The process reads case numbers, a batch on each line. It writes a line of JSON before and after each
case.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

from tilewright.runtime.kernel import Kernel
from tilewright.runtime.store.folders import remove

from .drawing import draw
from .sweep import made, verified

#: Time limit for verifying one kernel, in seconds. Afterwards a signal ends the process.
_SECONDS = 300


def main(target: str, seed: int, flags: Sequence[str]) -> None:
    """Check the cases whose numbers are on the lines of the standard input."""
    for line in sys.stdin:
        _check(target, seed, flags, list(map(int, line.split())))


def _check(target: str, seed: int, flags: Sequence[str], batch: Sequence[int]) -> None:
    libraries = set()
    for case, kernel in made([draw(seed, index) for index in batch], target, flags):
        _say({"started": case.index})
        if isinstance(kernel, Kernel):
            libraries.add(kernel.library.parent)
            signal.alarm(_SECONDS)
            outcome = verified(case, kernel)
            signal.alarm(0)
        else:
            outcome = kernel
        _say(asdict(outcome))
    for library in libraries:
        remove(library)


def _say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    name, number, *more = sys.argv[1:]
    main(name, int(number), more)
