"""Plain C, for any machine: one element at a time, multiplication and addition rounded apart."""

from __future__ import annotations

from tilewright.isa import Core, MulAdd, Target, Vector


def _vector(element: str, ctype: str) -> Vector:
    return Vector(
        name="scalar",
        element=element,
        lanes=1,
        ctype=ctype,
        zero="0",
        load="*({p})",
        store="*({p}) = {v}",
        broadcast="*({p})",
        splat="{x}",
        add="{x} + {y}",
        mul="{x} * {y}",
        sum_lanes="{v}",
        muladd=(MulAdd(form="scalar", mnemonic="", spelling="{acc} + {x} * {y}", cols=1),),
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
    vectors=(_vector("f32", "float"), _vector("f64", "double")),
    core=Core(fma_latency=8, fma_units=1, loads=2, stores=1, issue=4),
)
