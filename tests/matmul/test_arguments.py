"""What ``tw.matmul`` and ``tw.pack`` refuse: every argument of every wrong kind, by our errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    TargetError,
    TilewrightError,
)

Array = np.ndarray[Any, Any]
ONES = np.ones((3, 4), "f4"), np.ones((4, 5), "f4")


class Strange:
    """What answers every question by an error."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


#: Something of each kind: what a parameter takes is left out where it is tried.
ANYTHING: dict[str, Any] = {
    "None": None, "True": True, "np.True_": np.True_, "int": 2, "float": 2.5, "complex": 1j,
    "Decimal": Decimal(1), "Fraction": Fraction(1), "str": "2", "bytes": b"2", "list": [1],
    "tuple": (1, 2), "dict": {1: 2}, "set": {1}, "function": len, "type": np.float32,
    "vector": np.ones(2), "matrix": np.ones((4, 4), "f4"), "expression": tw.acc + 1,
    "object": object(), "strange": Strange(), "bfloat16": ml_dtypes.bfloat16(2),
}  # fmt: skip
_NUMBERS = {"int", "float", "bfloat16"}
_TAKEN: dict[str, set[str]] = {
    "alpha": _NUMBERS,
    "beta": _NUMBERS,
    "epilogue": {"None", "expression", "int", "float", "Fraction", "bfloat16"},
    "threads": {"None", "int"},
    "deterministic": {"True", "np.True_"},
    "target": set(),
}


@pytest.mark.parametrize("parameter", _TAKEN)
@pytest.mark.parametrize("kind", ANYTHING)
def test_every_option_of_a_wrong_kind(parameter: str, kind: str) -> None:
    if kind in _TAKEN[parameter] or (parameter, kind) == ("target", "str"):
        return
    for more in ({}, {"alpha": 2.5}, {"threads": 2}):
        given: Any = {**more, parameter: ANYTHING[kind]}
        with pytest.raises(ArgumentTypeError) as caught:
            tw.matmul(*ONES, **given)
        assert parameter in caught.value.problem
        assert caught.value.got and caught.value.expected


def test_options_of_the_right_kind_and_a_wrong_value() -> None:
    wrong: tuple[Any, ...] = (0, -1, 4097, np.int64(0))
    for threads in wrong:
        with pytest.raises(ArgumentValueError, match="threads is how many"):
            tw.matmul(*ONES, threads=threads)
    with pytest.raises(TargetError, match="unknown target"):
        tw.matmul(*ONES, target="avx3")
    with pytest.raises(ArgumentValueError, match="alpha is too large"):
        tw.matmul(*ONES, alpha=10**400)


def test_options_that_look_like_the_usual_ones_are_refused_all_the_same() -> None:
    """What equals 1, 0, or False: C's own checks come after."""
    tw.matmul(*ONES)
    tw.matmul(*ONES, deterministic=True)
    usual: tuple[dict[str, Any], ...] = (
        {"alpha": True}, {"beta": False}, {"alpha": 1 + 0j}, {"deterministic": 0},
        {"deterministic": 1}, {"deterministic": None}, {"threads": 1.0}, {"threads": True},
    )  # fmt: skip
    for given in usual:
        with pytest.raises(ArgumentTypeError):
            tw.matmul(*ONES, **given)


@pytest.mark.twice
def test_an_epilogue_that_reads_out_needs_one() -> None:
    """Neither a first call nor one that C knows makes an array of which nothing is set."""
    a, b = ONES
    epilogue = tw.where(tw.lt(tw.acc, tw.dst), tw.acc, 0.0) + tw.dst
    for operand in (b, tw.pack(b)):
        for more in ({}, {"alpha": 2}):
            with pytest.raises(ArgumentTypeError, match=r"(?s)uses tw\.dst.*no out.*out="):
                tw.matmul(a, operand, epilogue=epilogue, **more)  # type: ignore[call-overload]
        out = np.full((3, 5), 7, "f4")
        assert tw.matmul(a, operand, out, epilogue=epilogue) is out
        np.testing.assert_array_equal(out, 11)
        with pytest.raises(ArgumentTypeError, match=r"(?s)uses tw\.dst.*no out.*out="):
            tw.matmul(a, operand, epilogue=epilogue)


@pytest.mark.parametrize("parameter", ["a", "b", "out"])
@pytest.mark.parametrize("kind", ANYTHING)
def test_every_array_of_a_wrong_kind(parameter: str, kind: str) -> None:
    if (parameter, kind) in (("out", "None"), ("a", "matrix"), ("b", "matrix")):
        return
    given: dict[str, Any] = dict(zip(("a", "b"), ONES, strict=True))
    with pytest.raises(ArgumentError) as caught:
        tw.matmul(**{**given, parameter: ANYTHING[kind]})
    assert caught.value.got and caught.value.expected


