"""Read how many CPUs the process's control groups allow it, as Linux containers limit them.

``templates/threads/cpus.c.j2`` does the same in C, for kernels in programs without Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: Where control groups are mounted, and the file that lists those of this process.
ROOT, LISTED = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@cache
def own_quota() -> int | None:
    """Return the quota of this process, read once; see ``quota``."""
    return quota(ROOT, LISTED)


def quota(root: Path, listed: Path) -> int | None:
    """Return the least quota of the process's control groups and of all groups around them.

    ``root`` is where control groups are mounted, of version 1 or 2. ``listed`` is the file that
    lists the process's groups. A quota is in CPUs, rounded up. None means that there is none.
    """
    try:
        lines = listed.read_text().splitlines()
    except OSError:
        return None
    found = [cpus for line in lines for group in _groups(root, line) if (cpus := _cpus(group))]
    return min(found, default=None)


def _groups(root: Path, line: str) -> Iterator[Path]:
    """Yield the folder of a listed group and of the groups around it, if it counts CPU time."""
    _, _, rest = line.partition(":")
    controllers, colon, path = rest.partition(":")
    if not colon or (controllers and "cpu" not in controllers.split(",")):
        return
    top = root / "cpu" if controllers else root
    inner = top / path.lstrip("/")
    yield inner
    while inner != top:
        inner = inner.parent
        yield inner


def _cpus(group: Path) -> int | None:
    """Return the quota of one group, in microseconds of each period; None if it has none."""
    numbers = _numbers(group / "cpu.max")
    if len(numbers) < 2:
        numbers = [
            *_numbers(group / "cpu.cfs_quota_us")[:1], *_numbers(group / "cpu.cfs_period_us")[:1],
        ]  # fmt: skip
    if len(numbers) < 2 or min(numbers[:2]) <= 0:
        return None
    return -(-numbers[0] // numbers[1])


def _numbers(path: Path) -> list[int]:
    """Return the numbers of a file; [] if it is missing, or says "max"."""
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []
