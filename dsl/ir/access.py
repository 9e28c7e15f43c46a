"""Reading and writing elements of one type as another: converted by the access, or behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.elementwise.builder import Argument
from tilewright.elementwise.conversions import narrow, saturate, widen
from tilewright.isa.target import Target
from tilewright.spec.types import ELEMENTS, is_integer

from .emitter import Emitter
from .ops import Active, Address, Apply, Load, Op, Register, Store


def bits_of(type_: str) -> str:
    """The integers as which an element's bits are moved: unsigned but for s8."""
    return type_ if is_integer(type_) else f"u{8 * ELEMENTS[type_].itemsize}"


def read(
    target: Target, dst: Register, address: Address, active: Active, memory: str
) -> Iterator[Op]:
    """``dst`` from elements of type ``memory``, by the access itself or by what follows it."""
    vector = dst.vector
    if memory == vector.element:
        yield Load(dst, address, active)
    elif memory in vector.loads:
        yield Load(dst, address, active, memory)
    else:
        emitter = Emitter(target, vector.lanes, f"{dst.name}x", vector.element)
        load(emitter, address, active, memory, "")
        *ops, last = emitter.emit()
        assert isinstance(last, Apply)
        yield from ops
        yield replace(last, dst=dst)


def load(emitter: Emitter, address: Address, active: Active, memory: str, name: str) -> Argument:
    """Elements of type ``memory`` as the emitter's floating-point type, or s32 for integers."""
    element = "s32" if is_integer(memory) else emitter.builder.real
    direct = memory == element or memory in emitter.vector(element).loads
    register = emitter.fresh(
        name if direct else f"{name}_bits".lstrip("_"), element if direct else "s32"
    )
    plain = "" if memory == register.vector.element else memory if direct else bits_of(memory)
    emitter.add(Load(register, address, active, plain))
    value = emitter.take(register)
    return value if direct else widen(emitter.builder, value, memory)


def store(
    emitter: Emitter, value: Argument, element: str, address: Address, active: Active, memory: str
) -> None:
    """``value``, of type ``element``, as elements of type ``memory``."""
    if element == memory:
        emitter.add(Store(address, emitter.register(value), active))
        return
    if element != "s32" and memory in emitter.vector(element).stores:
        emitter.add(Store(address, emitter.register(value), active, memory))
        return
    convert = saturate if element == "s32" else narrow
    lanes = convert(emitter.builder, value, memory)
    plain = "" if memory == "s32" else bits_of(memory)
    emitter.add(Store(address, emitter.register(lanes), active, plain))
