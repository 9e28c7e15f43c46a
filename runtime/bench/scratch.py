"""How much scratch memory calls of a kernel need: what its function in C says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.runtime.call.bound_sizes import given_sizes
from tilewright.runtime.reference.arguments import call_sizes
from tilewright.spec.sizes import whole_number

if TYPE_CHECKING:
    from tilewright.runtime.kernel import Kernel

#: Bytes that each call's part is a multiple of, but for the last: a cache line.
_ALIGNED = 64


def scratch_bytes(kernel: Kernel, address: int, threads: object, sizes: Mapping[str, int]) -> int:
    """Bytes for ``threads`` calls at a time; C's function for that is at ``address``.

    For an emulated kernel the address is 0, and its program says it.
    """
    count = whole_number(threads)
    if count is None or count < 1:
        raise ArgumentValueError(
            "threads is how many calls there are at a time", got=threads, expected="1 or more"
        )
    given = given_sizes(kernel.spec, dict(sizes))
    slots = [parameter.slot for parameter in kernel.signature.sizes]
    lengths = [slot for slot in slots if not slot.startswith(("ld", "stride_"))]
    if missing := [slot for slot in lengths if slot not in given]:
        raise ArgumentTypeError(
            f"the scratch memory depends on the sizes of the call: {' and '.join(missing)}",
            got=", ".join(f"{name}={value}" for name, value in sizes.items()) or "no sizes",
            expected=f"kernel.scratch_bytes({', '.join(f'{slot}=...' for slot in lengths)})",
        )
    values = call_sizes(kernel.signature, given)
    each = (
        _by_c(address, values)
        if address
        else _by_program(kernel, dict(zip(slots, values, strict=True)))
    )
    return (count - 1) * -(-each // _ALIGNED) * _ALIGNED + each


def _by_c(address: int, sizes: list[int]) -> int:
    from ctypes import CFUNCTYPE, c_int64, c_void_p

    held = (c_int64 * max(1, len(sizes)))(*sizes)
    return max(0, CFUNCTYPE(c_int64, c_void_p)(address)(held))


def _by_program(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    from tilewright.generate import program_for
    from tilewright.symbolic import evaluate

    return max(0, evaluate(program_for(kernel.plan).scratch, sizes))
