"""Read the CPU quota of this process, by which Linux containers limit the CPUs that it may use.

The quota is a setting of the process's control groups. ``templates/threads/cpus.c.j2`` does the
same in C, for kernels in programs without Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: The folder where control groups are mounted, and the file that lists this process's groups.
ROOT, LISTED = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@cache
def own_quota() -> int | None:
    """Return the quota of this process in CPUs, None if it has none. It is read only once."""
    return quota(ROOT, LISTED)


def quota(root: Path, listed: Path) -> int | None:
    """Return the smallest quota of the process's control groups and of their parents.

    ``root`` is the folder where control groups of version 1 or 2 are mounted. ``listed`` is the
    file that lists the process's groups. The quota is in CPUs, rounded up; None if there is none.
    """
    try:
        lines = listed.read_text().splitlines()
    except OSError:
        return None
    found = [cpus for line in lines for group in _groups(root, line) if (cpus := _cpus(group))]
    return min(found, default=None)


def _groups(root: Path, line: str) -> Iterator[Path]:
    """Yield the folders of a group and of its parents, if the group controls CPU time.

    ``line`` is the line of the list that names the group.
    """
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
    """Return the quota of one group in CPUs, rounded up; None if it has none.

    The group's files have two numbers: the CPU time allowed in each period, and the period.
    """
    numbers = _numbers(group / "cpu.max")
    if len(numbers) < 2:
        numbers = [
            *_numbers(group / "cpu.cfs_quota_us")[:1], *_numbers(group / "cpu.cfs_period_us")[:1],
        ]  # fmt: skip
    if len(numbers) < 2 or min(numbers[:2]) <= 0:
        return None
    return -(-numbers[0] // numbers[1])


def _numbers(path: Path) -> list[int]:
    """Return the numbers in a file; [] if it is missing or has the word "max"."""
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []
