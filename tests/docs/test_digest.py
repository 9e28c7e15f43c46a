"""``benchmarks.digest`` covers every target, and names the kernels whose C differs."""

from __future__ import annotations

import sys
from dataclasses import replace

from support.source_tree import ROOT

import tilewright as tw
from tilewright import targets

sys.path.insert(0, str(ROOT))  # benchmarks is a program beside tilewright, not a package of it
from benchmarks.digest import different, digests, wanted


def test_every_target_has_kernels_and_every_kernel_a_name_of_its_own() -> None:
    every = list(wanted())
    assert len({each.name for each in every}) == len(every) > 600
    assert {each.target for each in every} >= set(targets.NAMES)


def test_a_kernel_with_other_c_is_named() -> None:
    one = next(each for each in wanted() if each.name == "amx: f32 64x48x64")
    known = digests([one])
    assert different(digests([one]), known) == []
    changed = replace(one, schedule=tw.Schedule(tile=(4, 16)))
    assert different(digests([changed]), known) == [one.name]
    assert different(known, {}) == [one.name]
