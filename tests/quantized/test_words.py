"""Words of several elements: written one by one here, and taken apart again."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.spec.quantized import STORED

Array = np.ndarray[Any, Any]
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def words_of(numbers: Array, axis: int, bits: int, order: Any = None, word: int = 32) -> Array:
    """Numbers along ``axis`` in words, element ``order[i]`` of a word in its field i."""
    count = word // bits
    order = order or range(count)
    lines = np.moveaxis(numbers, axis, -1)
    packed = np.zeros((*lines.shape[:-1], lines.shape[-1] // count), f"u{word // 8}")
    for index in np.ndindex(*packed.shape):
        value = 0
        for field, element in enumerate(order):
            number = int(lines[(*index[:-1], index[-1] * count + element)])
            value |= (number & (1 << bits) - 1) << (bits * field)
        packed[index] = value
    return np.moveaxis(packed, -1, axis)


@pytest.mark.parametrize("name", [name for name in STORED if 8 % STORED[name].bits == 0])
def test_elements_stand_where_they_are_said_to(name: Any) -> None:
    rng, stored = np.random.default_rng(0), STORED[name]
    for word in (8, 32):
        count = word // stored.bits
        codes = stored.floating
        low, high = (0, (1 << stored.bits) - 1) if codes else (stored.low, stored.high)
        numbers = rng.integers(low, high, (2 * count, 3 * count), endpoint=True)
        for axis in (0, 1, -1):
            up = words_of(numbers, axis, stored.bits, word=word)
            down = words_of(numbers, axis, stored.bits, range(count)[::-1], word)
            order = tuple(map(int, rng.permutation(count)))
            mixed = words_of(numbers, axis, stored.bits, order, word)
            for got in (
                tw.unpack(up, name, axis=axis),
                tw.unpack(up.view(f"i{word // 8}"), name, axis=axis),
                tw.unpack(down, name, axis=axis, first="high"),
                tw.unpack(mixed, name, axis=axis, order=order),
            ):
                assert (got == numbers).all()
                assert got.dtype == (np.int8 if low < 0 else np.uint8)


def test_weights_of_pytorch_and_compressed_tensors() -> None:
    """Rows along K: two in a byte, the even one in the upper half; and words of s4 plus 8."""
    rng = np.random.default_rng(1)
    numbers, scales = rng.integers(0, 16, (5, 64)), rng.uniform(1, 2, (2, 5)).astype(np.float32)
    halves = (numbers[:, ::2] << 4 | numbers[:, 1::2]).astype(np.uint8)
    words = words_of(numbers, 1, 4).view(np.int32)
    form = tw.Quantized("u4", zero=8, block=32)
    right = (numbers.T - 8) * np.repeat(scales.astype(np.float64), 32, axis=0)
    for q in (tw.unpack(halves, "u4", axis=1, first="high"), tw.unpack(words, "u4", axis=1)):
        b = tw.QuantizedMatrix(form, q.T, scales)
        assert (b.dequantize() == right.astype(np.float32)).all()


@pytest.mark.parametrize("name", ["int2", "uint2", "int4", "uint4", "float4_e2m1fn"])
def test_arrays_of_ml_dtypes_are_elements(name: str) -> None:
    type_: Any = {"float4_e2m1fn": "f4_e2m1"}.get(name, name.replace("int", "s").replace("us", "u"))
    stored, dtype = STORED[type_], np.dtype(getattr(ml_dtypes, name))
    codes = np.arange(stored.low, stored.high + 1).repeat(16).reshape(-1, 8)
    q = codes.astype(np.uint8).view(dtype) if stored.values else codes.astype(np.int8).astype(dtype)
    form = tw.Quantized(type_, block=16)
    scales = np.full(form.blocks(len(q), 8), 0.5, np.float32)
    got = tw.QuantizedMatrix(form, q, scales).dequantize()
    assert (got == q.astype(np.float32) / 2).all()


# --- GPTQ and AWQ ------------------------------------------------------------------------------


def drawn(
    bits: int, k: int, n: int, groups: int, seed: int, group: int | None = None
) -> tuple[Array, Array, Array, Array]:
    """Elements, zero points, scales, and what they stand for; groups of ``group`` rows."""
    rng, group = np.random.default_rng(seed), group or k // groups
    q = rng.integers(0, 1 << bits, (k, n))
    zeros = rng.integers(0, 1 << bits, (groups, n))
    scales = rng.uniform(-1, 1, (groups, n)).astype(np.float16)
    right = np.empty((k, n), np.float32)
    for row, column in np.ndindex(k, n):
        at = row // group, column
        right[row, column] = np.float32(scales[at]) * np.float32(
            int(q[row, column]) - int(zeros[at])
        )
    return q, zeros, scales, right


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptq(bits: Any) -> None:
    for seed, (groups, version) in enumerate(((1, 1), (4, 1), (2, 2))):
        q, zeros, scales, right = drawn(bits, 128, 32, groups, seed)
        stored = zeros - 1 if version == 1 else zeros
        arrays = (
            words_of(q, 0, bits).view(np.int32),
            words_of(stored, 1, bits).view(np.int32),
            scales,
        )
        g_idx = np.arange(128) // (128 // groups)
        b = tw.from_gptq(*arrays, bits=bits, version=version, g_idx=g_idx.astype(np.int32))  # type: ignore[arg-type]
        assert b.format == tw.Quantized(
            b.format.type, scale="f16", zero=b.format.zero, block=128 // groups
        )
        assert b.format.zero == b.format.type
        assert (b.q == q).all() and (b.dequantize() == right).all()


def test_awq() -> None:
    q, zeros, scales, right = drawn(4, 64, 24, 2, 7)
    arrays = [words_of(numbers, 1, 4, AWQ).view(np.int32) for numbers in (q, zeros)]
    b = tw.from_awq(arrays[0], arrays[1], scales.astype(np.float32))
    assert b.format == tw.Quantized("u4", scale="f32", zero="u4", block=32)
    assert (b.dequantize() == right).all()


def test_one_zero_point_for_all_becomes_the_formats() -> None:
    q, zeros, scales, _ = drawn(4, 64, 8, 2, 8)
    zeros[:] = 8
    b = tw.from_gptq(words_of(q, 0, 4), words_of(zeros - 1, 1, 4), scales, zero=8)
    assert b.format == tw.Quantized("u4", scale="f16", zero=8, block=32) and b.zeros is None
    own = tw.from_gptq(words_of(q, 0, 4), words_of(zeros - 1, 1, 4), scales)
    assert (b.dequantize() == own.dequantize()).all()


def test_a_group_longer_than_a_block_becomes_several() -> None:
    q, zeros, scales, right = drawn(4, 8192, 8, 1, 9)
    b = tw.from_gptq(words_of(q, 0, 4), words_of(zeros, 1, 4), scales, version=2)
    assert b.format.block == 4096 and (b.dequantize() == right).all()


def test_rows_in_another_order_are_brought_in_order_as_the_message_says() -> None:
    q, zeros, scales, right = drawn(4, 64, 8, 2, 10)
    order = np.random.default_rng(0).permutation(64)
    g_idx = np.empty(64, np.int64)
    mixed = np.empty_like(q)
    for place, row in enumerate(order):
        mixed[row], g_idx[row] = q[place], place // 32
    words = words_of(mixed, 0, 4), words_of(zeros, 1, 4), scales
    with pytest.raises(ArgumentError, match=r"desc_act[\s\S]*argsort"):
        tw.from_gptq(*words, version=2, g_idx=g_idx)
    back = np.argsort(g_idx, kind="stable")
    b = tw.from_gptq(*words, version=2)
    b = tw.QuantizedMatrix(b.format, b.q[back], b.scales, b.zeros)
    a = np.random.default_rng(1).integers(-4, 4, (3, 64)).astype(np.float64)
    whole = np.empty_like(right)
    for row in range(64):
        whole[row] = np.float32(scales[g_idx[row]]) * (mixed[row] - zeros[g_idx[row]])
    assert np.allclose(a[:, back] @ b.dequantize(), a @ whole)


@pytest.mark.parametrize(
    ("k", "group"), [(960, 128), (192, 128), (448, 128), (2880, 128), (104, 32)]
)
def test_the_last_group_may_be_shorter(k: int, group: int) -> None:
    """Its length comes from g_idx or from group_size, in all three containers."""
    count = -(-k // group)
    q, zeros, scales, right = drawn(4, k, 8, count, k, group)
    g_idx = (np.arange(k) // group).astype(np.int32)
    words, points = words_of(q, 0, 4).view(np.int32), words_of(zeros, 1, 4).view(np.int32)
    gptq: Any = tw.from_gptq
    with pytest.raises(
        ArgumentError, match=rf"{count} groups for K = {k}[\s\S]*group_size={group}"
    ):
        gptq(words, points, scales, version=2)
    found = [
        gptq(words, points, scales, version=2, **said)
        for said in ({"g_idx": g_idx}, {"group_size": group}, {"g_idx": g_idx, "group_size": group})
    ]
    awq, awq_points = (words_of(numbers, 1, 4, AWQ).view(np.int32) for numbers in (q, zeros))
    found.append(tw.from_awq(awq, awq_points, scales, group_size=group))
    rows = words_of(q.T, 1, 4).view(np.int32)
    columns = (zeros.T - 8).astype(np.int8)
    read: Any = tw.from_compressed_tensors
    for said in ({"group_size": group}, {"weight_g_idx": g_idx}):
        found.append(read(rows, scales.T, (8, k), columns, **said))
    with pytest.raises(ArgumentError, match="group_size="):
        read(rows, scales.T, (8, k), columns)
    for b in found:
        assert b.format.block == group and (b.dequantize() == right).all()


def test_without_a_length_only_usual_groups_are_taken() -> None:
    """Of k / groups: 32, 64, 128 and K; 120 is none, though 8 groups divide 960."""
    for k, count in ((96, 3), (128, 2), (256, 2), (960, 1), (40, 1)):
        q, zeros, scales, right = drawn(4, k, 8, count, k)
        b = tw.from_gptq(words_of(q, 0, 4), words_of(zeros, 1, 4), scales, version=2)
        assert (b.dequantize() == right).all()
    for k, count in ((32, 2), (512, 2), (960, 8), (96, 2)):
        q, zeros, scales, right = drawn(4, k, 8, count, k)
        arrays = words_of(q, 0, 4), words_of(zeros, 1, 4), scales
        with pytest.raises(ArgumentError, match="do not say how long a group is"):
            tw.from_gptq(*arrays, version=2)
        b = tw.from_gptq(*arrays, version=2, group_size=k // count)
        assert (b.dequantize() == right).all()


def test_one_group_is_all_of_k_by_whatever_name() -> None:
    q, zeros, scales, right = drawn(4, 72, 8, 1, 11)
    arrays = words_of(q, 0, 4), words_of(zeros, 1, 4), scales
    for size in (None, -1, 72, 128):
        b = tw.from_gptq(*arrays, version=2, group_size=size)
        assert (b.dequantize() == right).all()


def test_long_groups_with_a_shorter_last_one_become_several_blocks() -> None:
    """The last group may have fewer blocks than the others."""
    q, zeros, scales, right = drawn(8, 1344, 4, 2, 12, 1024)
    b = tw.from_gptq(
        words_of(q, 0, 8), words_of(zeros, 1, 8), scales, bits=8, version=2, group_size=1024
    )
    assert b.format.block == 512 and b.scales.shape == (3, 4) and (b.dequantize() == right).all()


def test_groups_that_do_not_fit_are_refused() -> None:
    q, zeros, scales, _ = drawn(4, 96, 8, 3, 13)
    arrays = words_of(q, 0, 4), words_of(zeros, 1, 4), scales
    cases: Any = (
        ({"group_size": 64}, "another number of groups than group_size says"),
        ({"group_size": 0}, "must be the rows of a group"),
        ({"group_size": "32"}, "must be the rows of a group"),
        ({"group_size": True}, "must be the rows of a group"),
        ({"g_idx": np.arange(96) // 24}, "group 3 for row 72"),
        ({"g_idx": np.arange(96) // 32 - 1}, "group -1 for row 0"),
        ({"g_idx": np.repeat([0, 1, 2], [16, 48, 32])}, "groups of several lengths"),
        ({"g_idx": np.arange(96) // 32, "group_size": 64}, "another number of groups"),
    )
    for said, text in cases:
        with pytest.raises(ArgumentError, match=text):
            tw.from_gptq(*arrays, **said)


# --- compressed-tensors ------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_compressed_tensors(bits: Any) -> None:
    """Signed numbers with half of their range added, of 5 rows; words are filled up."""
    rng, middle, n = np.random.default_rng(bits), 1 << (bits - 1), 5
    for k, groups in ((96, 1), (96, 3), (77, 1)):
        q = rng.integers(-middle, middle, (n, k))
        zeros = rng.integers(-middle, middle, (n, groups))
        scales = rng.uniform(-1, 1, (n, groups)).astype(np.float16)
        room = np.zeros((n, -(-k * bits // 32) * 32 // bits), np.int64)
        room[:, :k] = q + middle
        words = words_of(room, 1, bits).view(np.int32)
        columns = np.zeros((32 // bits * -(-n * bits // 32), groups), np.int64)
        columns[:n] = zeros + middle
        packed = words_of(columns, 0, bits).view(np.int32)
        for given, own in ((None, 0 * zeros), (packed, zeros), (zeros.astype(np.int8), zeros)):
            shape = np.array([n, k])
            g_idx = np.arange(k) // (k // groups)
            b = tw.from_compressed_tensors(
                words, scales, shape, given, bits=bits, weight_g_idx=g_idx.astype(np.int32)
            )
            each = np.repeat(scales, k // groups, axis=1).astype(np.float32)
            right = each * (q - np.repeat(own, k // groups, axis=1)).astype(np.float32)
            assert (b.dequantize() == right.T).all()
            assert b.format.zero == (middle if given is None else b.format.type)
            assert b.format.block == (None if k == 77 else k // groups)


def test_what_compressed_tensors_has_not_is_refused() -> None:
    words, scales = np.zeros((8, 4), np.int32), np.ones((8, 1), np.float16)
    read: Any = tw.from_compressed_tensors
    cases: Any = (
        (lambda: read(words, scales, (8, 33)), "another shape than weight_shape says"),
        (lambda: read(words, scales, (8, 32, 1)), "weight_shape must be two positive sizes"),
        (lambda: read(words, scales, (8, 32), bits=3), "one of 2, 4, 8"),
        (lambda: read(words, scales[:, 0], (8, 32)), "weight_scale has the wrong shape"),
        (lambda: read(words, scales[:3], (8, 32)), "weight_scale has the wrong shape"),
        (
            lambda: read(words, scales, (8, 32), np.zeros((2, 1), np.int8)),
            "weight_zero_point has the wrong shape",
        ),
        (
            lambda: read(words, scales[:, [0, 0]], (8, 32), weight_g_idx=np.arange(32) % 2),
            "desc_act",
        ),
    )
    for make, said in cases:
        with pytest.raises(ArgumentError, match=said):
            make()


# --- what is refused ---------------------------------------------------------------------------


def test_what_does_not_fit_is_refused() -> None:
    words, zeros = np.zeros((8, 16), np.int32), np.zeros((2, 2), np.int32)
    scales = np.ones((2, 16), np.float16)
    gptq: Any = tw.from_gptq
    unpack: Any = tw.unpack
    cases: Any = (
        (lambda: gptq(words, zeros, scales, bits=3), "one of 2, 4, 8"),
        (lambda: gptq(words, zeros, scales, version=3), "one of 1, 2"),
        (lambda: gptq(words.astype(np.int64), zeros, scales), "qweight must be an array of words"),
        (lambda: gptq(words[None], zeros, scales), "qweight has the wrong shape"),
        (lambda: gptq(words, zeros[:, :1], scales), "qzeros has the wrong shape"),
        (lambda: gptq(words, zeros, scales.T), "scales has the wrong shape"),
        (lambda: gptq(words, zeros, words), "scales must be floating point"),
        (
            lambda: gptq(words[:7], np.zeros((3, 2), np.int32), np.ones((3, 16), "f2")),
            "group_size=",
        ),
        (lambda: gptq(words, zeros, scales, g_idx=np.zeros(3)), "must be the group of each row"),
        (lambda: gptq(words, zeros, scales, zero=8), "1 of group 0, column 0"),
        (lambda: tw.from_awq(words, zeros, scales), "scales has the wrong shape"),
        (lambda: unpack(words, "u7"), "unknown type of stored elements"),
        (lambda: unpack(words, "u3"), "do not fill words"),
        (lambda: unpack(words, "u4", axis=2), "axis is none of the packed array's"),
        (lambda: unpack(words, "u4", first="middle"), "one of low, high"),
        (lambda: unpack(words, "u4", order=(0, 1)), "each once"),
        (lambda: unpack([[1]], "u4"), "got: list"),
    )
    for make, said in cases:
        with pytest.raises(ArgumentError, match=said):
            make()
