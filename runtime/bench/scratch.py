"""Compute the scratch memory of a kernel's calls.

In go the kernel's spec and the sizes of a call. Out come bytes, as its C function reports them, or
for an emulated kernel, its program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.runtime.call.bound_sizes import given_sizes
from tilewright.runtime.reference.arguments import call_sizes
from tilewright.spec.gemm import Spec
from tilewright.spec.signature import Signature
from tilewright.spec.sizes import whole_number

if TYPE_CHECKING:
    from tilewright.plan.loops import Decided

#: Alignment in bytes of each simultaneous call's part of the scratch memory: a cache line. The size
#: of the last part is not rounded up.
_ALIGNED = 64


def scratch_bytes(
    spec: Spec,
    signature: Signature,
    of: Callable[[Mapping[str, int]], int],
    threads: object,
    sizes: Mapping[str, int],
) -> int:
    """Return the bytes of scratch memory for ``threads`` simultaneous calls.

    ``of`` takes the sizes of one call by the names of their C parameters, such as "lda". It returns
    the bytes for that call.
    """
    count = whole_number(threads)
    if count is None or count < 1:
        raise ArgumentValueError(
            "threads is how many calls there are at a time", got=threads, expected="1 or more"
        )
    given = given_sizes(spec, dict(sizes))
    slots = [parameter.slot for parameter in signature.sizes]
    lengths = [slot for slot in slots if not slot.startswith(("ld", "stride_"))]
    if missing := [slot.removesuffix("_") for slot in lengths if slot not in given]:
        shown = ", ".join(f"{slot.removesuffix('_')}=..." for slot in lengths)
        raise ArgumentTypeError(
            f"the scratch memory depends on the sizes of the call: {' and '.join(missing)}",
            got=", ".join(f"{name}={value}" for name, value in sizes.items()) or "no sizes",
            expected=f"kernel.scratch_bytes({shown})",
        )
    each = of(dict(zip(slots, call_sizes(signature, given), strict=True)))
    return (count - 1) * -(-each // _ALIGNED) * _ALIGNED + each


def scratch_of(
    address: int, plan: Callable[[], Decided], threads: int | None, sizes: Mapping[str, int]
) -> int:
    """Return the bytes of scratch memory for one call, from the C function at ``address``.

    If the address is 0, the plan's program is evaluated. ``threads`` is the schedule's number of
    threads; by default each CPU of this machine counts as one.
    """
    if not address:
        from tilewright.generate import program_for
        from tilewright.ir.nest import WORKERS
        from tilewright.symbolic import evaluate

        workers = threads or os.cpu_count() or 1
        whole = program_for(plan()).whole_scratch
        return max(0, evaluate(whole, {**sizes, WORKERS.name: workers}))
    from ctypes import CFUNCTYPE, c_int64, c_void_p

    held = (c_int64 * max(1, len(sizes)))(*sizes.values())
    return max(0, int(CFUNCTYPE(c_int64, c_void_p)(address)(held)))
