"""Arguments of what makes quantized matrices, of every wrong kind: errors of this package."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    TilewrightError,
)

Q4 = tw.Quantized("u4", scale="f16", zero=8, block=32)
MATRIX = tw.quantize(np.ones((32, 8), np.float32), Q4)
WORDS = np.full((4, 8), 0x76543210, np.int32)
ZEROS, SCALES = np.full((1, 1), 0x77777777, np.int32), np.full((1, 8), 0.5, np.float16)


class Unreadable:
    """What says that it is an array, and raises when it is asked for one."""

    def __array__(self) -> Any:
        raise RuntimeError("no array")


#: What is wrong nearly everywhere; where it is right, no error is right too.
WRONG: tuple[Any, ...] = (
    None, True, 0, -1, 3, 2**70, 1.5, float("nan"), "x", "", b"xy", [], [1], (), (1, 2), {}, set(),
    object(), lambda: 0, np.float32, Unreadable(), np.array(5, np.int32), np.float32(3),
    np.zeros(0, np.int32), np.zeros((0, 0), np.int32), np.zeros((0, 4), np.int32),
    np.zeros((4, 0), np.int32), np.zeros(3, np.float32), np.zeros((2, 2)), np.zeros((2, 2), object),
    np.zeros((2, 2, 2), np.int32), np.zeros((2, 2), complex), np.zeros((2, 2), "U3"),
    np.zeros((2, 2), bool), np.zeros((2, 2), ">i4"), np.zeros((2, 2), "M8[s]"),
    np.zeros((0, 4), np.float16), np.zeros((4, 0), np.float16), np.zeros((1, 0, 0), np.float32),
    np.ones((2, 8), np.int32)[::-1, ::2], np.ma.zeros((2, 2)),
)  # fmt: skip
CALLS: dict[str, tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = {
    "from_gguf": (tw.from_gguf, (tw.to_gguf(MATRIX, "q4_0"), "q4_0", (32, 8)), {}),
    "to_gguf": (tw.to_gguf, (MATRIX, "q4_0"), {}),
    "from_gptq": (
        tw.from_gptq,
        (WORDS, ZEROS, SCALES),
        {"bits": 4, "version": 1, "g_idx": None, "group_size": None, "zero": None},
    ),
    "from_awq": (
        tw.from_awq,
        (np.zeros((32, 1), np.int32), ZEROS, SCALES),
        {"group_size": None, "zero": None},
    ),
    "from_compressed_tensors": (
        tw.from_compressed_tensors,
        (np.zeros((8, 4), np.int32), SCALES.T, (8, 32), None),
        {"bits": 4, "weight_g_idx": None, "group_size": None},
    ),
    "unpack": (tw.unpack, (WORDS, "u4"), {"axis": 0, "first": "low", "order": None}),
    "quantize": (tw.quantize, (np.ones((32, 2), np.float32), Q4), {"method": "nearest"}),
    "matrix": (tw.QuantizedMatrix, (Q4, MATRIX.q, MATRIX.scales, None), {}),
    "with zeros": (
        tw.QuantizedMatrix,
        (tw.Quantized("u4", scale="f16", zero="u4", block=32), MATRIX.q, SCALES, MATRIX.q[:1]),
        {},
    ),
    "format": (tw.Quantized, ("u4",), {"scale": "f32", "zero": 0, "block": None}),
    "quantized A": (tw.Quantize, ("f32",), {"to": "s8", "per": "row", "zero": None}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_an_error_of_this_package(name: str) -> None:
    """Of every argument: types, shapes, empty arrays; and what is made of it says what was got."""
    call, given, named = CALLS[name]
    call(*given, **named)
    for slot in (*range(len(given)), *named):
        errors: list[tuple[object, TilewrightError]] = []
        for wrong in WRONG:
            positional = [wrong if slot == index else value for index, value in enumerate(given)]
            keywords = {key: wrong if slot == key else value for key, value in named.items()}
            try:
                call(*positional, **keywords)
            except TilewrightError as error:
                errors.append((wrong, error))
        assert len(errors) > len(WRONG) / 2, slot
        unsaid = [wrong for wrong, error in errors if not error.got]
        assert all(wrong is None or repr(wrong) == "''" for wrong in unsaid), unsaid


def test_formats_have_the_names_of_containers() -> None:
    w = np.random.default_rng(0).standard_normal((32, 8), np.float32)
    for name, form in (
        ("q4_0", Q4),
        ("Q4_0", Q4),
        ("q8_0", tw.Quantized("s8", scale="f16", block=32)),
    ):
        found, right = tw.quantize(w, name), tw.quantize(w, form)
        assert found.format == form
        assert (found.q == right.q).all()
        assert (found.scales == right.scales).all()
    for wrong, kind in (("q4", ArgumentValueError), (4, ArgumentTypeError)):
        with pytest.raises(kind, match=r"q4_0, q4_1(?s:.*)nvfp4"):
            tw.quantize(w, wrong)  # type: ignore[arg-type]


def test_arrays_with_masked_elements_are_refused() -> None:
    def masked(array: Any) -> Any:
        return np.ma.masked_array(array, np.zeros(array.shape, bool))

    cases: Any = (
        (lambda: tw.quantize(masked(np.ones((32, 2), np.float32)), Q4), r"w\.filled"),
        (lambda: tw.from_gptq(masked(WORDS), ZEROS, SCALES), r"qweight\.filled"),
        (lambda: tw.from_gptq(WORDS, ZEROS, masked(SCALES)), r"scales\.filled"),
        (lambda: tw.QuantizedMatrix(Q4, masked(MATRIX.q), MATRIX.scales), r"q\.filled"),
        (lambda: tw.QuantizedMatrix(Q4, MATRIX.q, masked(MATRIX.scales)), r"scales\.filled"),
    )
    for make, said in cases:
        with pytest.raises(ArgumentError, match=said):
            make()


def test_paths_that_are_none_are_refused() -> None:
    for path in (None, 3.5, b"name", ["name"]):
        with pytest.raises(ArgumentError, match="path must name a file"):
            tw.PackedMatrix.load(path)  # type: ignore[arg-type]


def test_names_of_gguf_are_taken_as_its_package_has_them() -> None:
    """In upper case, as members of an enum, and shapes as arrays."""

    class Type(IntEnum):
        Q4_0 = 2

    data = tw.to_gguf(MATRIX, Type.Q4_0)
    for type_ in ("q4_0", "Q4_0", Type.Q4_0):
        for shape in ((32, 8), [32, 8], np.array([32, 8], np.uint64)):
            b = tw.from_gguf(data, type_, shape)
            assert b.format == Q4 and (b.q == MATRIX.q).all()
    with pytest.raises(ArgumentError, match=r"unknown type of a GGUF tensor[\s\S]*got: list: \[\]"):
        tw.from_gguf(data, [], (32, 8))


def test_messages_name_the_array_of_a_wrong_shape() -> None:
    cases: Any = (
        (lambda: tw.quantize(np.ones(4, np.float32), Q4), "w has the wrong shape"),
        (lambda: tw.QuantizedMatrix(Q4, MATRIX.q[0], SCALES), "q has the wrong shape"),
        (lambda: tw.QuantizedMatrix(Q4, MATRIX.q, SCALES.T), "scales have the wrong shape"),
        (lambda: tw.from_gptq(WORDS, ZEROS, SCALES.T), "scales has the wrong shape"),
        (lambda: tw.from_gptq(WORDS[:0], ZEROS, SCALES), "qweight has no elements"),
        (lambda: tw.unpack(WORDS, "u4", axis="x"), "axis is none"),  # type: ignore[arg-type]
    )
    for make, said in cases:
        with pytest.raises(ArgumentError, match=said):
            make()
