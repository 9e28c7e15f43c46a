"""POWER10: 8 accumulators of 4x4 (MMA), which occupy half of the 64 vectors of 128 bits (VSX).

Spellings: Power ISA 3.1, the Matrix-Multiply Assist Best Practices Guide (IBM Redpaper 5612), and
GCC's PowerPC built-in functions. Latencies and units are those of LLVM's model of the core, except
the latency of MMA's products. LLVM says 10 cycles. At two products a cycle, this would need 20
accumulators for full speed, but 8 accumulators reached 92 % of the peak ("Compiling for the IBM
Matrix Engine for Enterprise Workloads", IEEE Micro 42, 2022). The latency is therefore about 4
cycles.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.machine import CompilerHints, Core, Emulation, Speed
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.target import Target
from tilewright.isa.vector import MulAdd, Several, Vector

from .detection import POWER
from .processors import processors
from .scalar import plain
from .vsx import SUMS, WIDE_SUMS, double, factors, single

_BYTES = "__vector unsigned char"
#: Cycles between two products into the same accumulator.
_LATENCY = 4


def _product(name: str, depth: int = 1, x: str = "", y: str = "", *, cols: int = 4) -> MulAdd:
    """Return the multiply-add of two vectors into an accumulator of 4 x ``cols`` sums.

    The instruction's first factor is ``{y}``. Its elements belong to the rows of the sums.
    """
    rows = "{y}" if cols == 2 else f"({_BYTES}){{y}}"
    return MulAdd(
        form="block",
        mnemonic=name,
        spelling=f"__builtin_mma_{name}(&{{acc}}, {rows}, ({_BYTES}){{x}})",
        rows=4,
        cols=cols,
        depth=depth,
        x=x,
        y=y,
        latency=_LATENCY,
    )


#: Two adjacent vector registers. The first factor of an f64 product has four rows and needs both.
_PAIR = Vector(
    name="pair",
    element="f64",
    lanes=4,
    ctype="__vector_pair",
    load="__builtin_vsx_lxvp(0L, (const __vector_pair *)(const void *)({p}))",
)
#: Load of two vectors by one instruction. The vectors are in the order of memory.
_TWO = Several(
    2,
    _PAIR.ctype,
    _PAIR.load,
    "{v}[{lane}]",
    apart="__builtin_vsx_disassemble_pair({dst}, &{v})",
)


def _by_pairs(vector: Vector) -> Vector:
    """Return ``vector``; if it fills a register, add a load of two such vectors at once."""
    return vector if vector.nbytes < 16 else replace(vector, several=(_TWO,))


_MMA = MatrixUnit(
    name="acc",
    registers={"f32": 8, "f64": 8, "s32": 8},
    rows=4,
    row_bytes=16,
    products={
        "f32": (
            _product("xvf32gerpp"),
            _product("xvbf16ger2pp", 2, "bf16", "bf16"),
            _product("xvf16ger2pp", 2, "f16", "f16"),
        ),
        "f64": (_product("xvf64gerpp", cols=2),),
        "s32": (
            _product("xvi8ger4pp", 4, "u8", "s8"),
            _product("xvi16ger2pp", 2, "s16", "s16"),
        ),
    },
    zero="__builtin_mma_xxsetaccz(&{dst})",
    factors="vectors",
    latency=_LATENCY,
    ctype="__vector_quad",
    aliases=4,
    vectors=(_PAIR,),
    read="__builtin_mma_disassemble_acc({dst}, &{src})",
    rows_at_once=4,
)
#: Speeds of products: two products of any type start in each cycle.
_SPEEDS = tuple(
    Speed(mnemonic=op.mnemonic, bytes=16, cycles=0.5, latency=_LATENCY)
    for ops in _MMA.products.values()
    for op in ops
)

TARGET = Target(
    name="power10",
    title="POWER10 (Power ISA 3.1 with MMA)",
    machine="ppc64le",
    detection=POWER,
    cpu_flags=("arch_3_1", "mma"),
    compiler_flags=("-mcpu=power10",),
    zig_flags=("-mcpu=pwr10",),
    compilers={"gcc": "11", "clang": "14"},
    headers=("altivec.h",),
    registers=64,
    vectors=tuple(
        _by_pairs(vector)
        for vector in (
            *(single(), plain("f32", "xsmaddasp")),
            *(double(), plain("f64", "xsmaddadp")),
            *SUMS,
            *WIDE_SUMS,
            *(each for element in ("s16", "s8", "u8", "bf16", "f16") for each in factors(element)),
        )
    ),
    core=Core(fma_latency=7, fma_units=4, loads=2, stores=2, issue=8, shuffles=4, speeds=_SPEEDS),
    threads=8,
    features=processors("power10"),
    hints=CompilerHints(constraint="wa", operands=False, pointers=False, lanes=False, spare=2),
    emulation=Emulation(qemu="qemu-ppc64le", cpu="power10"),
    matrix=_MMA,
)
