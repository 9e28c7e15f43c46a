"""Compute products in which m, n or k is 0: check them like others, but run no kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.arrays.dtypes import loaded
from tilewright.runtime.arrays.elements import encode
from tilewright.runtime.call.arguments import Arranger
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix
from tilewright.spec.signature import signature
from tilewright.spec.sizes import dim
from tilewright.spec.types import accumulator, type_name

from .families import Options, call_product, output_of

Array = np.ndarray[Any, Any]


def computed(
    types: tuple[str, str, str],
    written: str,
    options: Options,
    named: dict[str, Any],
    arrays: tuple[Array, Array, Array],
) -> bool:
    """Compute a product without multiply-adds, and return True if no kernel is needed for it.

    ``types`` are those of A, B and a kernel's output; ``written`` is the type of ``out``. An
    ``out`` without elements stays unchanged. Sums over no elements are 0. A kernel is needed only
    for an epilogue, or if beta is not 0 and ``out`` has another type than the sums.
    """
    a, b, out = arrays
    sums = accumulator(*types[:2])
    if out.size and (options.epilogue is not None or (options.reads and written != sums)):
        return False
    m, n = (1 if a.ndim < 2 else a.shape[-2]), (1 if b.ndim < 2 else b.shape[-1])
    call_product(_Checking(types, options, m, n), a, b, out, named)  # type: ignore[arg-type]
    if not out.size:
        return True
    number = loaded(sums).type
    with np.errstate(over="ignore", invalid="ignore"):
        nothing = number(named.get("alpha", 1)) * number(0)
        if options.reads:
            out *= number(named["beta"])
            out += nothing
        else:
            out[...] = encode(nothing, written)
    return True


class _Checking:
    """Replaces a kernel: a call checks the arguments besides a, b and out, and computes nothing."""

    def __init__(self, types: tuple[str, str, str], options: Options, m: int, n: int) -> None:
        a, b, written = map(type_name, types)
        given = output_of(a, b, Matrix(written), options)
        self.spec = Gemm(dim("m"), dim("n"), dim("k"), a=a, b=b, **given)
        self.sizes = (self.spec.m, m), (self.spec.n, n)

    def __call__(self, *arrays: Any, **named: Any) -> None:
        from tilewright.runtime.call.argument_checks import learn, seen
        from tilewright.runtime.call.bound_sizes import Known

        made = signature(self.spec)
        given, _ = Arranger(made)(arrays, named)
        operands = {operand.name for operand in self.spec.named}
        pairs = [p for p in zip(made.arrays, given, strict=True) if p[0].name in operands]
        parameters, vectors = [p for p, _ in pairs], [x for _, x in pairs]
        known = Known()
        for size, value in self.sizes:
            known.agrees(size, value, "out")
        learn(parameters, seen(parameters, vectors), known)
