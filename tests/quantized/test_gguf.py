"""GGUF's blocks: element by element, by hand, and as the package ``gguf`` reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime.quantized.gguf import CONTAINERS

Array = np.ndarray[Any, Any]
#: The table of ggml's ``kvalues_iq4nl``.
IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
#: What the codes of f4_e2m1 stand for.
F4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
#: Where numbers of f16 stand in a block, if not at its beginning alone.
HALVES = {
    **dict.fromkeys(("q4_1", "q5_1", "q4_K", "q5_K"), (0, 2)),
    "q2_K": (80, 82), "q3_K": (108,), "q6_K": (208,),
}  # fmt: skip
WRITTEN = [name for name, container in CONTAINERS.items() if container.write is not None]


def rows_of(name: str, n: int, k: int, seed: int) -> Array:
    """Random bytes; scales of f16 and f8 are no NaN, and those of e8m0 neither."""
    rng, container = np.random.default_rng(seed), CONTAINERS[name]
    rows = rng.integers(0, 256, (n * k // container.elements, container.nbytes)).astype(np.uint8)
    for start in HALVES.get(name, (0,)):
        numbers = rng.uniform(-4, 4, len(rows)).astype("<f2")
        numbers[rng.random(len(rows)) < 0.1] = 0
        rows[:, start : start + 2] = numbers.view(np.uint8).reshape(-1, 2)
    if name == "mxfp4":
        rows[:, 0] = rng.integers(0, 240, len(rows))
    if name == "nvfp4":
        rows[:, :4] = rng.integers(0, 127, (len(rows), 4))
    return rows.reshape(n, -1)


# --- one element at a time ---------------------------------------------------------------------


def half(block: bytes, at: int) -> float:
    return float(np.frombuffer(block, "<f2", 1, at)[0])


def nibble(block: bytes, start: int, i: int, half_run: int) -> int:
    """Element i of runs of nibbles: first the lower ones of ``half_run`` bytes, then the upper."""
    run, place = divmod(i, 2 * half_run)
    byte = block[start + run * half_run + place % half_run]
    return byte >> 4 if place >= half_run else byte & 15


def q2_k(block: bytes, i: int) -> float:
    packed, run = block[i // 16], i // 128
    q = block[16 + 32 * run + i % 32] >> (2 * (i % 128 // 32)) & 3
    return half(block, 80) * (packed & 15) * q - half(block, 82) * (packed >> 4)


def q3_k(block: bytes, i: int) -> float:
    packed, sub, run = block[96:108], i // 16, i // 128
    low = packed[sub % 8] >> (4 if sub >= 8 else 0) & 15
    scale = (low | (packed[8 + sub % 4] >> (2 * (sub // 4)) & 3) << 4) - 32
    q = block[32 + 32 * run + i % 32] >> (2 * (i % 128 // 32)) & 3
    return half(block, 108) * scale * (q + 4 * (block[i % 32] >> (i // 32) & 1) - 4)


def q5_1(block: bytes, i: int) -> float:
    fifth = int.from_bytes(block[4:8], "little") >> i & 1
    return half(block, 0) * (nibble(block, 8, i, 16) + 16 * fifth) + half(block, 2)


def q4_k(block: bytes, i: int) -> float:
    scale, least = six_bits(block, i)
    return scale * nibble(block, 16, i, 32) - least


def q5_k(block: bytes, i: int) -> float:
    scale, least = six_bits(block, i)
    return scale * (nibble(block, 48, i, 32) + 16 * (block[16 + i % 32] >> (i // 32) & 1)) - least


def six_bits(block: bytes, i: int) -> tuple[float, float]:
    packed, sub = block[4:16], i // 32
    if sub < 4:
        scale, least = packed[sub] & 63, packed[sub + 4] & 63
    else:
        scale = packed[sub + 4] & 15 | (packed[sub - 4] >> 6) << 4
        least = packed[sub + 4] >> 4 | (packed[sub] >> 6) << 4
    return half(block, 0) * scale, half(block, 2) * least


def q6_k(block: bytes, i: int) -> float:
    run, place = divmod(i, 128)
    low = nibble(block, 0, i, 64)
    high = block[128 + 32 * run + place % 32] >> (2 * (place // 32)) & 3
    scale = int(np.int8(np.uint8(block[192 + i // 16])))
    return half(block, 208) * scale * ((low | high << 4) - 32)


def q5_0(block: bytes, i: int) -> float:
    fifth = int.from_bytes(block[2:6], "little") >> i & 1
    return half(block, 0) * (nibble(block, 6, i, 16) + 16 * fifth - 16)


def nvfp4(block: bytes, i: int) -> float:
    exponent, mantissa = divmod(block[i // 16], 8)
    scale = 2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else mantissa * 2.0**-9
    return scale * F4[nibble(block, 4, i, 8)]


ELEMENTS: dict[str, Callable[[bytes, int], float]] = {
    "q4_0": lambda block, i: half(block, 0) * (nibble(block, 2, i, 16) - 8),
    "q4_1": lambda block, i: half(block, 0) * nibble(block, 4, i, 16) + half(block, 2),
    "q5_0": q5_0,
    "q5_1": q5_1,
    "q8_0": lambda block, i: half(block, 0) * int(np.int8(np.uint8(block[2 + i]))),
    "q2_K": q2_k,
    "q3_K": q3_k,
    "q4_K": q4_k,
    "q5_K": q5_k,
    "q6_K": q6_k,
    "iq4_nl": lambda block, i: half(block, 0) * IQ4_NL[nibble(block, 2, i, 16)],
    "mxfp4": lambda block, i: 2.0 ** (block[0] - 127) * F4[nibble(block, 1, i, 16)],
    "nvfp4": nvfp4,
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_each_element_is_what_its_bytes_say(name: str) -> None:
    container, n = CONTAINERS[name], 3
    k = 2 * container.elements
    rows = rows_of(name, n, k, 1)
    got = tw.from_gguf(rows, name, (k, n)).dequantize()
    for column in range(n):
        line = rows[column].tobytes()
        for i in range(k):
            at, place = divmod(i, container.elements)
            block = line[at * container.nbytes : (at + 1) * container.nbytes]
            assert got[i, column] == np.float32(ELEMENTS[name](block, place)), (i, column)


def test_a_block_by_hand() -> None:
    """0.5 is 0x3800 in f16; element i in the lower half of byte i, element i + 16 in the upper."""
    block = bytes([0x00, 0x38, 0x90, *[0x88] * 15])
    got = tw.from_gguf(block, "q4_0", (32, 1)).dequantize()[:, 0]
    assert got[0] == -4 and got[16] == 0.5 and not got[[*range(1, 16), *range(17, 32)]].any()


@pytest.mark.parametrize("name", CONTAINERS)
def test_bits_are_those_of_the_package(name: str) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    kind = getattr(gguf.GGMLQuantizationType, name.upper(), None)
    if kind is None:
        pytest.skip(f"this gguf has no {name}")
    for seed, (n, blocks) in enumerate(((1, 1), (7, 3), (64, 5))):
        k = blocks * CONTAINERS[name].elements
        rows = rows_of(name, n, k, seed)
        right = gguf.quants.dequantize(rows, kind).reshape(n, k).T
        got = tw.from_gguf(rows, name, (k, n)).dequantize()
        assert (got.view(np.uint32) == right.astype(np.float32).view(np.uint32)).all()


def test_scales_that_are_nan_stay_so() -> None:
    """The package ``gguf`` reads 255 of e8m0 as 2**128; of nvfp4 127 as 0, and 255 as 480."""
    mxfp4, nvfp4 = np.full((1, 17), 0x21, np.uint8), np.full((1, 36), 0x21, np.uint8)
    for code, right in ((255, np.nan), (254, 2.0**126)):
        mxfp4[0, 0] = code
        got = tw.from_gguf(mxfp4, "mxfp4", (32, 1)).dequantize()[:16, 0]
        assert np.array_equal(got, np.full(16, right, np.float32), equal_nan=True)
    for code, right in ((127, np.nan), (255, np.nan), (126, 224.0)):  # no sign, whatever its bit
        nvfp4[0, :4] = code
        got = tw.from_gguf(nvfp4, "nvfp4", (64, 1)).dequantize()[:8, 0]
        assert np.array_equal(got, np.full(8, right, np.float32), equal_nan=True)
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    kinds = gguf.GGMLQuantizationType
    mxfp4[0, 0] = 255
    nvfp4[0, :4] = 127, 255, 127, 255
    with np.errstate(over="ignore"):
        assert gguf.quants.dequantize(mxfp4, kinds.MXFP4)[0, 0] == 2.0**127
    if hasattr(kinds, "NVFP4"):
        found = gguf.quants.dequantize(nvfp4, kinds.NVFP4)[0, ::16]
        assert found.tolist() == [0, 240, 0, 240]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_was_read(name: str) -> None:
    k = 2 * CONTAINERS[name].elements
    rows = rows_of(name, 10, k, 5)
    several = tw.from_gguf(rows, name, (2, k, 5))
    assert (tw.to_gguf(several, name) == rows.reshape(2, 5, -1)).all()
    one = tw.from_gguf(rows.tobytes(), name, (k, 10))
    assert (tw.to_gguf(one, name) == rows).all()
    assert (several.q == [one.q[:, :5], one.q[:, 5:]]).all()


def test_a_kernel_takes_what_was_read() -> None:
    rows, n, k = rows_of("q4_K", 6, 256, 3), 6, 256
    b = tw.from_gguf(rows, "q4_K", (k, n))
    spec = tw.Gemm(2, n, k, a=tw.Quantize("f32", per=("row", 32)), b=tw.Packed(b.format))
    kernel = tw.compile(spec, target="scalar")
    a = np.zeros((2, k), np.float32)
    a[0, 3], a[1, 200] = 127, -127
    got = kernel(a, kernel.pack_b(b))
    assert np.allclose(got, a.astype(np.float64) @ b.dequantize(), rtol=1e-5)


@pytest.mark.parametrize("name", ["q4_0", "q6_K", "mxfp4"])
def test_a_container_is_packed_as_it_is(name: str) -> None:
    """One matrix, or a stack of as many as there are bytes for."""
    k = 2 * CONTAINERS[name].elements
    rows, form = rows_of(name, 10, k, 3), CONTAINERS[name].form
    for count, batch in ((1, None), (2, tw.Strided(2)), (2, tw.Offsets(tw.dim("count"), a=None))):
        n = 10 // count
        spec = tw.Gemm(2, n, k, b=tw.Packed(form), batch=batch)
        kernel = tw.compile(spec, target="scalar")
        shape = (k, n) if batch is None else (count, k, n)
        right = kernel.pack_b(tw.from_gguf(rows, name, shape))
        for given in (rows, rows.tobytes()):
            found = kernel.pack_b(given, container=name.upper())
            assert (found.format, found.shape) == (right.format, right.shape)
            assert (found.data == right.data).all()


# --- what is refused ---------------------------------------------------------------------------


def test_a_container_that_does_not_fit_is_refused() -> None:
    rows = rows_of("q4_0", 10, 64, 3)
    form, b = CONTAINERS["q4_0"].form, tw.from_gguf(rows, "q4_0", (64, 10))
    low, plain = (
        tw.compile(tw.Gemm(2, 10, 64, b=tw.Packed(x)), target="scalar") for x in (form, "f32")
    )
    cases: Any = (
        (low, rows, {"container": "q8_0"}, "not as long as q8_0"),
        (low, rows_of("q8_0", 10, 64, 3), {"container": "q8_0"}, "quantized in another format"),
        (low, rows, {"container": "q9"}, "unknown type of a GGUF tensor"),
        (low, rows[1:], {"container": "q4_0"}, "not as long"),
        (low, None, {"container": "q4_0"}, "data must be bytes"),
        (low, rows, {"container": "q4_0", "scales": b.scales}, "a container has its scales"),
        (low, b, {"container": "q4_0"}, "a QuantizedMatrix has its scales"),
        (low, rows, {}, 'container="q4_0"'),
        (plain, rows, {"container": "q4_0"}, "that is not quantized"),
    )
    for kernel, given, named, said in cases:
        with pytest.raises(ArgumentError, match=said):
            kernel.pack_b(given, **named)


def test_what_does_not_fit_is_refused() -> None:
    data = np.zeros((4, 36), np.uint8)
    form = tw.Quantized("s8", scale="f16", block=32)
    s8 = tw.QuantizedMatrix(form, np.full((32, 2), 16, np.int8), np.ones((1, 2), np.float16))
    to_gguf: Any = tw.to_gguf
    cases: Any = (
        (lambda: tw.from_gguf(data, "q8_K", (64, 4)), "unknown type of a GGUF tensor"),
        (lambda: tw.from_gguf(data, "q4_0", (4, 64)), r"shape=\(64, 4\)"),
        (lambda: tw.from_gguf(data, "q4_0", (40, 4)), "do not divide k"),
        (lambda: tw.from_gguf(data, "q4_0", (64,)), "two or three positive sizes"),
        (lambda: tw.from_gguf(data, "q4_0", (64, -4)), "two or three positive sizes"),
        (lambda: tw.from_gguf(data[:3], "q4_0", (64, 4)), "expected: 144: 4 rows of 36 bytes"),
        (lambda: tw.from_gguf(data, "q4_0", (32, 8)), "rows of data are not as long as k"),
        (lambda: tw.from_gguf(data.view(np.int8), "q4_0", (64, 4)), "data must be bytes"),
        (lambda: tw.from_gguf(None, "q4_0", (64, 4)), "data must be bytes"),
        (lambda: tw.to_gguf(s8, "q4_K"), "products of stored numbers"),
        (lambda: tw.to_gguf(s8, "q4_0"), "holds another format"),
        (lambda: tw.to_gguf(s8, "q5_0"), "holds another format"),
        (lambda: to_gguf(np.zeros((32, 2)), "q5_0"), "must be a tw.QuantizedMatrix"),
    )
    for make, said in cases:
        with pytest.raises(ArgumentError, match=said):
            make()
    form = tw.Quantized("s8", scale="f16", block=32)
    ragged = tw.quantize(np.ones((40, 2), np.float32), form)
    with pytest.raises(ArgumentError, match="do not divide k"):
        tw.to_gguf(ragged, "q8_0")
