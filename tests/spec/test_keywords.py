"""Arguments that public functions do not have: errors of ours that name the right spelling."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError, SpecError, TilewrightError
from tilewright.keywords import _ELSEWHERE, _MEANT, _plain

SPEC = tw.Gemm(4, 4, 4)
#: tilewright, of whose calls a type checker says nothing.
UNTYPED: Any = tw
#: What other objects return, and errors: nobody makes them by hand.
RESULTS = {
    "Calibrated",
    "Expression",
    "Kernel",
    "Library",
    "Network",
    "NetworkFunction",
    "PackedB",
    "PackedWeights",
    "Profile",
    "StageTime",
    "Timing",
    "Verification",
}


def public() -> list[str]:
    """Every public name that a user calls with arguments."""
    found = []
    for name in tw.__all__:
        value = getattr(tw, name)
        error = isinstance(value, type) and issubclass(value, Exception)
        if callable(value) and not inspect.ismodule(value) and not error and name not in RESULTS:
            found.append(name)
    return found


@pytest.mark.parametrize("name", public())
def test_an_argument_that_there_is_not_is_named(name: str) -> None:
    called = getattr(tw, name)
    given = [p for p in inspect.signature(called).parameters.values() if p.default is p.empty]
    arrays = [np.ones((2, 2), np.float32) for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
    with pytest.raises((TilewrightError,)) as caught:
        called(*arrays, no_such_argument=1)
    assert "no_such_argument" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "kind", "hint"),
    [
        (lambda: UNTYPED.Gemm(4, 4, 4, dtype="f32"), SpecError, 'a="bf16"'),
        (lambda: UNTYPED.Gemm(4, 4, 4, trans_b=True), SpecError, 'b=tw.Matrix("f32", order="F")'),
        (lambda: UNTYPED.Gemm(4, 4, 4, bias=np.ones(4)), SpecError, "epilogue=tw.acc + bias"),
        (lambda: UNTYPED.Gemm(4, 4, 4, tile=(4, 4)), SpecError, "tw.Schedule(tile=...)"),
        (
            lambda: UNTYPED.Gemm(4, 4, 4, target="avx2"),
            SpecError,
            "tw.compile(spec, schedule, target=",
        ),
        (lambda: UNTYPED.Gemm(4, 4, K=4), SpecError, "k="),
        (lambda: UNTYPED.Gemm(4, 4, 4, epilog=tw.acc), SpecError, "epilogue="),
        (lambda: UNTYPED.Schedule(unroll=4), ScheduleError, "k_unroll=4"),
        (lambda: UNTYPED.Schedule(num_threads=4), ScheduleError, "threads=4"),
        (lambda: UNTYPED.Schedule(kc=256), ScheduleError, 'block={"m": 48, "k": 256}'),
        (lambda: UNTYPED.compile(SPEC, arch="x"), tw.ArgumentError, 'target="host"'),
        (lambda: UNTYPED.compile(SPEC, threads=2), tw.ArgumentError, "tw.Schedule(threads=...)"),
        (lambda: UNTYPED.tune(SPEC, n_trials=9), tw.ArgumentError, "seconds=60"),
        (lambda: UNTYPED.library("a", {}, target="avx2"), tw.ArgumentError, "targets="),
        (lambda: UNTYPED.harness(SPEC, runs=3), tw.ArgumentError, "cases=2"),
        (lambda: UNTYPED.Quantized("s4", group_size=32), SpecError, "block=32"),
        (lambda: UNTYPED.Operand("x", axis=0), SpecError, 'per="column"'),
        (lambda: UNTYPED.Packed("f32", block=64), SpecError, "nb=64"),
        (lambda: UNTYPED.Strided(4, stride_a=16), SpecError, "a=, b= and c="),
        (lambda: UNTYPED.dim("m", multiple=16), SpecError, "multiple_of=16"),
        (
            lambda: UNTYPED.matmul(np.eye(2), np.eye(2), num_threads=2),
            tw.ArgumentError,
            "threads=4",
        ),
        (lambda: UNTYPED.matmul(np.eye(2), np.eye(2), trans_b=True), tw.ArgumentError, "b.T"),
    ],
)
def test_a_likely_guess_is_told_the_right_spelling(
    call: Callable[[], Any], kind: type[TilewrightError], hint: str
) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, TypeError), "as Python's own"
    assert hint in str(caught.value.hint) and caught.value.where is not None
    assert __file__.rpartition("/")[2] in caught.value.where
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_arguments_too_many_too_few_and_twice() -> None:
    with pytest.raises(SpecError, match="Gemm has 3 arguments by position") as caught:
        UNTYPED.Gemm(4, 4, 4, "f32")
    assert "by name" in str(caught.value)
    with pytest.raises(SpecError, match="Gemm lacks n and k"):
        UNTYPED.Gemm(4)
    with pytest.raises(SpecError, match="Gemm is given m twice"):
        UNTYPED.Gemm(4, 4, 4, m=4)
    with pytest.raises(tw.ArgumentError, match="compile lacks spec"):
        UNTYPED.compile()


def test_a_type_error_of_what_was_called_stays_what_it_is() -> None:
    with pytest.raises(TypeError, match="cannot be counted") as caught:
        tw.compile_many(_Uncountable())
    assert not isinstance(caught.value, TilewrightError)


class _Uncountable:
    def __iter__(self) -> Any:
        raise TypeError("cannot be counted")


def test_matmul_says_what_it_lacks() -> None:
    """Its calls are not wrapped, which would take a fifth of the time of a small product."""
    a, matmul = np.ones((2, 2), np.float32), UNTYPED.matmul
    for call, said in (
        (lambda: matmul(a), r"matmul lacks b\n.*expected: matmul\(a, b, out, alpha"),
        (lambda: matmul(b=a), "matmul lacks a\n"),
        (matmul, "matmul lacks a and b"),
        (lambda: matmul(a, beta=2, out=a), "matmul lacks b"),
        (lambda: matmul(a, a, a, 2), "matmul has 3 arguments by position\n.*4, the first .* 2"),
    ):
        with pytest.raises(tw.ArgumentError, match=said):
            call()
    assert "_more" not in inspect.signature(tw.matmul).parameters


def test_each_guess_is_of_a_function_that_lacks_it() -> None:
    for name, guesses in _MEANT.items():
        parameters = inspect.signature(getattr(tw, name)).parameters
        assert not {*map(_plain, parameters)} & {*map(_plain, guesses)}, name
    assert all(inspect.signature(getattr(tw, name)) for name in _ELSEWHERE)


@pytest.mark.parametrize(
    ("type_", "hint"),
    [
        ("f8", '"f64" is numpy\'s f8'),
        ("i8", '"s8" has 8 bits'),
        ("f4", '"f32"'),
        ("i4", '"s32"'),
        (float, '"f64"'),
        ("fp16", '"f16"'),
        ("torch.bfloat16", '"bf16"'),
        ("e4m3", '"f8_e4m3"'),
        ("int4", "tw.Quantized"),
    ],
)
def test_a_type_that_others_call_otherwise(type_: Any, hint: str) -> None:
    with pytest.raises(SpecError, match="unknown element type") as caught:
        tw.Gemm(4, 4, 4, a=type_)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("sve", "sve128, sve256, sve512"),
        ("rvv+zvfh", "rvv128, rvv256"),
        ("AVX2", "'avx2'"),
        ("avx-512", "'avx512'"),
        ("avx512vnni", "'avx512+vnni'"),
        ("native", "'host'"),
        ("aarch64", "'neon'"),
    ],
)
def test_a_target_that_others_call_otherwise(target: str, hint: str) -> None:
    with pytest.raises(tw.TargetError, match="unknown target") as caught:
        tw.compile(SPEC, target=target)
    assert hint in str(caught.value.hint)
