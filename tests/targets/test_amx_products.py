"""Products of AMX's tiles, on this CPU and through the header, against numpy and fractions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.compilers import FAMILIES, use
from support.spellings.arithmetic import DTYPES, Array, flushed, fused_flushed, values
from support.spellings.spellings import Check, faults, program_text
from support.spellings.tiles import PRELUDE, TILES, TILES_F16, configuration

from tilewright.emit.render import render
from tilewright.errors import ToolchainError
from tilewright.isa.target import Target
from tilewright.runtime.build import toolchain
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.machine.host import is_native, machine

#: Intrinsics by the elements of A and B.
INTEGERS = {
    "_tile_dpbssd": ("s8", "s8"),
    "_tile_dpbsud": ("s8", "u8"),
    "_tile_dpbusd": ("u8", "s8"),
    "_tile_dpbuud": ("u8", "u8"),
}
FLOATS = {"_tile_dpbf16ps": "bf16", "_tile_dpfp16ps": "f16"}
#: Rows of C, columns of C, steps; then there are random ones.
SHAPES = ((16, 16, 16), (1, 1, 1), (16, 1, 16), (1, 16, 3))

every_family = pytest.mark.parametrize("family", FAMILIES)
here = pytest.mark.skipif(machine() != "x86_64", reason="compiles for x86")


def shapes(count: int, seed: int) -> list[tuple[int, int, int]]:
    drawn = np.random.default_rng(seed).integers(1, 17, (count - len(SHAPES), 3))
    return [*SHAPES, *((int(m), int(n), int(k)) for m, n, k in drawn)]


def product(name: str, what: str, cases: list[tuple[Array, Array, Array, Array]]) -> Check:
    """A check of ``cases``: C and A and B as matrices, of groups along K, and what C becomes.

    Each lies in the first rows of a whole tile's memory; what surrounds it holds other bits.
    """
    memory = np.random.default_rng(1).integers(0, 256, (4, len(cases), 16, 64), np.uint8)
    memory[3] = memory[0]
    configs = []
    for i, case in enumerate(cases):
        sizes = [(len(x), x.nbytes // len(x)) for x in case]
        configs.append(configuration(dict(enumerate(sizes[:3]))))
        for tile, x, (rows, colsb) in zip(memory[:, i], case, sizes, strict=True):
            octets = np.ascontiguousarray(x).view(np.uint8)
            tile[:rows, :colsb] = octets.reshape(rows, colsb)
    before, a, b, after = memory.reshape(4, len(cases), -1)
    statements = [
        "tile_permission();",
        "CONFIGURE(in0);",
        "LOAD(0, out, 64);",
        "LOAD(1, in1, 64);",
        "LOAD(2, in2, 64);",
        f"{name}(0, 1, 2);",
        "_tile_stored(0, out, 64);",
        "_tile_release();",
    ]
    dtype = cases[0][0].dtype
    return Check(
        f"{name}, {what}",
        statements,
        (np.stack(configs), a, b),
        after.view(dtype),
        before=before.view(dtype),
    )


# --- integers -------------------------------------------------------------------------------


def integers(element: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """The whole range, its ends often."""
    info = np.iinfo(DTYPES[element])
    drawn = rng.integers(info.min, info.max, shape, DTYPES[element], endpoint=True)
    ends = rng.choice(np.array([info.min, info.max], DTYPES[element]), shape)
    return np.where(rng.random(shape) < rng.random(), ends, drawn)


def integer_check(name: str) -> Check:
    rng = np.random.default_rng(5)
    cases = []
    for m, n, k in shapes(200, 7):
        a, b = (
            integers(element, shape, rng)
            for element, shape in zip(INTEGERS[name], ((m, k, 4), (k, n, 4)), strict=True)
        )
        c = integers("s32", (m, n), rng)
        total = np.einsum("mki,kni->mn", a.astype(np.int64), b.astype(np.int64)) + c
        cases.append((c, a, b, (total % 2**32).astype(np.uint32).view(np.int32)))
    return product(name, "whole range", cases)


# --- floating point -------------------------------------------------------------------------


def dot(c: Array, a: Array, b: Array) -> Array:
    """As Intel's manual has it: the two elements of the groups have sums of their own."""
    sums = np.zeros((len(a), b.shape[1], 2), np.float32)
    for k in range(len(b)):
        sums = fused_flushed(a[:, k][:, None], b[k][None], sums)
    pair = flushed(sums[..., 0] + sums[..., 1])
    return flushed(flushed(c) + pair)


