"""Programs of elementary operations in plain C, one lane at a time, compiled by gcc."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.elementwise.builder import Argument, Builder, Value, live
from tilewright.elementwise.operations import DTYPES

CTYPES = {
    "f32": "float", "f64": "double", "s32": "int32_t", "s64": "int64_t", "m64": "int64_t",
}  # fmt: skip
REAL = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "sqrt": "__builtin_sqrt{f}({0})",
    "abs": "__builtin_fabs{f}({0})",
    "neg": "-{0}",
    "round": "__builtin_rint{f}({0})",
    "fma": "__builtin_fma{f}({0}, {1}, {2})",
    "to_s32": "(int32_t)__builtin_lrintf({0})",
    "bits": "bits_of({0})",
    "scale": "(float)__builtin_ldexp({0}, (int)fmax(-300, fmin(300, floor({1}))))",
    "zero_below": "{1} < {0} ? 0 : {2}",
}
INTEGER = {
    "add": "(int32_t)((uint32_t){0} + (uint32_t){1})",
    "sub": "(int32_t)((uint32_t){0} - (uint32_t){1})",
    "mul": "(int32_t)((uint32_t){0} * (uint32_t){1})",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "shl": "(int32_t)((uint32_t){0} << {1})",
    "shr": "{0} >> {1}",
    "ushr": "(int32_t)((uint32_t){0} >> {1})",
    "gt": "-({0} > {1})",
    "to_f32": "(float){0}",
    "float": "float_of({0})",
}
WIDE = {
    "add": "(int64_t)((uint64_t){0} + (uint64_t){1})",
    "mul": "(int64_t)((uint64_t){0} * (uint64_t){1})",
}
BOTH = {
    "min": "{0} < {1} ? {0} : {1}",
    "max": "{0} > {1} ? {0} : {1}",
    "lt": "-({0} < {1})",
    "le": "-({0} <= {1})",
    "eq": "-({0} == {1})",
    "select": "{0} ? {1} : {2}",
}
HEAD = """
#include <math.h>
#include <stdint.h>
#include <string.h>
static inline int32_t bits_of(float x) { int32_t r; memcpy(&r, &x, 4); return r; }
static inline float float_of(int32_t x) { float r; memcpy(&r, &x, 4); return r; }
"""


def spelled(fn: str, element: str) -> str:
    """The C expression of an operation, its arguments open."""
    text = BOTH.get(fn) or {"s32": INTEGER, "s64": WIDE}.get(element, REAL)[fn]
    return text.replace("{f}", "f" if element == "f32" else "")


def _argument(arg: Argument, real: str) -> str:
    if isinstance(arg, Value):
        return f"v{arg.index}"
    if isinstance(arg, int):
        return f"(int32_t)UINT32_C({arg % 2**32})"
    if math.isfinite(arg):
        return f"({arg.hex()}{'f' if real == 'f32' else ''})"
    name = "nan" if math.isnan(arg) else "inf"
    value = (
        f"__builtin_{name}{'f' if real == 'f32' else ''}({chr(34) * 2 if name == 'nan' else ''})"
    )
    return f"(-{value})" if arg < 0 else value


def source(b: Builder, inputs: Sequence[Value], result: Value) -> str:
    """A C function over arrays: ``run(count, result, inputs...)``."""
    lines = []
    for step in live(b.steps, [result]):
        args = [_argument(arg, b.real) for arg in step.args]
        ctype = CTYPES[step.dst.element]
        text = spelled(step.fn, step.element).format(*args)
        lines.append(f"    {ctype} v{step.dst.index} = {text};")
    given = "".join(f", const {CTYPES[v.element]} *p{v.index}" for v in inputs)
    loads = "".join(f"    {CTYPES[v.element]} v{v.index} = p{v.index}[i];\n" for v in inputs)
    body = "\n".join(lines)
    return (
        f"{HEAD}void run(int64_t count, {CTYPES[result.element]} *out{given}) {{\n"
        f"  for (int64_t i = 0; i < count; ++i) {{\n{loads}{body}\n"
        f"    out[i] = v{result.index};\n  }}\n}}\n"
    )


def compiled(
    b: Builder, inputs: Sequence[Value], result: Value, folder: Path
) -> Callable[..., NDArray[np.generic]]:
    """The program as a function of arrays; the test is skipped where there is no gcc."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    text, library = folder / "program.c", folder / "program.so"
    text.write_text(source(b, inputs, result))
    flags = ["-O2", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", library, text, "-lm"], check=True)
    run = ctypes.CDLL(str(library)).run

    def call(*arrays: NDArray[np.generic]) -> NDArray[np.generic]:
        given = [np.ascontiguousarray(a) for a in arrays]
        out = np.empty(given[0].shape, DTYPES[result.element])
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (out, *given)]
        run(ctypes.c_int64(out.size), *pointers)
        return out

    return call
