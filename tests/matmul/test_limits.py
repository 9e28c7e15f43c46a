"""Every size that ``tw.matmul`` hands to a kernel lies within what the kernel's spec allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.call.argument_checks import check
from tilewright.runtime.call.arguments import Arranger
from tilewright.runtime.matmul import constant, families, product, routes
from tilewright.runtime.matmul.families import (
    Axes,
    Family,
    Options,
    class_of,
    spec_of,
    stack_class_of,
)
from tilewright.spec.gemm import Gemm
from tilewright.spec.signature import signature
from tilewright.spec.sizes import Dim

Array = np.ndarray[Any, Any]
SIDES, DEPTHS = (1, 2, 7, 17, 31, 66, 300, 2000), (1, 7, 76, 4096)
SIZES = [*itertools.product(SIDES, SIDES, DEPTHS)]
TYPES = [("f32",) * 3, ("bf16", "bf16", "f32")]
AXES: list[Axes] = [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
OPTIONS = [
    Options(target="avx2"), Options(threads=1, target="avx512"),
    Options(deterministic=True, target="avx2"), Options(threads=2, target="amx"),
    Options(epilogue=tw.relu(tw.acc), threads=1, target="neon+dotprod+i8mm+bf16"),
]  # fmt: skip


def beyond(spec: Gemm, least: tuple[int, ...], most: tuple[int, ...]) -> Iterator[str]:
    """The sizes, from ``least`` to ``most``, that a kernel of ``spec`` must not be given."""
    for name, low, high in zip("mnk", least, most, strict=False):
        size = getattr(spec, name)
        if isinstance(size, Dim):
            if (size.max is not None and high > size.max) or size.multiple_of > 1:
                yield f"{name} up to {high} of {size}"
        elif not low == high == size:
            yield f"{name} from {low} to {high} where it is {size}"


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "second_cache", lambda target: 1 << 20)
    monkeypatch.setattr(families, "few_along_k", lambda a, b, target: 16)


@pytest.mark.parametrize("types", TYPES, ids=lambda types: types[0])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str(options.target))
def test_no_class_is_larger_than_the_limits_of_its_kernel(
    types: tuple[str, str, str], options: Options
) -> None:
    found = set()
    for axes in AXES:
        for sizes in SIZES:
            found.add((axes, class_of(*sizes, types, options, axes)))
            for tight in (True, False):
                stacked = stack_class_of(*sizes, 5, types, options, axes[2], tight=tight)
                if stacked is not None:
                    found.add((axes, stacked))
    assert len(found) > 8
    for axes, one in found:
        spec = spec_of(Family(types, axes, one, options))
        assert not list(beyond(spec, one.least, one.most)), (axes, one)


class Told:
    """A kernel that computes nothing: it checks what it is given as one that does would."""

    emulated, functions = None, (0, 0)

    def __init__(self, spec: Gemm) -> None:
        self.spec, self.signature = spec, signature(spec)

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> None:
        given = named if out is None else {"out": out, **named}
        check(self.signature, Arranger(self.signature)(arrays, given)[0])
        TOLD.append(self)


TOLD: list[Told] = []


class Quiet(routes.Routes):
    """A table that C is told of and never reads."""

    def run(self, *given: Any) -> bool:
        return False


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Quiet:
    """What C is told of kernels that stand in for all that a product would compile."""
    TOLD.clear()
    table = Quiet(Options())
    monkeypatch.setattr(product, "kernel_of", lambda family: Told(spec_of(family)))
    monkeypatch.setattr(product, "routes_of", lambda options: table)
    return table


def lying(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of that shape, its axes in any order, some of them with room in between."""
    order = rng.permutation(len(shape))
    steps = [int(rng.choice([1, 1, 1, 2])) for _ in shape]
    whole = np.zeros([shape[i] * steps[i] for i in order], dtype)
    cut = whole[tuple(slice(None, None, steps[i]) for i in order)]
    return cut.transpose(np.argsort(order))


def test_every_route_of_calls(table: Quiet) -> None:
    rng = np.random.default_rng(46)
    dtypes = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8]
    options: list[dict[str, Any]] = [
        {},
        {},
        {"threads": 1},
        {"deterministic": True},
        {"alpha": 2.0},
    ]
    for _ in range(400):
        m, n, k = (int(rng.choice([1, 2, 4, 9, 31, 40, 66, 150])) for _ in "mnk")
        stack = [(), (), (3,), (2, 3)][rng.integers(4)]
        first, second = (tuple(x * int(rng.integers(2)) or 1 for x in stack) for _ in "ab")
        dtype = dtypes[rng.integers(len(dtypes))]
        a = lying(rng, (*(first if rng.integers(2) else stack), m, k), dtype)
        b = lying(rng, (*(second if rng.integers(3) else ()), k, n), dtype)
        sums = np.float64 if dtype is np.float64 else np.int32 if dtype is np.int8 else np.float32
        shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = lying(rng, (*shape, m, n), sums)
        more: dict[str, Any] = options[rng.integers(len(options))]
        tw.matmul(a, b, out, **more)
    assert len(TOLD) > 400 and len({each.spec for each in TOLD}) > 40


def test_routes_in_c_have_the_bounds_of_their_kernels(table: Quiet) -> None:
    """What C compares with is read back from its table."""
    for m, n, k in ((66, 4, 76), (4, 66, 76), (500, 3, 80), (3, 500, 80), (9, 9, 9), (1, 40, 50)):
        for order in itertools.product((0, 1), repeat=3):
            for stack in ((), (5,)):
                arrays = [
                    np.zeros((*stack, *(shape if axis else shape[::-1])), np.float32)
                    for shape, axis in zip(((m, k), (k, n), (m, n)), order, strict=True)
                ]
                a, b, out = (
                    x if axis else x.swapaxes(-1, -2) for x, axis in zip(arrays, order, strict=True)
                )
                tw.matmul(a, b, out)
    assert len(table._known) > 20
    for i, kernel in enumerate(table._known.values()):
        start = routes._HEAD + i * routes._WORDS
        words = table._words[start : start + routes._WORDS].tolist()
        least, most, slots = words[11:15], words[15:19], words[27 : 27 + words[26]]
        assert not list(beyond(kernel.spec, least, most))  # type: ignore[arg-type]
        names = [routes.SIZES[slot] for slot in slots]
        assert names == [size.slot.replace("ldd", "ldc") for size in kernel.signature.sizes]


def test_a_packed_b_takes_any_rows() -> None:
    for options in (Options(), Options(deterministic=True), Options(threads=2)):
        for k, n, a, c in itertools.product((1, 700), (1, 40), (0, 1), (0, 1)):
            kind = constant._Kind(("f32",) * 3, (k, n), a, c, options)
            for parallel in (False, True):
                sizes = constant._family(kind, parallel).sizes
                assert not list(beyond(constant._spec(kind), sizes.least, sizes.most))


@pytest.mark.twice
def test_a_stack_whose_c_lies_by_columns() -> None:
    """Few columns are few, and many rows are many, however C lies."""
    rng = np.random.default_rng(5)
    a, b = rng.integers(-4, 5, (1, 66, 76)), rng.integers(-4, 5, (5, 76, 4))
    for axes in ((1, 2, 0), (0, 2, 1)):
        shape = [0, 0, 0]
        for place, axis in enumerate(axes):
            shape[axis] = (5, 66, 4)[place]
        out = np.empty(shape, np.float32).transpose(axes)
        for _ in range(2):
            out[...] = np.nan
            tw.matmul(a.astype("f4"), b.astype("f4"), out)
            np.testing.assert_array_equal(out, a @ b)
