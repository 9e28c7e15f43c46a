"""AMX's tiles beside their products: configurations, moves, and what clears them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.compilers import FAMILIES, use
from support.spellings.spellings import Check, faults, program_text
from support.spellings.tiles import PRELUDE, TILES, Array, Shape, configuration

from tilewright.emit.render import render
from tilewright.runtime.build import toolchain
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.machine.host import is_native, machine

every_family = pytest.mark.parametrize("family", FAMILIES)
here = pytest.mark.skipif(machine() != "x86_64", reason="compiles for x86")
native = pytest.mark.skipif(
    not is_native(TILES), reason=f"the CPU has not all of {', '.join(TILES.cpu_flags)}"
)
SHAPES = ((16, 64), (1, 4), (16, 4), (1, 64), (7, 20), (3, 60))


def octets(count: int, seed: int) -> Array:
    """Bytes, none of them 0."""
    return np.random.default_rng(seed).integers(1, 256, (1, count), np.uint8)


def check(
    name: str, statements: Sequence[str], inputs: Sequence[Array], before: Array, after: Array
) -> Check:
    used = [f"(void)in{i};" for i in range(len(inputs))]
    return Check(
        name,
        [*used, "tile_permission();", *statements, "_tile_release();"],
        tuple(x.reshape(1, -1) for x in inputs),
        after.reshape(1, -1),
        before=before.reshape(1, -1),
    )


# --- moves ----------------------------------------------------------------------------------


def rows_of(memory: Array, shape: Shape, stride: int) -> Array:
    rows, colsb = shape
    first = 0 if stride >= 0 else -stride * (rows - 1)
    starts = first + stride * np.arange(rows)
    found: Array = memory.reshape(-1)[starts[:, None] + np.arange(colsb)]
    return found


def size(shape: Shape, stride: int) -> int:
    return abs(stride) * (shape[0] - 1) + shape[1]


def base(array: str, shape: Shape, stride: int) -> str:
    return f"{array} + {max(0, -stride) * (shape[0] - 1)}, (size_t)INT64_C({stride})"


def move(load: str, shape: Shape, from_stride: int, to_stride: int) -> Check:
    """Both memories are as long as the tile needs them, and end at guards."""
    source, before = octets(size(shape, from_stride), 1), octets(size(shape, to_stride), 2)
    after = before.copy()
    rows = np.arange(shape[0])
    first = 0 if to_stride >= 0 else -to_stride * (shape[0] - 1)
    at = (first + to_stride * rows)[:, None] + np.arange(shape[1])
    after.reshape(-1)[at] = rows_of(source, shape, from_stride)
    statements = [
        "CONFIGURE(in0);",
        f"FENCE; {load}(5, {base('in1', shape, from_stride)});",
        f"_tile_stored(5, {base('out', shape, to_stride)});",
    ]
    name = f"{load} of {shape}, strides {from_stride}, {to_stride}"
    return check(name, statements, (configuration({5: shape}), source), before, after)


def moves() -> Iterator[Check]:
    for load in ("_tile_loadd", "_tile_stream_loadd"):
        for shape in SHAPES:
            for strides in ((shape[1], shape[1]), (shape[1] + 5, 67), (0, 64), (-70, 65)):
                yield move(load, shape, *strides)
        yield move(load, (16, 64), 4096, -64)


# --- state ----------------------------------------------------------------------------------

TWO = configuration({0: (3, 8), 7: (16, 64)})
ZEROS = np.zeros(64, np.uint8)
FULL = octets(1024, 3)
FILL = ["CONFIGURE(in0);", "LOAD(7, in1, 64);"]
SHOW = "_tile_stored(7, out, 64);"


def zeros() -> Iterator[Check]:
    """What makes a tile's data 0; the shape may be another afterwards."""
    again = ["_tile_release(); CONFIGURE(in0);", "CONFIGURE(in0);", "_tile_zero(7);"]
    again.append("CONFIGURE(in2); CONFIGURE(in0);")
    for what in again:
        statements = [*FILL, what, SHOW]
        yield check(what, statements, (TWO, FULL, ZEROS), octets(1024, 4), np.zeros(1024, np.uint8))
    small = configuration({7: (4, 12)})
    after = np.zeros(1024, np.uint8)
    after.reshape(16, 64)[:4, :12] = FULL.reshape(16, 64)[:4, :12]
    statements = ["CONFIGURE(in2); LOAD(7, in1, 64);", "CONFIGURE(in0);", SHOW]
    yield check("other shape", statements, (TWO, FULL, small), FULL, np.zeros(1024, np.uint8))
    statements = [*FILL, "CONFIGURE(in2); LOAD(7, in1, 64);", SHOW]
    before = np.zeros(1024, np.uint8)
    yield check("smaller shape", statements, (TWO, FULL, small), before, after)


