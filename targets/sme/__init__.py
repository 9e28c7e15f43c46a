"""SME: outer products into matrices of sums (ZA), with SVE's vectors in streaming mode.

Vectors have 512 bits, as on Apple's M4. The whole kernel runs in streaming mode. A CPU without SVE,
such as the M4, has these vectors only in streaming mode. Some of SVE's instructions are illegal
there: products of 2x2 blocks, and gathers. Spellings: Arm C Language Extensions, SME.

Speed was measured on an M4. One outer product starts in each cycle. Its sums are ready after 4
cycles, or after 8 cycles for 16-bit factors. A multiply-add of vectors in streaming mode takes 4
cycles. The M4 starts outer products of factors with fewer than 32 bits only every other cycle; this
is in ``targets/cores/m4.json``.

gcc is excluded: version 15 uses SVE's instructions outside of streaming mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.isa.machine import CompilerHints, Core, Emulation, Mode, Speed, VectorLength
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.target import NEVER, Feature, Target
from tilewright.isa.vector import MulAdd, Several, Vector

from ..detection import ARM
from ..processors import processors
from ..sve.features import halves
from ..sve.floats import floats
from ..sve.integers import factors, narrow, pairs, sums
from ..sve.wide import wide_sums
from ..sve.words import SIZES, all_lanes, first, first_lanes, seen_as

#: Bytes of a vector in streaming mode.
NBYTES = 64
_BITS = {"f32": 32, "s32": 32, "f64": 64, "s64": 64}


def _product(
    mnemonic: str, element: str, intrinsic: str, depth: int = 1, x: str = "", y: str = ""
) -> MulAdd:
    """Return the outer product of two vectors, added to a register with sums of type ``element``.

    The K groups of ``{y}`` belong to the rows of the sums, those of ``{x}`` to the columns.
    """
    lines, bits = NBYTES * 8 // _BITS[element], _BITS[element] // depth
    everywhere = f"svptrue_b{bits}()"
    return MulAdd(
        form="block",
        mnemonic=mnemonic,
        spelling=f"{intrinsic}_m({{acc}}, {everywhere}, {everywhere}, {{y}}, {{x}})",
        rows=lines,
        cols=lines,
        depth=depth,
        x=x,
        y=y,
    )


_READ = (
    "svread_{way}_za{{bits}}_{{element}}_m"
    "(svundef_{{element}}(), svptrue_b{{bits}}(), {{src}}, {{row}})"
)
_DOUBLE = _product("fmopa za.d", "f64", "svmopa_za64_f64")
#: Outer products of pairs of 16-bit integers, summed in 32 bits. They need SME2.
_PAIRS = (
    _product("smopa of s16", "s32", "svmopa_za32_s16", 2, "s16", "s16"),
    _product("umopa of u16", "s32", "svmopa_za32_u16", 2, "u16", "u16"),
)
#: Outer products of groups of four 16-bit integers, summed in 64 bits.
_FOURS = (
    _product("smopa za.d", "s64", "svmopa_za64_s16", 4, "s16", "s16"),
    _product("umopa za.d", "s64", "svmopa_za64_u16", 4, "u16", "u16"),
    _product("sumopa za.d", "s64", "svsumopa_za64_s16", 4, "u16", "s16"),
    _product("usmopa za.d", "s64", "svusmopa_za64_u16", 4, "s16", "u16"),
)
_ZA = MatrixUnit(
    name="za",
    registers={"f32": 4, "s32": 4, "f64": 8, "s64": 8},
    rows=NBYTES // 4,
    row_bytes=NBYTES,
    products={
        "f32": (
            _product("fmopa za.s", "f32", "svmopa_za32_f32"),
            _product("bfmopa", "f32", "svmopa_za32_bf16", 2, "bf16", "bf16"),
            _product("fmopa za.s of f16", "f32", "svmopa_za32_f16", 2, "f16", "f16"),
        ),
        "s32": (
            _product("smopa", "s32", "svmopa_za32_s8", 4, "s8", "s8"),
            _product("umopa", "s32", "svmopa_za32_u8", 4, "u8", "u8"),
            _product("sumopa", "s32", "svsumopa_za32_s8", 4, "u8", "s8"),
            _product("usmopa", "s32", "svusmopa_za32_u8", 4, "s8", "u8"),
        ),
    },
    zero="ZERO_ZA({bits}, {dst})",
    factors="vectors",
    latency=4,
    read=_READ.format(way="hor"),
    read_column=_READ.format(way="ver"),
    write="svwrite_hor_za{bits}_{element}_m({dst}, {row}, svptrue_b{bits}(), {v})",
)


def _speed(op: MulAdd, latency: float) -> Speed:
    return Speed(mnemonic=op.mnemonic, bytes=NBYTES, cycles=1, latency=latency)


_SPEEDS = tuple(
    _speed(op, 8 if op.depth == 2 else 4)
    for ops in (*_ZA.products.values(), (_DOUBLE,), _PAIRS, _FOURS)
    for op in ops
)


def _streaming(vector: Vector) -> Vector:
    """Return ``vector`` with partial loads, and only operations that are legal in streaming mode.

    Two operations on single elements use vectors, because plain C fails in streaming mode. C's
    square root calls a library function for negative numbers, which would leave the mode. To
    convert a loaded integer to floating point, clang 19 uses a Neon instruction, which is illegal.
    """
    element, mask, everywhere = vector.element, vector.mask, all_lanes(vector.element)
    if vector.lanes == 1:
        x = f"svdup_n_{element}({{x}})"
        alone = {
            "sqrt": first(element, f"svsqrt_{element}_x({everywhere}, {x})"),
            "to_f32": first("f32", f"svcvt_f32_{element}_x({everywhere}, {x})"),
        }
        return replace(vector, ops={fn: alone.get(fn, how) for fn, how in vector.ops.items()})
    if mask is None:
        return vector
    cuts = {n: first_lanes(element, str(n)) for n in range(1, vector.lanes)}
    loads = {n: mask.load.replace("{mask}", lanes) for n, lanes in cuts.items()}
    return replace(vector, partial_load=loads)


def _sums() -> Iterator[Vector]:
    """Yield the vector types of s32, with SVE2's multiply-adds of pairs of 16-bit integers."""
    for vector in sums(NBYTES):
        yield replace(vector, muladd=(*pairs(vector.lanes), *vector.muladd))


