"""No spill and no reload in any K loop, read from the machine code of gcc and clang.

The reader itself is tested in ``tests/test_spills.py``.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from support.compilers import FAMILIES, VECTORS, use

import tilewright as tw
from benchmarks.measure.kernels import spec
from benchmarks.measure.shapes import TABLE, UKERNEL, random_shapes
from benchmarks.measure.spills import Function, functions
from tilewright import targets
from tilewright.generate import Request, generate
from tilewright.isa.target import Target
from tilewright.runtime.build.compilers import Compiler
from tilewright.runtime.build.toolchain import compile_library, disassemble

RANDOM = 16
#: Those whose multiply-adds in f32 are no other target's, and whose registers C keeps in place.
OWN = tuple(
    name
    for name in VECTORS
    if targets.load(name).matrix is None and targets.load(name).hints is not None
)


@lru_cache(maxsize=1)
def source(target: Target, seed: int) -> str:
    """The default schedules of the peers' sizes, and of random ones."""
    shapes = dict.fromkeys((*TABLE, *UKERNEL, *random_shapes(seed, RANDOM, largest=70)))
    names = {f"kernel_{s.m}x{s.n}x{s.k}_{s.count}": spec(s) for s in shapes}
    return generate([Request(n, one, tw.Schedule(), target) for n, one in names.items()]).text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(f"source-{name}")) for name in OWN]
)
def test_no_k_loop_touches_the_stack(
    name: str,
    family: str,
    pytestconfig: pytest.Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, seed = targets.load(name), pytestconfig.option.seed
    compiler = use(family, target, monkeypatch)
    found = machine_code(source(target, seed), target, compiler, tmp_path)
    assert sum(region.looped for function in found for region in function.regions()) > RANDOM
    fail_on_spills(found)


#: Vectors lie along K, and of the last one a part exists: loads that no multiply-add makes itself.
PARTS = ((67, 1, 99), (23, 1, 127), (26, 1, 45), (84, 1, 53), (1, 67, 99))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", OWN)
def test_parts_of_vectors_are_loaded_where_they_are_multiplied(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = targets.load(name)
    compiler = use(family, target, monkeypatch)
    made = {"kernel_" + "x".join(map(str, size)): tw.Gemm(*size, beta=1) for size in PARTS}
    text = generate([Request(n, one, tw.Schedule(), target) for n, one in made.items()]).text
    found = machine_code(text, target, compiler, tmp_path)
    assert {function.name for function in found if function.regions()} >= set(made)
    fail_on_spills(found)


def machine_code(text: str, target: Target, compiler: Compiler, folder: Path) -> list[Function]:
    """The functions of a library of these kernels."""
    library = compile_library(text, target, compiler, folder, "kernels")
    return functions(disassemble(library, compiler))


def fail_on_spills(found: list[Function]) -> None:
    """Every access to the stack in one message."""
    faults = [
        f"{function.name}: {len(spills)} in {'the loop' if region.looped else 'straight code'} "
        f"of {len(region.instructions)} instructions, {spills[0].instruction}"
        for function in found
        for region in function.regions()
        if (spills := function.spills_in(region))
    ]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)