def starts() -> Iterator[Check]:
    """An interrupted move goes on at its row; whatever completes sets it to 0."""
    begun = configuration({7: (16, 64), 0: (8, 8), 1: (8, 8), 2: (2, 8)}, start_row=5)
    after = FULL.reshape(16, 64).copy()
    after[:5] = 0
    blank = np.zeros(1024, np.uint8)
    load = ["CONFIGURE(in0);", "LOAD(7, in1, 64);"]
    yield check("load from row 5", [*load, SHOW], (begun, FULL), FULL, after)
    again = [*load, "CONFIGURE(in0);", SHOW, SHOW]
    yield check("store from row 5", again[2:], (begun, FULL), FULL, blank)
    half = FULL.reshape(16, 64).copy()
    half[5:] = 0
    yield check("store of rows from 5", again[2:4], (begun, FULL), FULL, half)
    for what in ("LOAD(7, in1, 64);", "_tile_zero(0);", "_tile_dpbssd(0, 1, 2);", ""):
        expected = begun.copy()
        expected[1] = 0 if what else 5
        statements = ["CONFIGURE(in0);", what, "_tile_storeconfig(out);"]
        yield check(f"start_row after {what}", statements, (begun, FULL), FULL[:, :64], expected)


def configurations() -> Iterator[Check]:
    """What is stored is what was loaded; zeros where nothing is."""
    rng = np.random.default_rng(6)
    junk = octets(64, 7)
    show = "_tile_storeconfig(out);"
    for i in range(20):
        used = rng.permutation(8)[: rng.integers(9)]
        some = {int(t): (int(rng.integers(1, 17)), int(rng.integers(1, 65))) for t in used}
        loaded = configuration(some)
        yield check(f"configuration {i}", ["CONFIGURE(in0);", show], (loaded,), junk, loaded)
    after_all = {"nothing": [], "release": ["CONFIGURE(in0); _tile_release();"]}
    after_all["palette 0"] = ["CONFIGURE(in0); CONFIGURE(in1);"]
    nothing = octets(64, 8)
    nothing[0, 0] = 0
    for name, statements in after_all.items():
        yield check(f"after {name}", [*statements, show], (TWO, nothing), junk, ZEROS)


def every_check() -> list[Check]:
    return [*moves(), *zeros(), *starts(), *configurations()]


@every_family
def test_state_through_the_header(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = use(family, TILES, monkeypatch, emulated=True)
    found = faults(every_check(), TILES, compiler, tmp_path, PRELUDE)
    assert not found, "\n".join(text[:300] for text in found)


@here
@every_family
def test_compilers_know_the_intrinsics(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = use(family, TILES, monkeypatch)
    text = program_text(every_check(), TILES, PRELUDE)
    assert compile_library(text, TILES, compiler, tmp_path, "tiles").stat().st_size


@native
@every_family
def test_state_on_the_cpu(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = use(family, TILES, monkeypatch)
    found = faults(every_check(), TILES, compiler, tmp_path, PRELUDE)
    assert not found, "\n".join(text[:300] for text in found)


#: Words of the header, and others that do not the same.
WRONG = {
    "(ptrdiff_t)stride": "(ptrdiff_t)(stride & 0xffffffff)",
    "int i = config->start_row;": "int i = 0;",
    "config->start_row = 0;": "",
    "amx_state.config.start_row = 0;\n}": "}",
    "amx_state.config.start_row = 0;\n    return": "return",
    '__builtin_memset(amx_data("_tile_zero", tile), 0, sizeof(amx_tile));': "(void)tile;",
    "{\n    __builtin_memset(&amx_state, 0, sizeof amx_state);": "{",
    "sizeof config);\n    __builtin_memset(&amx_state, 0, sizeof amx_state);": "sizeof config);",
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
    assert faults(every_check(), TILES, compiler, tmp_path, PRELUDE)
