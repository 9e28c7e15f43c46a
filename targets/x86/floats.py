"""Shared parts of the x86 targets: the names of immintrin.h, and vectors of f32 and f64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tilewright.isa.vector import Mask, MulAdd, Repeat, Spread, Vector

from ..scalar import plain
from .doubles import load_doubles, load_singles, store_doubles, store_singles

_SUFFIX = {"f32": "ps", "f64": "pd"}
_LETTER = {"f32": "s", "f64": "d"}
_CTYPE = {"f32": "", "f64": "d"}
_BYTES = {"f32": 4, "s32": 4, "f64": 8, "s64": 8}
NAMES = {512: "zmm", 256: "ymm", 128: "xmm", 32: "dword"}
Pair = tuple[str, str]
#: Names of vector kinds in intrinsics that cast, and in those that extract the upper half of 256
#: bits.
_KINDS = {
    "f32": ("ps", "f128_ps"),
    "f64": ("pd", "f128_pd"),
    "s32": ("si", "i128_si256"),
    "s64": ("si", "i128_si256"),
}

#: Transpositions of two vectors of 256 or 128 bits by AVX2. ``DOUBLES`` exchanges blocks of 64-bit
#: lanes, by the block size in lanes. ``FLOATS`` exchanges single 32-bit lanes.
DOUBLES: dict[int, dict[int, Pair]] = {
    256: {
        1: ("_mm256_unpacklo_pd({x}, {y})", "_mm256_unpackhi_pd({x}, {y})"),
        2: ("_mm256_permute2f128_pd({x}, {y}, 0x20)", "_mm256_permute2f128_pd({x}, {y}, 0x31)"),
    },
    128: {1: ("_mm_unpacklo_pd({x}, {y})", "_mm_unpackhi_pd({x}, {y})")},
}
FLOATS: dict[int, Pair] = {
    256: (
        "_mm256_blend_ps({x}, _mm256_moveldup_ps({y}), 0xaa)",
        "_mm256_blend_ps(_mm256_movehdup_ps({x}), {y}, 0xaa)",
    ),
    128: (
        "_mm_blend_ps({x}, _mm_moveldup_ps({y}), 0xa)",
        "_mm_blend_ps(_mm_movehdup_ps({x}), {y}, 0xa)",
    ),
}

#: C for the sum of all lanes of a 128-bit vector, added in pairs.
_SUM_XMM = {
    "f32": (
        "_mm_cvtss_f32(_mm_add_ss(_mm_add_ps({v}, _mm_movehl_ps({v}, {v})), "
        "_mm_shuffle_ps(_mm_add_ps({v}, _mm_movehl_ps({v}, {v})), "
        "_mm_add_ps({v}, _mm_movehl_ps({v}, {v})), 1)))"
    ),
    "f64": "_mm_cvtsd_f64(_mm_add_sd({v}, _mm_unpackhi_pd({v}, {v})))",
}

# -- names and small spellings -------------------------------------------------------------------


def predicate(name: str, bits: int, lanes: int) -> Mask:
    """Return AVX-512's masked access to vectors of ``bits`` bits with ``lanes`` lanes.

    ``name`` is the suffix of the intrinsics, for example ``ps``.
    """
    mm, ctype = prefix(bits), f"__mmask{max(lanes, 8)}"
    one = "1ull" if lanes >= 32 else "1u"
    return Mask(
        ctype=ctype,
        make=f"({ctype})(({one} << ({{count}})) - {one})",
        load=f"{mm}_maskz_loadu_{name}({{mask}}, {{p}})",
        store=f"{mm}_mask_storeu_{name}({{p}}, {{mask}}, {{v}})",
        registers=0,
    )


def with_parts(mask: Mask, name: str, bits: int, lanes: int) -> Mask:
    """Return ``mask`` with cheaper loads for few active lanes: they read only 128 or 256 bits.

    There are no such stores. gcc would compile a masked store of the first 128 bits to
    ``vextractf32x4``. This instruction faults if an inactive lane is on a page without access; a
    masked move does not.
    """
    zeros, anything = [], []
    for part in (size for size in (128, 256) if size < bits):
        most = lanes * part // bits
        short = predicate(name, part, most)
        load = short.load.replace("{mask}", f"({short.ctype}){{mask}}")
        whole, half = _in_casts(name, bits), _in_casts(name, part)
        zeros.append((most, f"{prefix(bits)}_zext{half}_{whole}({load})"))
        anything.append((most, f"{prefix(bits)}_cast{half}_{whole}({load})"))
    loose = replace(mask, fewer=tuple(anything))
    return replace(mask, fewer=tuple(zeros), loose=loose)


def _in_casts(name: str, bits: int) -> str:
    """Return the name of a vector in intrinsics that cast, for example ``si256`` or ``ps128``."""
    return f"{name}{bits}" if name in ("ps", "pd") else f"si{bits}"


def prefix(bits: int) -> str:
    """Return the prefix of intrinsics on vectors of ``bits`` bits, for example ``_mm256``."""
    return f"_mm{bits}" if bits > 128 else "_mm"


def cast(kind: str, to: str, bits: int, x: str) -> str:
    """Return C that reinterprets the vector ``x`` as another kind: "ps", "pd" or "si"."""
    names = {"ps": "ps", "pd": "pd", "si": f"si{bits}"}
    return f"{prefix(bits)}_cast{names[kind]}_{names[to]}({x})"


#: C that reads or writes an integer of 16 or 32 bits; the address need not be aligned.
_READ_BITS = "({{{{ int{bits}_t bits_; __builtin_memcpy(&bits_, {{p}}, sizeof bits_); bits_; }}}})"
_WRITE_BITS = (
    "({{{{ const int{bits}_t bits_ = (int{bits}_t){value}; "
    "(void)__builtin_memcpy({{p}}, &bits_, sizeof bits_); }}}})"
)


def load_bits(bits: int) -> str:
    """Return C that loads ``bits`` bits of any type into a vector of integers.

    A vector has at least 128 bits. If fewer are loaded, the others are 0.
    """
    if bits == 512:
        return "_mm512_loadu_si512({p})"
    if bits == 64:
        return "_mm_loadl_epi64((const __m128i *)({p}))"
    if bits < 64:
        return f"_mm_cvtsi32_si128({_READ_BITS.format(bits=bits)})"
    return f"{prefix(bits)}_loadu_si{bits}((const __m{bits}i *)({{p}}))"


def store_bits(bits: int, v: str) -> str:
    """Return C that writes the low ``bits`` bits of ``v``, a vector of integers."""
    if bits == 512:
        return f"_mm512_storeu_si512({{p}}, {v})"
    if bits == 64:
        return f"_mm_storel_epi64((__m128i *)({{p}}), {v})"
    if bits < 64:
        return _WRITE_BITS.format(bits=bits, value=f"_mm_cvtsi128_si32({v})")
    return f"{prefix(bits)}_storeu_si{bits}((__m{bits}i *)({{p}}), {v})"


_PART_STORES = {
    "f32": {
        256: "_mm256_storeu_ps({p}, {v})",
        128: "_mm_storeu_ps({p}, {v})",
        64: store_bits(64, "_mm_castps_si128({v})"),
        32: "_mm_store_ss({p}, {v})",
    },
    "f64": {
        256: "_mm256_storeu_pd({p}, {v})",
        128: "_mm_storeu_pd({p}, {v})",
        64: "_mm_store_sd({p}, {v})",
    },
    "s32": {part: store_bits(part, "{v}") for part in (256, 128, 64, 32)},
    "s64": {part: store_bits(part, "{v}") for part in (256, 128, 64)},
}


def short_stores(element: str, bits: int) -> dict[int, str]:
    """Return stores of the first lanes without a mask, by the number of lanes.

    They exist for lanes that fill 32, 64, 128 or 256 bits.
    """
    size = 8 * _BYTES[element]
    return {
        part // size: store.replace("{v}", lowest(element, bits, max(part, 128)))
        for part, store in _PART_STORES[element].items()
        if part < bits
    }


def lowest(element: str, bits: int, held: int) -> str:
    """Return C for the lowest ``held`` bits of the vector ``{v}``, as a shorter vector."""
    kind, _ = _KINDS[element]
    return "{v}" if held == bits else f"{prefix(bits)}_cast{kind}{bits}_{kind}{held}({{v}})"


def partial_stores(element: str, bits: int) -> dict[int, str]:
    """Return stores of the first lanes, by their number, in parts of 16, 8 and 4 bytes.

    AVX2's masked stores are avoided, because each takes about 20 cycles on AMD's processors.
    """
    size = 8 * _BYTES[element]
    return {n: ", ".join(_parts(element, bits, n * size)) for n in range(1, bits // size)}


def _parts(element: str, bits: int, stored: int) -> Iterator[str]:
    _, high = _KINDS[element]
    halves = lowest(element, bits, 128), f"_mm256_extract{high}({{v}}, 1)"
    done = 0
    for part in (128, 64, 32):
        if stored - done >= part:
            at = f"({{p}}) + {done // (8 * _BYTES[element])}" if done else "{p}"
            piece = _upper(element, halves[done // 128], done)
            yield _PART_STORES[element][part].replace("{p}", at).replace("{v}", piece)
            done += part


def _upper(element: str, half: str, done: int) -> str:
    """Return C for the vector ``half`` of 16 bytes; ``done`` bits are already stored.

    If these include the lower 8 bytes of ``half``, its upper 8 bytes are moved down.
    """
    if done % 128 == 0:
        return half
    return f"_mm_movehl_ps({half}, {half})" if element == "f32" else f"_mm_srli_si128({half}, 8)"


def reinterpret(spelling: str, kind: str, inner: str, bits: int) -> str:
    """Return ``spelling``, which is for vectors of kind ``inner``, with casts from and to ``kind``.

    ``bits`` is the width of the vectors.
    """
    for name in "xy":
        spelling = spelling.replace(f"{{{name}}}", cast(kind, inner, bits, f"{{{name}}}"))
    return cast(inner, kind, bits, spelling)


def register_of_bits(bits: int) -> dict[str, Any]:
    """Return the fields of ``Vector`` that are the same for all integer types."""
    return {
        "name": NAMES[bits],
        "ctype": f"__m{bits}i",
        "zero": f"{prefix(bits)}_setzero_si{bits}()",
        "load": load_bits(bits),
        "store": store_bits(bits, "{v}"),
        "stream": f"{prefix(bits)}_stream_si{bits}((__m{bits}i *)(void *)({{p}}), {{v}})",
    }


def integer_transposes(bits: int, inner: str, floats: dict[int, Pair]) -> dict[int, Pair]:
    """Return transpositions of two vectors of integers, by the block size in lanes.

    They are the transpositions ``floats`` of floating-point kind ``inner``, with casts.
    """
    return {
        block: (reinterpret(even, "si", inner, bits), reinterpret(odd, "si", inner, bits))
        for block, (even, odd) in floats.items()
    }


def looked_up(bits: int, lane: int, number: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    """Return ``Numbers.found``: lookups by the bit fields in the low byte of each lane.

    Fields have four or two bits. ``number`` returns the C code that looks up a number by the lowest
    bits of each lane. A lane has ``lane`` bits.
    """

    def field(low: int) -> str:
        return number(f"{prefix(bits)}_srli_epi{lane}({{v}}, {low})" if low else "{v}")

    return {f"u{size}": tuple(map(field, range(0, 8, size))) for size in (4, 2)}


# -- vectors of floating-point numbers -----------------------------------------------------------


def vector(element: str, bits: int, **more: Any) -> Vector:
    """Return the vector type of f32 or f64 with ``bits`` bits; ``more`` are further fields.

    Fields ``ops``, ``loads`` and ``stores`` in ``more`` have only what differs from AVX2's.
    """
    mm, ps, lanes = prefix(bits), _SUFFIX[element], bits // (8 * _BYTES[element])

    def call(op: str, args: str) -> str:
        return f"{mm}_{op}_{ps}({args})"

    fma = call("fmadd", "{x}, {y}, {acc}")
    forms: list[MulAdd] = [
        MulAdd(form="broadcast", mnemonic=f"vfmadd231{ps}", spelling=fma, cols=lanes)
    ]
    if more.pop("memory_operand", False):
        forms.append(MulAdd(form="memory", mnemonic=f"vfmadd231{ps}", spelling=fma, cols=lanes))
    if bits != 512:
        more["transpose"] = transposes(element, bits, DOUBLES[bits], FLOATS[bits])
    if element == "f32":
        loads, stores = _conversions(bits)
        more["loads"] = loads | more.get("loads", {})
        more["stores"] = stores | more.get("stores", {})
        more["spreads"], more["repeats"] = _spreads(bits), _repeats(bits)
    else:
        more["loads"], more["stores"] = {"f32": load_singles(bits)}, {"f32": store_singles(bits)}
    ops = _ops(element, bits) | more.pop("ops", {})
    return Vector(
        name=NAMES[bits],
        element=element,
        lanes=lanes,
        ctype=f"__m{bits}{_CTYPE[element]}",
        zero=f"{mm}_setzero_{ps}()",
        load=call("loadu", "{p}"),
        store=call("storeu", "{p}, {v}"),
        stream=call("stream", "{p}, {v}"),
        broadcast=call("set1", "*({p})"),
        splat=call("set1", "{x}"),
        muladd=tuple(forms),
        sum_lanes=_sum_lanes(element, bits),
        first=f"_mm_cvts{_LETTER[element]}_{element}({lowest(element, bits, 128)})",
        ops=ops,
        **more,
    )


def _ops(element: str, bits: int) -> dict[str, str]:
    """Return the elementary operations on f32 or f64, by AVX and FMA.

    The result of a comparison is a vector of s32 for f32, and of f64 for f64.
    """
    mm, ps = prefix(bits), _SUFFIX[element]
    sign = f"{mm}_set1_{ps}(-0.0{'f' if element == 'f32' else ''})"
    kind = "si" if element == "f32" else ps
    pairs = {op: f"{mm}_{op}_{ps}({{x}}, {{y}})" for op in ("add", "sub", "mul", "div")}
    tests = {op: f"{mm}_cmp_{ps}({{x}}, {{y}}, _CMP_{op.upper()}_OQ)" for op in ("lt", "le", "eq")}
    mask = "{x}" if kind == ps else cast(kind, ps, bits, "{x}")
    found = pairs | {
        "min": f"{mm}_min_{ps}({{x}}, {{y}})",
        "max": f"{mm}_max_{ps}({{x}}, {{y}})",
        "sqrt": f"{mm}_sqrt_{ps}({{x}})",
        "abs": f"{mm}_andnot_{ps}({sign}, {{x}})",
        "neg": f"{mm}_xor_{ps}({{x}}, {sign})",
        "fma": f"{mm}_fmadd_{ps}({{x}}, {{y}}, {{z}})",
        "round": f"{mm}_round_{ps}({{x}}, 8)",
        "select": f"{mm}_blendv_{ps}({{z}}, {{y}}, {mask})",
    }
    if element == "f64":
        return found | tests
    return found | {
        **{op: cast(ps, "si", bits, test) for op, test in tests.items()},
        "to_s32": f"{mm}_cvtps_epi32({{x}})",
        "bits": cast(ps, "si", bits, "{x}"),
    }


def _conversions(bits: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the loads and the stores that convert between f32 and other types, by these types.

    F16C converts f16, and rounds to nearest even. A bf16 is the upper half of an f32, and an
    f8_e5m2 is the upper half of an f16, so a shift converts them.
    """
    mm, words, half = prefix(bits), prefix(max(bits // 2, 128)), load_bits(bits // 2)
    shifted = f"{mm}_slli_epi32({mm}_cvtepu16_epi32({half}), 16)"
    upper = f"{words}_slli_epi16({words}_cvtepu8_epi16({load_bits(bits // 4)}), 8)"
    loads = {
        "f16": f"{mm}_cvtph_ps({half})",
        "bf16": cast("si", "ps", bits, shifted),
        "f8_e5m2": f"{mm}_cvtph_ps({upper})",
        "f64": load_doubles("f32", bits),
    }
    halves = store_bits(bits // 2, f"{mm}_cvtps_ph({{v}}, 0)")
    return loads, {"f16": halves, "f64": store_doubles("f32", bits)}


def _spreads(bits: int) -> dict[str, Spread]:
    """Return C that broadcasts one f16 or bf16 to all lanes, and converts it to f32."""
    mm = prefix(bits)
    half = f"{prefix(max(bits // 2, 128))}_set1_epi16((int16_t)*({{p}}))"
    words = f"{mm}_slli_epi32({mm}_set1_epi16((int16_t)*({{p}})), 16)"
    return {
        "f16": Spread(f"{mm}_cvtph_ps({half})", shuffles=3),
        "bf16": Spread(cast("si", "ps", bits, words), shuffles=1),
    }


def _repeats(bits: int) -> dict[str, Repeat]:
    """Return C that loads four f16, converts them to f32, and repeats them in each 128 bits."""
    mm, four = prefix(bits), load_bits(64)
    halves = f"{prefix(bits // 2)}_broadcastq_epi64({four})" if bits > 128 else four
    pick = f"{mm}_permute_ps({{v}}, 0x55 * {{lane}})"
    return {"f16": Repeat(4, f"{mm}_cvtph_ps({halves})", shuffles=2, pick=pick)}


def mixes(bits: int, *, masked: bool) -> dict[int, Pair]:
    """Return the transpositions within lanes of 32 bits, by the bits of an element: 8 or 16.

    One element is shifted to the place of the other, then both are blended. ``masked`` is True if
    the target has masks.
    """
    mm = prefix(bits)

    def blended(size: int, x: str, y: str, odd: int) -> str:
        if masked:
            mask = ("a" if odd else "5") * (bits // size // 4)
            return f"{mm}_mask_blend_epi{size}(0x{mask}, {x}, {y})"
        if size == 16:
            return f"{mm}_blend_epi16({x}, {y}, 0x{'aa' if odd else '55'})"
        return f"{mm}_blendv_epi8({x}, {y}, {mm}_set1_epi16({'-256' if odd else '255'}))"

    def pair(size: int) -> Pair:
        up, down = (
            f"{mm}_{way}_epi{2 * size}({{{v}}}, {size})"
            for way, v in (("slli", "y"), ("srli", "x"))
        )
        return blended(size, "{x}", up, 1), blended(size, "{y}", down, 0)

    return {size: pair(size) for size in (8, 16)}


def transposes(
    element: str, bits: int, doubles: Mapping[int, Pair], floats: Pair
) -> dict[int, Pair]:
    """Return the transpositions of two vectors of f32 or f64, by the block size in lanes.

    ``doubles`` exchanges blocks of 64-bit lanes, ``floats`` single 32-bit lanes.
    """
    if element == "f64":
        return dict(doubles)
    wider = {
        2 * block: (
            reinterpret(even, "ps", "pd", bits),
            reinterpret(odd, "ps", "pd", bits),
        )
        for block, (even, odd) in doubles.items()
    }
    return {1: floats, **wider}


def _sum_lanes(element: str, bits: int) -> str:
    if bits == 512:
        return f"_mm512_reduce_add_{_SUFFIX[element]}({{v}})"
    if bits == 128:
        return _SUM_XMM[element]
    ps = _SUFFIX[element]
    low = f"_mm256_cast{ps}256_{ps}128({{v}})"
    half = f"_mm_add_{ps}({low}, _mm256_extractf128_{ps}({{v}}, 1))"
    return _SUM_XMM[element].replace("{v}", half)


def scalar(element: str) -> Vector:
    """Return the vector type with one lane of f32 or f64, a C scalar, with a fused multiply-add."""
    return plain(element, f"vfmadd231s{_LETTER[element]}")
