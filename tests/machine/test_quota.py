"""Quotas of CPU time, in made-up file systems of control groups; C reads the same as Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime.arrays.memory import address
from tilewright.runtime.machine import host
from tilewright.runtime.machine.quota import quota
from tilewright.runtime.threads.process import functions

V1 = "cpu.cfs_quota_us", "cpu.cfs_period_us"
#: The file that lists the process's groups, the files below the root, and the quota.
CASES: dict[str, tuple[str, dict[str, str], int | None]] = {
    "two of many CPUs": ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
    "a part of one more": ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),
    "less than one": ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
    "another period": ("0::/\n", {"cpu.max": "200000 50000\n"}, 4),
    "max": ("0::/\n", {"cpu.max": "max 100000\n"}, None),
    "an own group": ("0::/a/b\n", {"a/b/cpu.max": "300000 100000", "a/cpu.max": "max 100000"}, 3),
    "the least counts": (
        "0::/a/b\n",
        {"a/b/cpu.max": "300000 100000", "a/cpu.max": "200000 100000", "cpu.max": "400000 100000"},
        2,
    ),
    "a group elsewhere": ("0::/a/b\n", {"c/cpu.max": "100000 100000"}, None),
    "a path of the host": ("0::/docker/0123\n", {"cpu.max": "200000 100000"}, 2),
    "above the root": ("0::/../..\n", {"cpu.max": "200000 100000"}, 2),
    "version 1": (
        "4:memory:/a\n3:cpu,cpuacct:/a\n",
        {f"cpu/a/{V1[0]}": "150000\n", f"cpu/a/{V1[1]}": "100000\n"},
        2,
    ),
    "version 1 without a quota": (
        "3:cpuacct,cpu:/\n",
        {f"cpu/{V1[0]}": "-1\n", f"cpu/{V1[1]}": "100000\n"},
        None,
    ),
    "version 1, a path of the host": (
        "3:cpu:/docker/0123\n",
        {f"cpu/{V1[0]}": "400000", f"cpu/{V1[1]}": "100000"},
        4,
    ),
    "both": (
        "2:cpu:/a\n1:cpuset:/b\n0::/c\n",
        {
            f"cpu/a/{V1[0]}": "500000", f"cpu/a/{V1[1]}": "100000",
            "c/cpu.max": "600000 100000", "cpuset/b/cpu.max": "100000 100000",
        },
        5,
    ),
    "no cpu controller": ("1:cpuset,cpuacct:/\n", {"cpu/cpu.max": "100000 100000"}, None),
    "half a file": ("0::/\n", {"cpu.max": "200000"}, None),
    "no period": ("0::/\n", {"cpu.max": "200000 0"}, None),
    "no numbers": ("0::/\n", {"cpu.max": ""}, None),
    "no colons": ("nothing\n0\n\n0::\n", {"cpu.max": "200000 100000"}, 2),
}  # fmt: skip


def quota_in_c(root: Path, listed: Path) -> int:
    """The CPUs of a quota as the C library reads it; 0 if there is none."""
    found = functions()
    assert found is not None, "the library is built"
    texts = [np.frombuffer(bytes(path) + b"\0", np.uint8) for path in (root, listed)]
    return int(found["tw_threads_quota"](*map(address, texts)))


@pytest.mark.parametrize("case", CASES)
def test_the_quota_is_the_least_of_all_groups(case: str, tmp_path: Path) -> None:
    listed, files, expected = CASES[case]
    (tmp_path / "listed").write_text(listed)
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert quota(tmp_path / "root", tmp_path / "listed") == expected
    assert quota_in_c(tmp_path / "root", tmp_path / "listed") == (expected or 0)


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert quota(tmp_path, tmp_path / "listed") is None
    assert quota_in_c(tmp_path, tmp_path / "listed") == 0


def test_the_quota_limits_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "own_quota", lambda: None)
    cpus = host.usable_cpus()
    for limit in (1, cpus, cpus + 7):
        monkeypatch.setattr(host, "own_quota", lambda limit=limit: limit)
        assert host.usable_cpus() == min(limit, cpus)
