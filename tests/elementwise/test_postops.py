"""Each post-op holds what its entry says; one that is added in a single file does so too."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.products import entries

from tilewright.runtime.fuzz.axes import BINARY, ELTWISE
from tilewright.spec import postops
from tilewright.spec.expression import FAMILIES, REGISTRY, Call, PostOp

BUILTIN = [name for name, entry in REGISTRY.items() if not entry.own]
OPERATORS = {"add", "sub", "mul", "div", "neg"}
every_postop = pytest.mark.parametrize("name", BUILTIN)

#: A module that adds two functions: of others, and as a program with a reference and its bound.
ADDED = '''
"""Two post-ops."""

import numpy as np

import tilewright as tw


@tw.postop(samples=((), (0.25,)))
def added_bend(x: tw.Expression, y: tw.Expression, alpha: float = 0.5) -> tw.Expression:
    """``x`` where it is above ``y``, else ``y + alpha * (x - y)``."""
    return tw.where(x > y, x, y + alpha * (x - y))


def _program(b, x, scale):
    """1 / (1 + (scale * x)**2), with one rounding less than the expression has."""
    scaled = b("mul", x, scale)
    return b("div", 1.0, b("fma", scaled, scaled, 1.0))


@tw.postop(
    lower=_program,
    reference=lambda x, scale: 1 / (1 + (scale * x) ** 2),
    ulps=8,
    absolute=1e-37,
    samples=((), (2,)),
)
def added_bell(x: tw.Expression, scale: float = 1) -> None:
    """``1 / (1 + (scale * x)**2)``."""
    if scale <= 0:
        raise tw.SpecError("the scale of added_bell is above 0", got=scale)
'''


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("added")
    (folder / "added_postops.py").write_text(ADDED)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("added_postops")
    finally:
        sys.path.remove(str(folder))
        del sys.modules["added_postops"]
        for name in ("added_bend", "added_bell"):
            del REGISTRY[name]


def test_the_public_functions_are_the_entries() -> None:
    public = {name for family in FAMILIES for name in family.__all__}
    assert public == set(postops.NAMES) == (set(BUILTIN) - OPERATORS) | {"silu"}
    tried = {name for name, _ in ELTWISE.values()} | set(BINARY)
    assert tried == set(BUILTIN) - {"neg"}, "the random products try each"


@every_postop
def test_it_prints_as_it_is_made(name: str) -> None:
    for one in entries.uses(REGISTRY[name]):
        if name not in OPERATORS:
            entries.check_text(one, entries.names())


@every_postop
def test_its_program_is_what_its_reference_allows(name: str) -> None:
    for one in entries.uses(REGISTRY[name]):
        entries.check_program(one)


@pytest.mark.parametrize("name", [name for name in BUILTIN if name not in OPERATORS])
def test_sympy_takes_it(name: str) -> None:
    for one in entries.uses(REGISTRY[name])[:1]:
        entries.check_algebra(one)


# -- one that is added in a single file -----------------------------------------------------------


def of(module: ModuleType, name: str) -> PostOp:
    assert callable(getattr(module, name))
    return REGISTRY[name]


@pytest.mark.parametrize("name", ["added_bend", "added_bell"])
def test_one_added_in_a_file_is_held_to_the_same(
    name: str, added: ModuleType, tmp_path: Path
) -> None:
    entry = of(added, name)
    found = entries.uses(entry)
    assert [repr(one) for one in found] == {
        "added_bend": ["added_bend(acc, dst)", "added_bend(acc, dst, alpha=0.25)"],
        "added_bell": ["added_bell(acc)", "added_bell(acc, scale=2)"],
    }[name]
    for i, one in enumerate(found):
        entries.check_text(one, {name: getattr(added, name)})
        entries.check_program(one)
        entries.check_algebra(one)
        (tmp_path / str(i)).mkdir()
        entries.check_c(one, tmp_path / str(i))
    entries.check_kernel(found)


def test_the_checks_find_a_wrong_program_and_a_wrong_bound(added: ModuleType) -> None:
    right = of(added, "added_bell")
    (one, _), lower = entries.uses(right), right.lower
    assert lower is not None
    off = _changed(right, lower=lambda b, x, scale: b("mul", lower(b, x, scale), 1.00001))
    with pytest.raises(AssertionError):
        entries.check_program(Call(one.fn, one.args, off))
    unneeded = _changed(right, lower=lambda b, x, scale: (b("add", x, 9.0), lower(b, x, scale))[1])
    with pytest.raises(AssertionError):
        entries.check_program(Call(one.fn, one.args, unneeded))


def _changed(entry: PostOp, **changed: Any) -> PostOp:
    return dataclasses.replace(entry, **changed)