_CPU = "max,{sve},sme512=on,sme_fa64=off,sme-default-vector-length=64"
#: The ``-cpu`` option for qemu 10. This version lacks SME2, and disables SME if SVE is off.
_OLD = _CPU.format(sve="sve128=on,sve-default-vector-length=16")
#: Numbers of vectors that one load of SME2 reads, largest first.
_SEVERAL = (4, 2)


def _several(vector: Vector) -> Vector:
    """Return ``vector`` with SME2's loads of several vectors; f16 and bf16 are loaded as u16."""
    if vector.lanes == 1:
        return vector
    element = vector.element
    kept = {"f16": "u16", "bf16": "u16"}.get(element, element)
    word, bits = {"f": "float", "s": "int", "u": "uint"}[kept[0]], 8 * SIZES[element]

    def load(count: int) -> Several:
        return Several(
            count,
            f"sv{word}{bits}x{count}_t",
            f"svld1_{kept}_x{count}(svptrue_c{bits}(), {{p}})",
            seen_as(element, kept, f"svget{count}_{kept}({{v}}, {{lane}})"),
        )

    return replace(vector, several=tuple(map(load, _SEVERAL)))


TARGET = Target(
    name="sme",
    title="SME with vectors of 512 bits",
    machine="aarch64",
    detection=ARM,
    cpu_flags=("asimd", "sme", "svl512"),
    length=VectorLength(NBYTES, "svcntsb()"),
    mode=Mode(
        inside='__arm_streaming __arm_inout("za")',
        helper='__arm_streaming_compatible __arm_preserves("za")',
        entry='__arm_new("za") __arm_locally_streaming',
        copy="copy_bytes",
        support="matrix/sme_routines.c.j2",
    ),
    compiler_flags=("-march=armv8.2-a+sme",),
    zig_flags=("-mcpu=generic+sme",),
    headers=("arm_sme.h",),
    compilers={"gcc": NEVER, "clang": "19", "zig": "0.14"},
    registers=32,
    vectors=tuple(
        _streaming(vector)
        for vector in (
            *floats("f32", NBYTES),
            *floats("f64", NBYTES),
            *_sums(),
            *wide_sums(NBYTES),
            *factors("s8", NBYTES),
            *factors("u8", NBYTES),
            *narrow("s16", NBYTES),
            *narrow("u16", NBYTES),
            *halves("f16", NBYTES, "svfloat16_t"),
            *halves("bf16", NBYTES, "svbfloat16_t"),
        )
    ),
    core=Core(
        fma_latency=4, fma_units=0.25, loads=1, stores=1, issue=8, shuffles=1, speeds=_SPEEDS
    ),
    features={
        "sme2": Feature(
            title="SME2's loads of several vectors, and products of 16-bit integers",
            cpu_flags=("sme2",),
            compiler_flags=("-march=armv8.2-a", "+sme2"),
            zig="+sme2",
            extend=_several,
            products={"s32": _PAIRS},
            emulation=Emulation(qemu="qemu-aarch64", cpu=_CPU.format(sve="sve=off"), least="11.0"),
        ),
        "f64": Feature(
            title="products of f64",
            cpu_flags=("smef64f64",),
            compiler_flags=("-march=armv8.2-a", "+sme-f64f64"),
            zig="+sme_f64f64",
            products={"f64": (_DOUBLE,)},
        ),
        "i16i64": Feature(
            title="products of 16-bit integers summed in 64 bits",
            cpu_flags=("smei16i64",),
            compiler_flags=("-march=armv8.2-a", "+sme-i16i64"),
            zig="+sme_i16i64",
            products={"s64": _FOURS},
        ),
        **processors("sme"),
    },
    hints=CompilerHints(
        constraint="w", operands=False, pointers=True, lanes=True, spare=3, picked="y"
    ),
    emulation=Emulation(qemu="qemu-aarch64", cpu=_OLD, least="10.0"),
    matrix=_ZA,
)
