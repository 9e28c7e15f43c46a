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
from tilewright.plan.formats.layout import ALIGNMENT

_WORD = ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()


class Linked:
    """The link to a kernel's functions, which numba stores with code that calls them."""

    def __init__(self, kernel: Any, key: str) -> None:
        self.kernel, self.key = kernel, key
        for address, what in zip(kernel.functions, ("invoke", "scratch_bytes"), strict=True):
            binding.add_symbol(self.symbol(what), address)
        #: Bytes of scratch memory that each call needs; None if the call's sizes, or the number of
        #: CPUs of the machine that runs it, determine them.
        self.scratch: int | None = None
        if not kernel.signature.sizes and "tilewright_workers(" not in kernel.source:
            self.scratch = CFUNCTYPE(c_int64, c_void_p)(kernel.functions[1])(None)

    def symbol(self, what: str) -> str:
        """Return the symbol by which compiled code names one of the kernel's C functions."""
        return f"tilewright_{self.key}_{what}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _linked_again, (pickle.dumps(self.kernel), self.key)


def _linked_again(pickled: bytes, key: str) -> Linked:
    """Link the kernel into code from numba's cache; OSError if the kernel has changed since.

    A kernel changes, for example, by an update of tilewright or by a tuning. After an OSError,
    numba compiles the function anew, as if the cached file were gone.
    """
    try:
        found: Linked = pickle.loads(pickled).numba.linked
    except (TilewrightError, pickle.PickleError, ImportError, AttributeError) as error:
        raise OSError(f"the kernel cannot be made: {error}") from error
    if found.key != key:
        raise OSError("the kernel is another one than the compiled code calls")
    return found


def invoke_of(linked: Linked) -> Any:
    """Return a function for numba's code that calls the kernel.

    Its arguments are tuples of the arrays' addresses, of sizes, and of numbers such as alpha.

    It returns 0, or 1 if there is no memory for the kernel's scratch.
    """

    def invoke(_: Any, pointers: Any, sizes: Any, numbers: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # numba stores the constants of each environment that a module declares. get_env_manager
            # would also check the environment at run time, in each call.
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
    """Generate the call of the kernel, with scratch memory if it needs any.

    The generated code yields 0, or 1 if there is no memory for the scratch.
    """
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


#: Function for numba's compiled code that returns the address of an array's first element.
address = intrinsic(_address)


def _declared(builder: Any, symbol: str, result: Any, count: int) -> Any:
    """Declare the C function ``symbol``, which takes ``count`` pointers, in LLVM's module."""
    kind = ir.FunctionType(result, [_POINTER] * count)
    return cgutils.get_or_insert_function(builder.module, kind, symbol)


def _stored(context: Any, builder: Any, type_: Any, value: Any, kind: Any) -> Any:
    """Generate code that stores a tuple of numbers on the stack. Return the tuple's address."""
    count = len(type_)
    place = cgutils.alloca_once(builder, kind, size=max(count, 1))
    to = types.float64 if kind == ir.DoubleType() else types.int64
    for i in range(count):
        item = context.cast(builder, builder.extract_value(value, i), type_.types[i], to)
        builder.store(item, cgutils.gep_inbounds(builder, place, i))
    return builder.bitcast(place, _POINTER)


def _aligned(builder: Any, pointer: Any) -> Any:
    """Generate code that rounds a pointer up to a multiple of ``ALIGNMENT`` bytes."""
    up = builder.add(builder.ptrtoint(pointer, _WORD), ir.Constant(_WORD, ALIGNMENT - 1))
    return builder.inttoptr(builder.and_(up, ir.Constant(_WORD, -ALIGNMENT)), _POINTER)
