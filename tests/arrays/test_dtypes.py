"""The dtypes that arrays of each type may have, with ml_dtypes and without."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime.arrays import dtypes
from tilewright.runtime.call import argument_checks as layout
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.gemm import Gemm
from tilewright.spec.types import TYPES

FOREIGN: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2,
}


def test_one_table_holds_every_type() -> None:
    assert DTYPES.keys() >= TYPES.keys()
    for name, found in DTYPES.items():
        assert found.itemsize == (TYPES[name].itemsize if name in TYPES else found.itemsize)
    assert FOREIGN.keys() == dtypes.FOREIGN
    assert DTYPES["f16"] == np.float16
    assert DTYPES["bf16"] == np.uint16


@pytest.mark.parametrize("name", TYPES)
def test_what_is_taken(name: str) -> None:
    wanted = np.dtype(FOREIGN.get(name, DTYPES[name]))
    taken = [wanted, DTYPES[name]]
    for dtype in (*map(np.dtype, "bBhHiIlLqQefd?"), *map(np.dtype, FOREIGN.values())):
        assert dtypes.accepts(name, dtype) == (dtype in taken)
    if wanted.itemsize > 1:
        assert not dtypes.accepts(name, wanted.newbyteorder())
    assert dtypes.preferred(name) == wanted


@pytest.mark.parametrize("name", FOREIGN)
def test_arrays_and_their_bits_are_one(name: Any) -> None:
    made = tw.compile(Gemm(3, 4, 5, a=name, d=name, beta=0), target="scalar")
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape).astype(FOREIGN[name]) for shape in ((3, 5), (5, 4)))
    want = made(a, b)
    assert want.dtype == FOREIGN[name]
    bits = [array.view(DTYPES[name]) for array in (a, b)]
    for first, second in ((a, bits[1]), (bits[0], b), bits):
        out = np.zeros((3, 4), DTYPES[name])
        assert made(first, second, out=out) is out
        np.testing.assert_array_equal(out, want.view(DTYPES[name]))
        np.testing.assert_array_equal(made(first, second), want)
    with pytest.raises(ArgumentError, match=rf"ml_dtypes\.{np.dtype(FOREIGN[name])}, or its bits"):
        made(a.astype(np.float32), b)


def run(code: str) -> None:
    """Run ``code`` in a new process; it may keep compiled modules."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    prologue = "import sys\nimport numpy as np\nimport tilewright as tw\n"
    command = [sys.executable, "-c", prologue + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_bits_need_no_module() -> None:
    """Nothing imports it for arrays of bits, or for a result of another type."""
    run("""
kernel = tw.compile(tw.Gemm(3, 4, 5, a="bf16"), target="scalar")
a, b = np.full((3, 5), 0x3F80, np.uint16), np.full((5, 4), 0x4000, np.uint16)
assert np.all(kernel(a, b) == 10)
out = np.zeros((3, 4), np.uint16)
tw.compile(tw.Gemm(3, 4, 5, a="bf16", d="bf16"), target="scalar")(a, b, out=out)
assert np.all(out == 0x4120)
assert "ml_dtypes" not in sys.modules
""")


def test_results_are_of_the_module_where_it_is_installed() -> None:
    run("""
kernel = tw.compile(tw.Gemm(3, 4, 5, a="bf16", d="bf16"), target="scalar")
a, b = np.full((3, 5), 0x3F80, np.uint16), np.full((5, 4), 0x4000, np.uint16)
assert "ml_dtypes" not in sys.modules
assert kernel(a, b).dtype.name == "bfloat16"
""")


def test_results_are_bits_where_it_is_not() -> None:
    run("""
sys.modules["ml_dtypes"] = None
kernel = tw.compile(tw.Gemm(3, 4, 5, a="bf16", d="bf16"), target="scalar")
a, b = np.full((3, 5), 0x3F80, np.uint16), np.full((5, 4), 0x4000, np.uint16)
made = kernel(a, b)
assert made.dtype == np.uint16 and np.all(made == 0x4120)
kernel.verify()
try:
    kernel(a.astype(np.float32), b)
except tw.ArgumentError as error:
    assert "or its bits as uint16" in str(error)
""")


def test_a_module_imported_later_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call with its arrays is decided in Python, all others in C."""
    monkeypatch.delitem(sys.modules, "ml_dtypes")
    made = tw.compile(Gemm(3, 4, 5, a="bf16"), target="scalar")
    monkeypatch.undo()
    a, b = np.ones((3, 5), ml_dtypes.bfloat16), np.ones((5, 4), ml_dtypes.bfloat16)
    c = np.zeros((3, 4), np.float32)
    decided = []
    check = layout.check

    def watched(*args: Any) -> Any:
        decided.append(args)
        return check(*args)

    monkeypatch.setattr(layout, "check", watched)
    for _ in range(3):
        made(a, b, c)
        made(a.view(np.uint16), b, c)
    assert len(decided) == 1
    np.testing.assert_array_equal(c, 5)


def test_numpys_own_names_of_one_type() -> None:
    """int64 has two dtypes that are equal; the C dispatcher knows one of them."""
    made = tw.compile(Gemm(2, 2, 2, batch=tw.Offsets(1)), target="scalar")
    flat = np.ones(4, np.float32)
    for dtype in (np.dtype("l"), np.dtype("q")):
        zero = np.zeros(1, dtype)
        assert np.all(made(flat, flat, a_offsets=zero, b_offsets=zero) == 2)
