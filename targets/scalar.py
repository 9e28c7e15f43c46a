"""Plain C, for any machine: one element at a time, multiplication and addition rounded apart."""

from __future__ import annotations

from tilewright.isa import Core, MulAdd, Target, Vector

_C_TYPES = {"f32": "float", "f64": "double"}
_FUSED = {"f32": "__builtin_fmaf({x}, {y}, {acc})", "f64": "__builtin_fma({x}, {y}, {acc})"}


def plain(element: str, fused: str | None = None) -> Vector:
    """One element in a C scalar; ``fused`` is the mnemonic of a CPU's fused multiply-add."""
    spelling = _FUSED[element] if fused else "{acc} + {x} * {y}"
    return Vector(
        name="scalar",
        element=element,
        lanes=1,
        ctype=_C_TYPES[element],
        zero="0",
        load="*({p})",
        store="*({p}) = {v}",
        broadcast="*({p})",
        splat="{x}",
        add="{x} + {y}",
        mul="{x} * {y}",
        sum_lanes="{v}",
        muladd=(MulAdd(form="scalar", mnemonic=fused or "", spelling=spelling, cols=1),),
    )


TARGET = Target(
    name="scalar",
    title="plain C",
    machine="",
    cpu_flags=(),
    compiler_flags=(),
    zig_flags=("-mcpu=baseline",),
    headers=(),
    registers=16,
    vectors=(plain("f32"), plain("f64")),
    core=Core(fma_latency=8, fma_units=1, loads=2, stores=1, issue=4),
)