Draw = Callable[[tuple[int, ...], np.random.Generator], Array]


def scaled(exponent: int, spread: int) -> Draw:
    """Normal deviates around ``2**exponent``."""

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        scale = exponent + rng.integers(-spread, spread + 1, shape)
        return np.ldexp(rng.normal(size=shape), scale)

    return draw


def chosen(element: str, column: int) -> Draw:
    """Special values, any bits, or moderate numbers: see ``values``."""
    return lambda shape, rng: rng.choice(values(element, 3)[column], shape).astype(np.float64)


#: Of A, B, and C.
DRAWS: dict[str, dict[str, tuple[Draw, Draw, Draw]]] = {
    "bf16": {
        "moderate": (scaled(0, 3), scaled(0, 3), scaled(2, 3)),
        "tiny": (scaled(-63, 4), scaled(-63, 4), scaled(-126, 4)),
        "denormal factors": (scaled(-127, 3), scaled(60, 60), scaled(-126, 40)),
        "huge": (scaled(62, 2), scaled(63, 2), scaled(126, 1)),
        "any bits": (chosen("bf16", 1), chosen("bf16", 0), chosen("f32", 1)),
    },
    "f16": {
        "moderate": (scaled(0, 3), scaled(0, 3), scaled(2, 3)),
        "denormal factors": (scaled(-16, 6), scaled(-16, 6), scaled(-40, 8)),
        "huge": (scaled(14, 1), scaled(14, 1), scaled(126, 1)),
        "denormal C": (scaled(-30, 4), scaled(-3, 3), scaled(-127, 3)),
        "any bits": (chosen("f16", 1), chosen("f16", 0), chosen("f32", 1)),
    },
}


def float_check(name: str, what: str) -> Check:
    element = FLOATS[name]
    draws = DRAWS[element][what]
    rng = np.random.default_rng(11)
    cases = []
    for m, n, k in shapes(len(SHAPES) + 8, 13)[0 if what == "moderate" else 1 :]:
        k = min(k, 2) if what == "any bits" else k  # else all is NaN
        c, a, b = (
            draw(shape, rng).astype(DTYPES[x])
            for draw, shape, x in zip(
                (draws[2], *draws[:2]),
                ((m, n), (m, k, 2), (k, n, 2)),
                ("f32", element, element),
                strict=True,
            )
        )
        cases.append((c, a, b, dot(c, a, b)))
    return product(name, what, cases)


def check_at_the_least_normal_number() -> Check:
    """``2**-126`` less what leaves it as it is, or a denormal once it is rounded to 24 bits."""
    last = np.array([1, 1.0078125, 0.9921875, 1.5, 1.9921875, 2, 0.5, 3] * 2) * 2.0**-76
    zero = np.zeros(16)
    a = np.array([[[2.0**-63, 0], [-(2.0**-75), 0]]])
    b = np.stack([np.stack([zero + 2.0**-63, zero], 1), np.stack([last, zero], 1)])
    cases = []
    for sign in (1, -1):
        x, y = (sign * a).astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
        c = np.zeros((1, 16), np.float32)
        kept = dot(c, x, y)
        assert {abs(float(v)) for v in kept[0]} == {0.0, 2.0**-126}
        cases.append((c, x, y, kept))
    return product("_tile_dpbf16ps", "at the least normal number", cases)


