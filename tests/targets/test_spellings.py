"""Every spelling of a target, compiled by gcc and clang and run, against numpy bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.arithmetic import OPERATIONS
from support.compilers import FAMILIES, use
from support.spelling_checks import checks, products
from support.spellings import faults

from tilewright.runtime.host import is_native, resolve
from tilewright.targets import load

WHOLE = ("neon", "scalar")
#: Their features are tried together and, for their compiler flags, alone.
FEATURES = ("neon+dotprod+i8mm+bf16+fp16fml", *(f"neon+{name}" for name in load("neon").features))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", WHOLE)
def test_every_spelling_does_as_it_says(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve(name)
    compiler = use(family, target, monkeypatch, emulated=not is_native(target))
    found = faults(checks(target), target, compiler, tmp_path)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", FEATURES)
def test_every_product_does_as_it_says(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve(name)
    compiler = use(family, target, monkeypatch, emulated=not is_native(target))
    found = faults(products(target), target, compiler, tmp_path)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", WHOLE)
def test_every_sum_has_all_elementary_operations(name: str) -> None:
    for vector in load(name).vectors:
        if vector.muladd:
            needed = set(OPERATIONS[vector.element]) - (
                {"round"} if vector.element == "f64" else set()
            )
            assert not needed - set(vector.ops), vector
