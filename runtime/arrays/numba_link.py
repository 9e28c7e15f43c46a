"""Link a kernel's C functions into code that numba compiles; importing this imports numba.

Compiled code names the functions by symbols that hold the kernel's key. LLVM finds the addresses
when it loads the code, so numba can keep that code on disk (``cache=True``). Each compiled function
carries a ``Linked`` along: reading it from numba's cache makes the kernel and defines the symbols.
"""

from __future__ import annotations

import pickle
from ctypes import CFUNCTYPE, c_int64, c_void_p
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tilewright.errors import TilewrightError
from tilewright.plan.formats.packed_b import ALIGNMENT

_WORD = ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()


class Linked:
    """The link to a kernel's functions, which numba stores with code that calls them."""

    def __init__(self, kernel: Any, key: str) -> None:
        self.kernel, self.key = kernel, key
        for address, what in zip(kernel.functions, ("invoke", "scratch_bytes"), strict=True):
            binding.add_symbol(self.symbol(what), address)
        #: Bytes of scratch that each call needs; None if they depend on the sizes of the call.
        self.scratch: int | None = None
        if not kernel.signature.sizes:
            self.scratch = CFUNCTYPE(c_int64, c_void_p)(kernel.functions[1])(None)

    def symbol(self, what: str) -> str:
        """Return the symbol of a function of the kernel."""
        return f"tilewright_{self.key}_{what}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _linked_again, (pickle.dumps(self.kernel), self.key)


def _linked_again(pickled: bytes, key: str) -> Linked:
    """Link the kernel of code that numba kept; OSError if the kernel is another one by now.

    numba compiles the function anew after an OSError, as if the file were gone. The kernel is
    another one, for example, after an update of tilewright or a tuning.
    """
    try:
        found: Linked = pickle.loads(pickled).numba.linked
    except (TilewrightError, pickle.PickleError, ImportError, AttributeError) as error:
        raise OSError(f"the kernel cannot be made: {error}") from error
    if found.key != key:
        raise OSError("the kernel is another one than the compiled code calls")
    return found


def invoke_of(linked: Linked) -> Any:
    """Return the function that calls a kernel with tuples of addresses, sizes and numbers.

    It returns 0, or 1 if there is no memory for the kernel's scratch.
    """

    def invoke(_: Any, pointers: Any, sizes: Any, numbers: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # numba stores the constants of each environment that a module declares. get_env_manager
            # would also check it at run time, in each call.
            context.declare_env_global(builder.module, context.get_env_name(context.fndesc))
            context.environment.consts.append(linked)
            kinds = (_WORD, _WORD, ir.DoubleType())
            given = [
                _stored(context, builder, type_, value, kind)
                for type_, value, kind in zip(signature.args, args, kinds, strict=True)
            ]
            return _called(context, builder, linked, given)

        return types.int64(pointers, sizes, numbers), generate

    return intrinsic(invoke)


def _called(context: Any, builder: Any, linked: Linked, given: list[Any]) -> Any:
    """Call the kernel, with scratch if it needs any; return 1 if there is no memory for it."""
    invoke = _declared(builder, linked.symbol("invoke"), ir.VoidType(), 4)
    failed = cgutils.alloca_once_value(builder, ir.Constant(_WORD, 0))
    if linked.scratch is None:
        scratch_bytes = _declared(builder, linked.symbol("scratch_bytes"), _WORD, 1)
        nbytes = builder.call(scratch_bytes, [given[1]])
    else:
        nbytes = ir.Constant(_WORD, linked.scratch)
    needs = builder.icmp_signed(">", nbytes, ir.Constant(_WORD, 0))
    with builder.if_else(needs, likely=False) as (some, none):
        with none:
            builder.call(invoke, [*given, ir.Constant(_POINTER, None)])
        with some:
            room = builder.add(nbytes, ir.Constant(_WORD, ALIGNMENT))
            scratch = context.nrt.allocate(builder, room)
            with builder.if_else(cgutils.is_null(builder, scratch)) as (missing, found):
                with missing:
                    builder.store(ir.Constant(_WORD, 1), failed)
                with found:
                    builder.call(invoke, [*given, _aligned(builder, scratch)])
                    context.nrt.free(builder, scratch)
    return builder.load(failed)


def _address(_: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _WORD)

    return types.int64(array), generate


#: The function that returns the address of an array's first element.
address = intrinsic(_address)


def _declared(builder: Any, symbol: str, result: Any, count: int) -> Any:
    """Return the C function ``symbol`` of ``count`` pointers."""
    kind = ir.FunctionType(result, [_POINTER] * count)
    return cgutils.get_or_insert_function(builder.module, kind, symbol)


def _stored(context: Any, builder: Any, type_: Any, value: Any, kind: Any) -> Any:
    """Store a tuple of numbers on the stack; return its address."""
    count = len(type_)
    place = cgutils.alloca_once(builder, kind, size=max(count, 1))
    to = types.float64 if kind == ir.DoubleType() else types.int64
    for i in range(count):
        item = context.cast(builder, builder.extract_value(value, i), type_.types[i], to)
        builder.store(item, cgutils.gep_inbounds(builder, place, i))
    return builder.bitcast(place, _POINTER)


def _aligned(builder: Any, pointer: Any) -> Any:
    """Return the first aligned address from a pointer on."""
    up = builder.add(builder.ptrtoint(pointer, _WORD), ir.Constant(_WORD, ALIGNMENT - 1))
    return builder.inttoptr(builder.and_(up, ir.Constant(_WORD, -ALIGNMENT)), _POINTER)
