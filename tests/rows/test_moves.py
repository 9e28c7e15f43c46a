"""Integers that a network only moves: they are exact, although f32 cannot hold all of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright import nn, targets
from tilewright.generate import interpret_kernel
from tilewright.runtime.reference.network import expected_of
from tilewright.spec.dtypes import DTYPES

T = tw.Tensor
RNG = np.random.default_rng(3)


def numbers(*shape: int) -> Any:
    """Return numbers of s32 most of which f32 cannot hold, with the bits of NaN among them."""
    made: Any = RNG.integers(-(2**31), 2**31, shape).astype(np.int32)
    made.ravel()[: 4 if made.size > 4 else 0] = [2**24 + 1, -(2**24) - 1, 0x7F800001, -1]
    return made


#: A matrix, a column, a row, bytes, and a gathering of rows.
X, R, C = numbers(5, 37), numbers(5, 1), numbers(37)
U = RNG.integers(0, 256, (5, 37)).astype(np.uint8)
AT = np.array([4, 0, -1], np.int32)
#: Operands of sums beyond 2**24.
A, B = np.full((3, 600), 255, np.uint8), np.full((600, 4), 127, np.int8)
B[0] = [1, 2, 3, 4]

#: Row programs: a function, and its arguments. The results are to be the arguments, then others.
ROWS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows": (lambda x, u, r, c: (x, u, r, x * c, nn.sum(r + u)), (X, U, R, C)),
    "columns": (lambda x, c, r: (x, c, nn.max(x * r + c, axis=0)), (X, C, R)),
}


def spec_of(function: Callable[..., Any], given: tuple[Any, ...]) -> tw.Network:
    shaped = (T(each.dtype, each.shape) for each in given)
    names_of = function.__code__.co_varnames
    return tw.network(function).of(**dict(zip(names_of, shaped, strict=False)))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("target", targets.NAMES)
def test_a_row_program_moves_integers_on_all_targets(target: str, name: str, cases: Cases) -> None:
    function, given = ROWS[name]
    spec = spec_of(function, given)
    assert not spec.staged
    types: list[Any] = [result.tensor for result in spec.results]
    made = [np.zeros(one.shape, DTYPES[one.type]) for one in types]
    interpret_kernel(spec, tw.Schedule(), targets.load(target), [*given, *made], [])
    cases.count(target, "interpreted", 1)
    for got, moved in zip(made, given[: 3 if name == "rows" else 2], strict=False):
        np.testing.assert_array_equal(got, moved)
    right = expected_of(spec, dict(zip((i.name for i in spec.inputs), given, strict=True)), {})
    assert not any(each.wrong(got).any() for each, got in zip(right.values(), made, strict=True))


def summing(a: Any, b: Any) -> Any:
    return nn.product(a, b)


def summed(a: Any, b: Any) -> Any:
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


#: Functions of tensors, arguments, and what numpy makes of them.
MOVES: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = [
    (lambda x: x.astype("s32"), (X,), X),
    (lambda x: x.T, (X,), X.T),
    (lambda x: x.reshape(37, 5), (X,), X.reshape(37, 5)),
    (lambda x: x.reshape(5, 37, 1).transpose((1, 2, 0)), (X,), X.T[:, None]),
    (lambda x: x[1:4, 2:20:3], (X,), X[1:4, 2:20:3]),
    (lambda x: nn.expand(x[None], (2, 5, 37)), (X,), np.stack((X, X))),
    (lambda x, r: nn.concat((x, r, x), axis=1), (X, R), np.concatenate((X, R, X), 1)),
    (lambda x: nn.pad(x, ((1, 0), (0, 2)), 7), (X,),
     np.pad(X, ((1, 0), (0, 2)), constant_values=7)),
    (lambda x, at: (nn.take(x, at), x), (X, AT), (X[AT], X)),
    (lambda a, b: nn.product(a, b).T, (A, B), summed(A, B).T),
    (lambda a, b: (nn.product(a, b), nn.product(a, b) * 2),
     (A, B), (summed(A, B), summed(A, B).astype(np.float32) * 2)),
]  # fmt: skip


@pytest.mark.twice
@pytest.mark.parametrize("target", ["host", "scalar", "neon"])
def test_networks_move_integers(target: str, cases: Cases) -> None:
    kernels = tw.compile_many([(spec_of(f, given), None, target) for f, given, _ in MOVES])
    for kernel, (_, given, right) in zip(kernels, MOVES, strict=True):
        got = kernel(*given)
        for one, wanted in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, right)),
                               strict=True):  # fmt: skip
            np.testing.assert_array_equal(one, wanted, err_msg=repr(kernel.spec))
            assert one.dtype == wanted.dtype
    assert kernels[0].verify(cases=2).bound == 0
    means = "native" if kernels[0].emulated is None else "qemu"
    cases.count(target, means, len(kernels))


def test_the_reference_of_a_move_is_exact() -> None:
    rounded = X.astype(np.float32).astype(np.float64).clip(-(2**31), 2**31 - 1).astype(np.int32)
    for function, given, right in MOVES[:5]:
        (found,) = expected_of(spec_of(function, given), {"x": X}, {}).values()
        assert not found.wrong(right).any()
        assert found.wrong(function_of(function, rounded)).any()
    (whole,) = expected_of(spec_of(summing, (A, B)), {"a": A, "b": B},
                           {}).values()  # fmt: skip
    assert not whole.wrong(summed(A, B)).any() and whole.wrong(summed(A, B) + 1).all()


def function_of(function: Callable[..., Any], x: Any) -> Any:
    """Return what a kernel makes of ``x``, whose numbers f32 can hold."""
    return tw.compile(spec_of(function, (x,)))(x)


def test_a_reduction_of_one_element_is_no_move() -> None:
    """The element is the result, but in f32; the input may be a result besides, and is moved."""

    def function(x: Any) -> Any:
        return nn.min(x, axis=-2), x, nn.sum(x, axis=-2), nn.max(x).astype("u8")

    x = numbers(1, 6)
    least, same, total, most = tw.compile(spec_of(function, (x,)))(x)
    for found in (least, total):
        np.testing.assert_array_equal(found, x[0].astype(np.float32))
    np.testing.assert_array_equal(same, x)
    assert most == min(max(int(x.max()), 0), 255)
    found = tw.compile(spec_of(lambda r: nn.max(r, keepdims=True), (R,)))(R)
    np.testing.assert_array_equal(found, R.astype(np.float32))