@pytest.mark.parametrize("kind", ANYTHING)
def test_everything_of_a_wrong_kind_that_is_packed(kind: str) -> None:
    wrong = ANYTHING[kind]
    if kind != "matrix":
        with pytest.raises(ArgumentError) as caught:
            tw.pack(wrong)
        assert caught.value.got and caught.value.expected
    if kind not in ("None", "type"):
        with pytest.raises(ArgumentTypeError, match="a must be the type"):
            tw.pack(ONES[1], a=wrong)
    with pytest.raises(TargetError if kind == "str" else ArgumentTypeError):
        tw.pack(ONES[1], target=wrong)


@pytest.mark.parametrize(
    ("dtype", "cure"),
    [
        (">f4", r"astype\('<f4'\)"), (">i2", r"astype\('<i2'\)"), ("c8", r"a\.real.*a\.imag"),
        ("i8", r"np\.matmul.*2\*\*53"), ("u8", r"np\.matmul"), ("i4", r"astype\(np\.float64\)"),
        ("?", r"astype\(np\.uint8\)"), (ml_dtypes.float8_e5m2fnuz, r"astype\(np\.float32\)"),
        (">c8", r"a\.real.*a\.imag"), ("O", None), ("U3", None), ("M8[s]", None), ("i4,f4", None),
    ],
)  # fmt: skip
def test_what_is_told_to_try_loses_nothing(dtype: Any, cure: str | None) -> None:
    wrong = np.zeros((3, 4), dtype)
    with pytest.raises(
        ArgumentTypeError, match=r"a has a type that tw\.matmul does not multiply"
    ) as caught:
        tw.matmul(wrong, ONES[1])
    said = caught.value.hint
    assert (said is None) == (cure is None)
    assert cure is None or re.search(cure, said or "")
    if cure is not None and cure.startswith("astype"):
        converted = eval(said.partition(" of a tensor")[0].split(",")[0], {"a": wrong, "np": np})  # type: ignore[union-attr]  # noqa: S307
        assert tw.matmul(converted, np.zeros((4, 2), converted.dtype)).shape == (3, 2)


def test_results_beyond_all_memory() -> None:
    many = np.zeros((2**33, 0), "f4")
    for _ in range(2):
        with pytest.raises(ArgumentValueError, match="result is too large"):
            tw.matmul(many, many.T)
        tw.matmul(many[:3], many[:5].T)


# -- hints that help ------------------------------------------------------------------------------


def _hint(call: Callable[[], object], problem: str) -> str:
    with pytest.raises(TilewrightError, match=problem) as caught:
        call()
    return caught.value.hint or ""


def test_a_packed_matrix_in_the_wrong_place_is_told_its_place() -> None:
    a, b = ONES
    packed = tw.pack(b)
    kernel = tw.compile(tw.Gemm(3, 5, 4))
    for call in (lambda: tw.matmul(packed, a), lambda: kernel(a, packed)):
        assert "tw.matmul(a, packed)" in _hint(call, "must be a numpy array")
    for call in (lambda: a @ packed, lambda: packed @ a):
        assert _hint(call, "@ does not multiply") == "tw.matmul(a, packed)"
    assert (tw.matmul(a, packed) == a @ b).all()


@pytest.mark.parametrize("type_", ["f32", "bf16"])
def test_the_hint_to_pack_keeps_the_type(type_: Any) -> None:
    kernel = tw.compile(tw.Gemm(3, 5, 4, a=type_, b=type_))
    hint = _hint(lambda: kernel.pack_b(ONES[1]), "takes no packed B")
    assert hint == f'tw.Gemm(..., b=tw.Packed("{type_}"))'


def test_no_result_goes_into_a_copy() -> None:
    fixed = np.zeros((3, 5), "f4")
    fixed.flags.writeable = False
    kernel = tw.compile(tw.Gemm(3, 5, 4))
    for call in (lambda: tw.matmul(*ONES, out=fixed), lambda: kernel(*ONES, fixed)):
        hint = _hint(call, "read-only")
        assert "writable" in hint and "copy" not in hint


def test_operands_of_the_epilogue_are_asked_for_as_matmul_takes_them() -> None:
    bias = tw.Operand("bias", "f32", per="column")
    shifted = tw.relu(tw.acc + bias)
    usage = "tw.matmul(a, b, epilogue=..., bias=array of shape (n,))"
    for given, problem in (
        (dict[str, Any](), "bias is missing"),
        ({"bias": np.ones(5, "f4"), "other": 1}, "this product has no argument 'other'"),
    ):
        with pytest.raises(ArgumentTypeError, match=problem) as caught:
            tw.matmul(*ONES, epilogue=shifted, **given)
        assert caught.value.expected == usage
    hint = _hint(lambda: tw.matmul(*ONES, bias=np.ones(5, "f4")), "no argument 'bias'")
    assert hint.startswith("epilogue=")
    with pytest.raises(ArgumentError, match=r"\(5,\): n is 5, from b\.shape\[1\]"):
        tw.matmul(*ONES, epilogue=shifted, bias=np.ones(3, "f4"))
