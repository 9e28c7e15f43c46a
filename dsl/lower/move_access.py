"""The accesses of a move: load one vector of elements or words, convert it, and store it."""

from __future__ import annotations

from sympy import Expr, Integer

from tilewright.elementwise.builder import Argument as Element
from tilewright.elementwise.builder import Value
from tilewright.elementwise.conversions import narrow, power_of_two, saturate, widen
from tilewright.ir.access import bits_of, load, store
from tilewright.ir.dataflow import (
    pointers_used,
    sizes_used,
    stored_in_parts,
    without_idle_masks,
    without_unread,
)
from tilewright.ir.emitter import Emitter
from tilewright.ir.ops import Load, MakeMask, Parameter, Store, TileProgram
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.isa.vector import Vector
from tilewright.lower.vectors import known
from tilewright.plan.routines.copy import Layout, Move, clamps
from tilewright.spec.types import ITEMSIZE, is_integer, is_signed
from tilewright.symbolic import linear, value


class MoveAccess:
    """The operations of one tile so far: they read ``x`` and write ``out``."""

    def __init__(self, move: Move) -> None:
        wide = ITEMSIZE[move.source.type] == 8 and not move.resized
        self.move = move
        self.emitter = Emitter(move.target, move.lanes, "w", "f64" if wide else "f32")
        self.builder = self.emitter.builder
        self.lanes, self.together = move.lanes, move.together
        #: The element type of a register of words. Elements of 32 and 64 bits are words themselves.
        self.word = move.source.type if self.together == 1 else "s32"
        self.masks: set[str] = set()
        #: For elements of 4 bits of two lines that share a byte: the number of lines of a block,
        #: and the pairs of vectors read so far, by first line and place along the depth.
        self.block_lines = 0
        self.pairs: dict[tuple[int, int], list[Register]] = {}
        self.networks = 0
        #: What the tile does, in a few words; its name, if this is empty.
        self.summary = ""

    def program(self, name: str) -> TileProgram:
        """Return the tile's program."""
        move, ops = self.move, list(self.emitter.emit())
        types = {"x": move.source.type, "sums": "s32"}
        pointers = sorted(pointers_used(ops), key=("x", "out", "one", "other", "sums").index)
        return TileProgram(
            name=name,
            element=move.made.type,
            parameters=(
                *(
                    Parameter(name, "in" if name == "x" else "out", types.get(name, move.made.type))
                    for name in pointers
                ),
                *(Parameter(slot, "size") for slot in sizes_used(ops, move.slots)),
            ),
            body=(),
            end=without_idle_masks(without_unread(tuple(stored_in_parts(ops)))[0]),
            summary=self.summary or name.replace("_", " "),
        )

    # --- elements ------------------------------------------------------------------------------

    @property
    def _memory(self) -> str:
        """The type of elements in the source, or the integer type of their bits."""
        source = self.move.source.type
        return bits_of(source) if self.move.bits else source

    def _loaded(self, address: Address, left: Expr | None, name: str) -> Element:
        """Load an element of each lane, as an s32 value, as bits in s32, or as floating point."""
        if ITEMSIZE[self._memory] == 8 and self.move.resized:
            register = self.emitter.fresh(name, self.move.resized)
            self.emitter.add(Load(register, address, known(left), self._memory))
            return self.emitter.take(register)
        element = "s32" if is_integer(self._memory) else self.builder.real
        active = self._active(self.emitter.vector(element), left, self._memory == element)
        return self._unshifted(load(self.emitter, address, active, self._memory, name))

    def _extracted(self, word: Register, k: int) -> Element:
        """Return element ``k`` of the words in a register."""
        found, source = self.emitter.take(word), self.move.source.type
        if self.together == 1:
            return self._unshifted(found)
        b, bits = self.builder, 8 * ITEMSIZE[source]
        above = 32 - bits * (k % self.together + 1)
        moved = b("shl", found, above) if above else found
        lane = b("shr" if is_signed(source) else "ushr", moved, 32 - bits)
        if is_integer(source) or self.move.same:
            return self._unshifted(lane)
        return widen(b, lane, source)

    def _field(self, found: Element, place: int) -> Element:
        """Return element ``place`` of those that share an s32 lane."""
        b, bits = self.builder, 8 // self.move.source.fields
        above = 32 - bits * (place + 1)
        moved = b("shl", found, above) if above else found
        return b("shr" if is_signed(self.move.value) else "ushr", moved, 32 - bits)

    def _unshifted(self, found: Element) -> Element:
        shift = self.move.source.shift
        return self.builder("sub", found, shift) if shift else found

    def _converted(self, found: Element) -> Element:
        """Return an element as a value of the type to which it is rounded."""
        b, rounded, made = self.builder, self.move.rounded, self.move.made.type
        if self.move.same or ITEMSIZE[made] == 8:
            return found
        if self.move.value == "e8m0":
            found = power_of_two(b, found)
        if self.move.unit != 1:
            found = b("mul", found, self.move.unit)
        if is_integer(rounded):
            if _is_real(found):
                found = narrow(b, found, rounded)
            elif clamps(self.move.value, rounded):
                found = saturate(b, found, rounded)
            return found if is_integer(made) else widen(b, found, rounded)
        found = found if _is_real(found) else b("to_f32", found)
        if rounded in (made, "f32", self.move.value):
            return found
        return widen(b, narrow(b, found, rounded), rounded)

    def _put(self, found: Element, address: Address, left: Expr | None) -> None:
        """Store an element of each lane, or of the first ``left`` lanes."""
        made = self.move.made.type
        memory = bits_of(made) if self.move.bits else made
        element = self.builder.real if _is_real(found) else "s32"
        active = self._active(self.emitter.vector(element), left, memory == element)
        if element == "s32":
            shift = self.move.made.shift
            found = self.builder("add", found, shift) if shift else found
            # The value is already in the range of the type in memory, so the store need not clamp.
            plain = "" if memory == "s32" else memory
            self.emitter.add(Store(address, self.emitter.register(found), active, plain))
        else:
            store(self.emitter, found, element, address, active, memory)

    def _word_of(self, elements: list[Element]) -> Element:
        """Return a word of adjacent ``elements`` along the depth, the first in the lowest bits."""
        made = self.move.made.type
        if ITEMSIZE[made] >= 4:
            return elements[0] if elements else 0 if is_integer(made) else 0.0
        b, bits = self.builder, 8 * ITEMSIZE[made]
        word: Element = 0
        for place, element in enumerate(elements):
            lane = narrow(b, element, made) if _is_real(element) else element
            if is_signed(self.move.rounded) and place + 1 < self.move.made.each:
                # Clear the copies of the sign bit, which would overwrite the next elements.
                lane = b("and", lane, (1 << bits) - 1)
            moved = b("shl", lane, bits * place) if place else lane
            word = b("or", word, moved) if place else moved
        return self._flipped(word, len(elements))

    def _flipped(self, word: Element, elements: int) -> Element:
        """Add ``made.shift`` to the elements of a word: half their range, which flips top bits."""
        bits = 8 * ITEMSIZE[self.move.made.type]
        tops = sum(1 << (bits * (place + 1) - 1) for place in range(elements))
        return self.builder("xor", word, tops) if self.move.made.shift else word

    def add_to_sums(self, total: Element, first: int, some: int) -> None:
        """Add an s32 value of each line to the line's sum in memory."""
        active = self.active("s32", some)
        address = Address("sums", Integer(first))
        old = load(self.emitter, address, active, "s32", f"sum{first}")
        store(self.emitter, self.builder("add", old, total), "s32", address, active, "s32")

    # --- memory --------------------------------------------------------------------------------

    def _at(self, pointer: str, side: Layout, line: int, k: int, more: int = 0) -> Address:
        """Return the address of an element of the block, and ``more`` elements after it."""
        depth, left = divmod(k, side.group) if not side.along else (k, 0)
        depth *= 1 if side.along else side.group
        terms = ((line, side.line_step), (depth, side.depth_step), (left + more, Integer(1)))
        return Address(pointer, linear(terms))

    def _load_word(
        self, address: Address, left: Expr | None, each: int, name: str | Register, type_: str = ""
    ) -> Register:
        """Load a register of words of ``each`` elements, of which ``left`` elements exist."""
        type_ = type_ or self.move.source.type
        if isinstance(name, str):
            register = self.emitter.fresh(name, type_ if each == 1 else "s32")
        else:
            register = name
        if each == 1:
            active = self._active(register.vector, left, True)
            self.emitter.add(Load(register, address, active))
            return register
        words = register.vector.mask
        if left is not None and words is not None and each in words.groups:
            memory = {4: "u8", 2: "s16"}[each]
            vector = self.move.target.holding(memory, register.vector.lanes * each)
            self.emitter.add(Load(register, address, self._mask(vector, left), type_, each))
        else:
            self.emitter.add(Load(register, address, known(left), type_, each))
        return register

    def _store_word(
        self, address: Address, register: Register, left: Expr | None, each: int
    ) -> None:
        """Store a register of words of ``each`` elements, of which ``left`` elements exist."""
        made = self.move.made.type
        if register.vector.element == made:
            self.emitter.add(Store(address, register, self._active(register.vector, left, True)))
        elif ITEMSIZE[made] == 8:  # of lanes of 32 bits, by a store that converts
            self.emitter.add(Store(address, register, known(left), made))
        else:
            self.emitter.add(Store(address, register, known(left), made, each))

    def active(self, element: str, some: int) -> Active:
        """Return the lanes of an access to elements, without conversion, of ``some`` lines."""
        left = None if some == self.lanes else Integer(some)
        return self._active(self.emitter.vector(element), left, True)

    def _active(self, vector: Vector, left: Expr | None, plain: bool) -> Active:
        """Return the active lanes of an access: None for all, else a mask or a number.

        Only an access to ``plain`` elements, which are not converted, can have a mask.
        """
        return known(left) if left is None or not plain else self._lanes(vector, left)

    def _lanes(self, vector: Vector, left: Expr) -> Active:
        """Return the first lanes of a vector: a mask if it has masks, else a number."""
        return known(left) if vector.mask is None else self._mask(vector, left)

    def _mask(self, vector: Vector, left: Expr) -> MaskRegister:
        mask = MaskRegister(f"{vector.name}_{value(left) or 'tail'}", vector, left)
        if mask.name not in self.masks:
            self.masks.add(mask.name)
            self.emitter.add(MakeMask(mask))
        return mask


def _is_real(found: Element) -> bool:
    return isinstance(found, float) or (isinstance(found, Value) and found.element != "s32")
