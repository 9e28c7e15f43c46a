"""Number formats: each is one entry; one added in a single file is converted and multiplied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from support.source_tree import ROOT

from scripts.typecheck import packages
from tilewright.spec.types import FORMATS, INPUTS, TYPES, TypeName

NUMPY = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2,
}


def test_type_checkers_know_every_name() -> None:
    assert set(get_args(TypeName)) == {*TYPES, *(type_.numpy for type_ in TYPES.values())}


@pytest.mark.parametrize("name", FORMATS)
def test_an_entry_says_what_the_type_holds(name: str) -> None:
    form, dtype = FORMATS[name], np.dtype(NUMPY[name])
    info = ml_dtypes.finfo(dtype)
    assert 1 + form.exponent + form.mantissa == 8 * dtype.itemsize == 8 * TYPES[name].itemsize
    assert TYPES[name].numpy == dtype.name
    assert TYPES[name].bits == f"uint{8 * dtype.itemsize}"
    assert TYPES[name].ctype == f"uint{8 * dtype.itemsize}_t"
    assert form.largest == float(info.max)
    assert 2.0**form.least == float(info.smallest_normal)
    assert 2.0**-form.mantissa == float(info.eps)
    codes = [form.above, form.nan, form.above - 1, form.sign]
    above, nan, last, zero = np.array(codes, TYPES[name].bits).view(dtype).astype(np.float64)
    assert np.isinf(above) if form.infinity else np.isnan(above)
    assert np.isnan(nan)
    assert last == form.largest < form.over
    assert zero == 0 and np.signbit(zero)


def test_what_has_no_entry_is_not_multiplied() -> None:
    assert {*FORMATS, "f32", "f64", "s8", "u8", "s16", "u16"} == set(INPUTS)


# -- one that is added in a single file -----------------------------------------------------------

#: The line that adds it, and the one behind which it stands.
ENTRY = """\
    ElementType("f8_e3m4", "float", 1, "float8_e3m4", "uint8_t", "uint8", FloatFormat(3, 4)),
"""
BEFORE = '    ElementType("s8", "int"'

#: What is tried with it: all its values and all edges of rounding, in numpy and as programs, then
#: kernels that read and write it.
TRIED = """
import sys

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.elementwise.builder import Builder, run
from tilewright.elementwise.conversions import narrow, widen
from tilewright.runtime.arrays.elements import decode, encode, epsilon

TYPE, DTYPE = "f8_e3m4", np.dtype(ml_dtypes.float8_e3m4)


def converted(write, element, lanes):
    b = Builder()
    given = b.input(element)
    result = write(b, given, TYPE)
    return run(b.steps, {given: lanes})[result]


def same(x, y):
    return ((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))


codes = np.arange(256, dtype=np.uint8)
values = codes.view(DTYPE).astype(np.float32)
assert same(converted(widen, "s32", codes.astype(np.int32)), values).all()
assert same(decode(codes, TYPE), values.astype(np.float64)).all()
assert epsilon(TYPE) == 1 / 16

finite = np.unique(values[np.isfinite(values)]).astype(np.float64)
finite = np.append(finite, finite[-1] + (finite[-1] - finite[-2]))
halves = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
beside = [np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)]
edges = np.array([np.inf, np.nan, 0.0, 1e30, 2.0**-20, 2.0**-149], np.float32)
x = np.concatenate([finite.astype(np.float32), halves, *beside, edges])
x = np.concatenate([x, -x])
with np.errstate(all="ignore"):
    want = x.astype(DTYPE).astype(np.float32)
for got in (converted(narrow, "f32", x).astype(np.uint8), encode(x, TYPE).view(np.uint8)):
    assert same(got.view(DTYPE).astype(np.float32), want).all()

E3M4 = tw.Operand("scale", TYPE, per="column")
for target in sys.argv[1:]:
    specs = [
        tw.Gemm(9, 21, 13, a=TYPE, b=TYPE),
        tw.Gemm(9, 21, 13, a="bf16", b=tw.Packed(TYPE), d=TYPE, epilogue=tw.relu(tw.acc) * E3M4),
        tw.Gemm(9, 21, 13, a=ml_dtypes.float8_e3m4, b="f32", order="F", d=TYPE),
    ]
    for kernel in tw.compile_many([(spec, None, target) for spec in specs]):
        kernel.verify()
print("right")
"""


@pytest.mark.twice
def test_one_added_in_a_single_file_is_converted_and_multiplied(tmp_path: Path) -> None:
    for package, folder in packages().items():
        unneeded = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / package, ignore=unneeded, dirs_exist_ok=True)
    types = tmp_path / "tilewright" / "spec" / "types.py"
    text = types.read_text()
    assert text.count(BEFORE) == 1
    types.write_text(text.replace(BEFORE, ENTRY + BEFORE))
    done = subprocess.run(
        [sys.executable, "-c", TRIED, "scalar", "avx2", "host"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "right\n", done.stderr
