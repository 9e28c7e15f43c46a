"""Rewrite loads and stores that a target lacks: of other element types, or of part of a vector.

Elements of another type are converted by the access, or by operations after it. If the vector
cannot load or store some number of lanes, these lanes are copied through a stack buffer. ``legal``
adds these copies to finished tiles. A program then shows everything that its C code does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count

from tilewright.elementwise.builder import Argument
from tilewright.elementwise.conversions import narrow, saturate, widen
from tilewright.isa.target import Target
from tilewright.spec.types import ELEMENTS, is_integer
from tilewright.symbolic import ZERO

from .emitter import Emitter
from .nodes import within
from .ops import (
    Apply,
    Copy,
    FillLanes,
    Load,
    Op,
    StackBuffer,
    Store,
    TileProgram,
)
from .values import Active, Address, Register


def bits_of(type_: str) -> str:
    """Return an integer type with the size of ``type_``, for example u32 for f32 and s8 for s8."""
    return type_ if is_integer(type_) else f"u{8 * ELEMENTS[type_].itemsize}"


def read(
    target: Target,
    dst: Register,
    address: Address,
    active: Active,
    memory: str,
    *,
    loose: bool = False,
) -> Iterator[Op]:
    """Yield operations that load elements of type ``memory`` into ``dst``, converted to its type.

    If the vector has a converting load, the load converts the elements, also from integers of the
    other signedness. Otherwise operations after the load convert them. ``loose`` is that of
    ``Load``.
    """
    vector = dst.vector
    loose = loose and active is not None
    if memory == vector.element:
        yield Load(dst, address, active, loose=loose)
    elif memory in vector.loads or memory == vector.flips:
        yield Load(dst, address, active, memory, loose=loose)
    else:
        emitter = Emitter(target, vector.lanes, f"{dst.name}x", vector.element)
        found = load(emitter, address, active, memory, "")
        if is_integer(memory):
            widen(emitter.builder, found, memory)
        *ops, last = emitter.emit()
        assert isinstance(last, Apply)
        yield from ops
        yield replace(last, dst=dst)


def load(emitter: Emitter, address: Address, active: Active, memory: str, name: str) -> Argument:
    """Load elements of type ``memory``; return them as the emitter's float or integer type.

    The lanes that are not ``active`` become 0.
    """
    element = emitter.builder.whole if is_integer(memory) else emitter.builder.real
    direct = memory == element or memory in emitter.vector(element).loads
    register = emitter.fresh(
        name if direct else f"{name}_bits".lstrip("_"), element if direct else "s32"
    )
    plain = "" if memory == register.vector.element else memory if direct else bits_of(memory)
    emitter.add(Load(register, address, active, plain))
    value = emitter.take(register)
    return value if direct else widen(emitter.builder, value, memory)


def filled(emitter: Emitter, value: Argument, active: Active, fill: Argument) -> Argument:
    """Return ``value`` with ``fill`` in the lanes that are not ``active``."""
    if active is None:
        return value
    src, other = emitter.register(value), emitter.register(fill)
    dst = emitter.unnamed(src.vector.element)
    emitter.add(FillLanes(dst, src, other, active))
    return emitter.take(dst)


def store(
    emitter: Emitter, value: Argument, element: str, address: Address, active: Active, memory: str
) -> None:
    """Store ``value``, of type ``element``, as elements of type ``memory``."""
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


# --- through the stack -----------------------------------------------------------------


def legal(tile: TileProgram, target: Target) -> TileProgram:
    """Return ``tile`` with copies through the stack for loads and stores that its vectors lack."""
    ways = _Ways("" if target.mode is None else target.mode.copy)
    return replace(tile, body=tuple(ways.legal(tile.body)), end=tuple(ways.legal(tile.end)))


@dataclass
class _Ways:
    """Replaces loads and stores that a target lacks by copies through stack buffers.

    ``by`` is the C function that copies; "" means ``memcpy``. ``taken`` are the buffers' names.
    """

    by: str
    taken: set[str] = field(default_factory=set)

    def legal(self, ops: Iterable[Op]) -> Iterator[Op]:
        """Yield ``ops``, with copies through the stack for accesses that the vectors lack."""
        for op in ops:
            if isinstance(op, Load) and not reachable(op):
                buffer = _buffer(op, op.dst, self.taken, zeros=True)
                inside = Address(buffer.name, ZERO)
                yield from (buffer, Copy(inside, op.address, buffer.element, op.count, self.by))
                yield replace(op, address=inside, active=None)
            elif isinstance(op, Store) and not reachable(op):
                buffer = _buffer(op, op.src, self.taken, zeros=False)
                inside = Address(buffer.name, ZERO)
                yield from (buffer, replace(op, address=inside, active=None))
                yield Copy(op.address, inside, buffer.element, op.count, self.by)
            else:
                yield within(op, self.legal)


def streams(op: Store) -> bool:
    """Return True if a store may bypass the caches: it stores all lanes, without conversion."""
    plain = op.active is None and not (op.memory or op.group)
    return plain and bool(op.src.vector.stream)


def reachable(op: Load | Store) -> bool:
    """Return True if the target can load or store exactly the active lanes of ``op``."""
    return op.active is None or bool(op.spelling)


def _buffer(op: Load | Store, register: Register, taken: set[str], *, zeros: bool) -> StackBuffer:
    """Return a new stack buffer with a unique name, which can hold all elements of ``register``."""
    first = f"{register.name}_part"
    names = chain((first,), (f"{first}{again}" for again in count(2)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return StackBuffer(name, op.element, register.vector.lanes * max(op.group, 1), zeros)