def check_of_order() -> Check:
    """Each 1 is lost beside ``2**24``; the halves' sums are added to each other, then to C."""
    a = np.ones((1, 3, 2), ml_dtypes.bfloat16)
    b = np.zeros((3, 16, 2), ml_dtypes.bfloat16)
    b[:, :, 0] = np.array([[2.0**24], [1], [1]])
    b[:, :, 1] = np.array([[-(2.0**24)], [2], [0]])
    c = np.ones((1, 16), np.float32)
    return product("_tile_dpbf16ps", "order", [(c, a, b, c + 2)])


# --- compiled, and run ----------------------------------------------------------------------


@cache
def checks() -> list[Check]:
    found = [integer_check(name) for name in INTEGERS]
    with np.errstate(all="ignore"):
        found += [float_check("_tile_dpbf16ps", what) for what in DRAWS["bf16"]]
        return [*found, check_at_the_least_normal_number(), check_of_order()]


@cache
def checks_of_f16() -> list[Check]:
    with np.errstate(all="ignore"):
        return [float_check("_tile_dpfp16ps", what) for what in DRAWS["f16"]]


def brief(found: list[str]) -> str:
    return "\n".join(text[:300] for text in found)


@every_family
def test_products_through_the_header(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = use(family, TILES, monkeypatch, emulated=True)
    assert compiler.means == "header"
    found = faults([*checks(), *checks_of_f16()], TILES, compiler, tmp_path, PRELUDE)
    assert not found, brief(found)


@every_family
@pytest.mark.parametrize("target", [TILES, TILES_F16], ids=["int8, bf16", "f16"])
def test_products_on_the_cpu(
    target: Target, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the header gives, to the bit."""
    if not is_native(target):
        pytest.skip(f"the CPU has not all of {', '.join(target.cpu_flags)}")
    own = checks() if target is TILES else checks_of_f16()
    try:
        found = faults(own, target, use(family, target, monkeypatch), tmp_path, PRELUDE)
    except ToolchainError:
        if target is TILES:
            raise
        pytest.skip(f"{family} does not know f16")
    assert not found, brief(found)


@here
@every_family
def test_compilers_know_the_intrinsics(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = use(family, TILES, monkeypatch)
    text = program_text(checks(), TILES, PRELUDE)
    assert compile_library(text, TILES, compiler, tmp_path, "tiles").stat().st_size


#: Words of the header, and others that do not the same.
WRONG = {
    "const uint8_t *y = (const uint8_t *)": "const int8_t *y = (const int8_t *)",
    "(uint32_t)(x[0] * y[0] + ": "(uint32_t)(int16_t)(x[0] * y[0] + ",
    "return x86_flushed(x86_float((uint32_t)x << 16));": "return x86_float((uint32_t)x << 16);",
    "< 0x1p-126 - 0x1p-151": "< 0x1p-126",
    "tiny ? ": "0 && tiny ? ",
    "x86_flushed(sums[2 * n] + sums[2 * n + 1])": "sums[2 * n] + sums[2 * n + 1]",
    "x86_flushed(p.c->ps[m][n]) + group": "p.c->ps[m][n] + group",
    "x86_flushed(x86_flushed(p.c->ps[m][n]) + group)": "x86_flushed(p.c->ps[m][n]) + group",
    "(float)fraction * 0x1p-24f": "0",
}


@pytest.mark.parametrize("right", WRONG)
def test_a_wrong_header_is_noticed(
    right: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = use("gcc", TILES, monkeypatch, emulated=True)
    whole = render("emulation/amx.h.j2")
    assert right in whole
    wrong = whole.replace(right, WRONG[right])
    monkeypatch.setattr(toolchain, "render", lambda template: wrong)
    assert faults([*checks(), *checks_of_f16()], TILES, compiler, tmp_path, PRELUDE)
