"""C spellings of a target, each a function of its own in one program, and what it must answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emit.render import render
from tilewright.errors import TargetError
from tilewright.isa.target import Target
from tilewright.runtime.build.compilers import Compiler
from tilewright.runtime.emulate.runner import Runner, build, runner_for
from tilewright.runtime.machine.host import is_native

Array = NDArray[Any]

_C_TYPES = {
    "i1": "int8_t", "u1": "uint8_t", "i2": "int16_t", "u2": "uint16_t", "i4": "int32_t",
    "u4": "uint32_t", "i8": "int64_t", "u8": "uint64_t", "f4": "float", "f8": "double",
}  # fmt: skip

_PRELUDE = """
#define MODE {helper}
#define INLINE static inline __attribute__((unused))
INLINE int32_t bits_of_float(float x) MODE
{
    return *(int32_t *)__builtin_memcpy(&(int32_t){0}, &x, 4);
}
INLINE float float_of_bits(int32_t x) MODE
{
    return *(float *)__builtin_memcpy(&(float){0}, &x, 4);
}
"""

_ROW = """
{entry}static void {name}_row({parameters})
{{
    {statements}
}}
void {name}_invoke(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch)
{{
    (void)scalars, (void)scratch;
    for (int64_t i = 0; i < sizes[0]; i++)
        {name}_row({arguments});
}}
int64_t {name}_scratch_bytes(const int64_t *sizes)
{{
    (void)sizes;
    return 0;
}}
"""


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """``statements`` in C make a row of ``out`` from a row each of ``in0``, ``in1``, ...

    Arrays are two-dimensional. ``out`` holds ``before``, and must hold ``expected``: the same
    bits, or, with a ``tolerance``, numbers no further away; a NaN is any NaN.
    """

    name: str
    statements: Sequence[str]
    inputs: tuple[Array, ...]
    expected: Array
    before: Array | None = None
    tolerance: Array | None = None

    def text(self, name: str, target: Target) -> str:
        """C functions that a runner calls by ``name``."""
        arrays = [*((f"in{i}", a, "const ") for i, a in enumerate(self.inputs))]
        arrays.append(("out", self.expected, ""))
        types = [f"{const}{c_type(array.dtype)} *" for _, array, const in arrays]
        rows = (
            f"({type_})arrays[{i}] + {array.shape[1]} * i"
            for i, (type_, (_, array, _)) in enumerate(zip(types, arrays, strict=True))
        )
        return _ROW.format(
            name=name,
            entry=f"{target.mode.entry} " if target.mode else "",
            parameters=", ".join(f"{t}{n}" for t, (n, _, _) in zip(types, arrays, strict=True)),
            statements="\n    ".join(self.statements),
            arguments=", ".join(rows),
        )

    def run(self, runner: Runner, name: str) -> None:
        """AssertionError if it answers wrongly, TargetError if it leaves its arrays."""
        before = np.zeros_like(self.expected) if self.before is None else self.before
        arrays = [np.ascontiguousarray(a).view(np.uint8) for a in (*self.inputs, before)]
        names = [*(f"in{i}" for i in range(len(self.inputs))), "out"]
        writable = [False] * len(self.inputs) + [True]
        (data,) = runner.call(name, arrays, [len(before)], (), writable, names=names)
        found = np.frombuffer(data, self.expected.dtype).reshape(self.expected.shape)
        wrong = np.argwhere(~self._agrees(found))
        assert not len(wrong), self._message(found, wrong)

    def _agrees(self, found: Array) -> Array:
        if self.tolerance is not None:
            return np.abs(found.astype(np.float64) - self.expected) <= self.tolerance
        bits = np.dtype(f"u{found.itemsize}")
        same: Array = found.view(bits) == self.expected.view(bits)
        if found.dtype.kind in "fV":  # V: what ml_dtypes adds
            same |= np.isnan(found) & np.isnan(self.expected)
        return same

    def _message(self, found: Array, wrong: Array) -> str:
        row, column = wrong[0]
        given = ", ".join(str(array[row].tolist()) for array in self.inputs)
        return (
            f"{self.name}: {len(wrong)} wrong, first row {row} column {column}: got "
            f"{found[row, column]!r}, expected {self.expected[row, column]!r}, from {given}"
        )


def c_type(dtype: np.dtype[Any]) -> str:
    """What C calls an element; the narrow floating-point types are their bits."""
    kind = dtype.kind if dtype.kind in "iu" or dtype.itemsize > 2 else "u"
    return _C_TYPES[f"{kind}{dtype.itemsize}"]


def program_text(checks: Iterable[Check], target: Target, prelude: str = "") -> str:
    """C text that defines ``check_0``, ``check_1``, ... behind ``prelude``."""
    text = _PRELUDE.replace("{helper}", target.mode.helper if target.mode else "")
    lines = ["#include <stdint.h>", "#ifdef TILEWRIGHT_INTRINSICS"]
    lines += ["#include TILEWRIGHT_INTRINSICS", "#else"]
    lines += [*(f"#include <{header}>" for header in target.headers), "#endif", text, prelude]
    lines += [render(template) for template in sorted({v.support for v in target.vectors} - {""})]
    lines += [render(target.mode.support, mode=target.mode)] if target.mode else []
    return "\n".join([*lines, *(c.text(f"check_{i}", target) for i, c in enumerate(checks))])


def faults(
    checks: Sequence[Check],
    target: Target,
    compiler: Compiler,
    directory: Path,
    prelude: str = "",
) -> list[str]:
    """What is wrong with the checks, run by the means that ``compiler`` compiles for.

    That does not optimise, which takes half of the time; the header is slow anyhow.
    """
    names = [f"check_{i}" for i in range(len(checks))]
    text = program_text(checks, target, prelude)
    flags = () if compiler.means == "header" else ("-O0",)
    program = build([text], names, target, compiler, directory, "spellings", flags)
    runner = runner_for(program, target, emulated=not is_native(target))
    found = []
    for name, check in zip(names, checks, strict=True):
        try:
            check.run(runner, name)
        except AssertionError as error:
            found.append(str(error))
        except TargetError as error:
            found.append(f"{check.name}: {error}")
    runner.close()
    return found
