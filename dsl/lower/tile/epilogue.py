"""From sums to D: zero points, alpha and beta, scales, the epilogue, and conversion to D's type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from sympy import Expr

from tilewright.elementwise.builder import Argument, Builder
from tilewright.elementwise.functions import lower_expression
from tilewright.elementwise.simplify import simplify
from tilewright.ir.access import bits_of, load, store
from tilewright.ir.emitter import Emitter
from tilewright.ir.ops import (
    Load,
    Note,
    Op,
    StackBuffer,
    Store,
)
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.plan.operands import Operand
from tilewright.spec.expression import Call, Expression, Leaf, acc, acc2
from tilewright.spec.expression import Operand as Named
from tilewright.spec.gemm import Gemm
from tilewright.spec.scalars import of_sums, quantity_type
from tilewright.spec.signature import symbol_of
from tilewright.spec.types import is_integer
from tilewright.symbolic import ONE, div, linear, value

from .row_reductions import Place, Reducer
from .tile import Tile


@dataclass(frozen=True, slots=True)
class Output:
    """A register whose lanes become elements of C or D.

    Its lanes run along dimension ``line``, from row ``m`` and column ``n`` of the tile on.
    ``active`` lanes exist.
    """

    acc: Register
    line: str
    m: int
    n: int
    active: Active

    @staticmethod
    def of(acc: Register, line: str, along: int, across: int, active: Active) -> Output:
        """Return an output that begins ``along`` elements into ``line`` and ``across`` into the
        other dimension.
        """
        place = (along, across) if line == "m" else (across, along)
        return Output(acc, line, *place, active)

    @property
    def said(self) -> str:
        """The rows and columns in the tile, as text for comments in C."""
        active = self.active.active if isinstance(self.active, MaskRegister) else self.active
        lanes = self.acc.vector.lanes if active is None else value(active * ONE)
        last = "the last" if lanes is None else getattr(self, self.line) + lanes - 1
        one = last == getattr(self, self.line)
        if self.line == "m":
            rows = f"row {self.m}" if one else f"rows {self.m} to {last}"
            return f"{rows}, column {self.n}"
        return f"row {self.m}, " + (f"column {self.n}" if one else f"columns {self.n} to {last}")

    def lane(self, lane: int, register: Register) -> Output:
        """Return the output of a single lane, which ``register`` holds."""
        m, n = (
            self.m + (lane if self.line == "m" else 0),
            self.n + (lane if self.line == "n" else 0),
        )
        return Output(register, self.line, m, n, None)

    @property
    def place(self) -> Place:
        """The place of the lanes for reductions of rows."""
        return Place(self.line, self.m, self.active)

    def at(self, operand: Operand) -> Address:
        """Return the address of the first lane in an operand."""
        strides = operand.strides
        return Address(operand.name, linear(((self.m, strides["m"]), (self.n, strides["n"]))))


#: For outputs that are still in memory: the operations that load their registers.
Reads = Mapping[Output, tuple[Op, ...]]


def finished(tile: Tile, outputs: Sequence[Output], reads: Reads) -> Iterator[Op]:
    """Compute D from each output, and reduce rows. Values that outputs share are read once."""
    finishers: dict[int, _Finisher] = {}
    for output in outputs:
        lanes = output.acc.vector.lanes
        if lanes not in finishers:
            finishers[lanes] = _Finisher(tile, lanes, _prefix(outputs[0], lanes, bool(finishers)))
        yield from reads.get(output, ())
        yield from finishers[lanes].finish(output)
    for finisher in finishers.values():
        yield from finisher.reduced()


#: Words for operators in the names of values, for example ``c0_0_plus_bias``.
_WORDS = {"add": "plus", "sub": "minus", "mul": "times", "div": "over"}


def _prefix(first: Output, lanes: int, several: bool) -> str:
    """Return the prefix for names of values that outputs share; "" for the first group of
    outputs.
    """
    place = f"at{first.m}_{first.n}_" if first.m or first.n else ""
    return f"{place}x{lanes}_" if several else place


class _Finisher:
    """Emits the end of outputs with the same number of lanes, stage by stage."""

    def __init__(self, tile: Tile, lanes: int, prefix: str) -> None:
        self.tile, self.plan, self.spec = tile, tile.plan, tile.plan.spec
        real = "f64" if self.spec.type == "f64" else "f32"
        self.emitter = Emitter(self.plan.target, lanes, prefix, real, _whole_of(self.spec))
        self.read: dict[object, Argument] = {}
        self.explained = False
        self.reducers = [
            (self._rewritten(r.expression), Reducer(self.emitter, r.fn, symbol_of(name)))
            for name, r in self.spec.outputs
        ]

    @property
    def b(self) -> Builder:
        return self.emitter.builder

    def finish(self, output: Output) -> Iterator[Op]:
        if self.explained:
            yield Note(f"{output.acc.name}: {output.said}.")
        factored = self._factored(self._corrected(self.emitter.take(output.acc), output), output)
        total = factored
        if not self.spec.stays_integer or self.reducers:
            total = self._scaled(factored, output)
        self._stage(output, "epilogue", "")
        leaves = _Leaves(self, total, output)
        for reduced, reducer in self.reducers:
            entering = self._entering(output, f"{reducer.pointer}of_", "Of what is reduced")
            value = lower_expression(reduced, self.b, leaves, self.b.real, entering)
            self._stage(output, f"{reducer.pointer}so_far", f"{reducer.said}, so far.")
            reducer.add(value, output.place)
        if self.spec.stays_integer:
            result, element = self._added(factored, output), self.b.whole
        else:
            result, element = self._converted(total, leaves, output), self.b.real
        written = self.plan.staging.output
        how = "" if element == written.type else f", as {written.type}"
        self._stage(output, written.type, f"Store{how}.")
        store(self.emitter, result, element, output.at(written), output.active, written.type)
        yield from self.emitter.emit()
        self.explained = True

    def reduced(self) -> Iterator[Op]:
        """Combine the reduced values of rows with the values in memory."""
        for _, reducer in self.reducers:
            self.emitter.stage(
                f"{reducer.pointer}all", "", f"{reducer.said}: with what stands there."
            )
            reducer.flush()
        yield from self.emitter.emit()

    def second(self, output: Output, whole: bool) -> Argument:
        """Return the product with B2, with alpha and scales as for the first product, before C is
        added.
        """
        total = self._corrected(self._operand("sums2", output), output, "b2_sums")
        total = self._multiplied(total, output)
        return total if whole else self._scaled(total, output)

    # --- the stages ----------------------------------------------------------------------------

    def _stage(self, output: Output, name: str, note: str, family: str = "") -> None:
        """Start a stage of one output. Only the first output's stages get a comment in C."""
        self.emitter.stage(name, output.acc.name, "" if self.explained else note, family)

    def _shared(self, name: str, note: str, family: str = "") -> None:
        """Start a stage of values that outputs share: of a column, of a row, or of the
        whole tile.
        """
        self.emitter.stage(name, "", "" if self.explained else note, family)

    def _entering(
        self, output: Output, family: str = "", what: str = "Epilogue"
    ) -> Callable[[Call], None]:
        """Return a callback that starts a stage for each function of an expression.

        The stage is named after the function and the operand that it reads, for example
        ``plus_bias``.
        """

        def entering(call: Call) -> None:
            named = [arg.name for arg in call.args if isinstance(arg, Named)]
            name = "_".join((_WORDS.get(call.fn, call.fn), *named))
            said = name.replace("_", " ") if call.fn in _WORDS else call.fn
            self._stage(output, f"{family}{name}", f"{what}: {said}.")

        return entering

    def _corrected(self, total: Argument, output: Output, b_sums: str = "b_sums") -> Argument:
        """Return ``sum (A - za)(B - zb)`` from ``sum (A + sa)(B + sb)`` and the sums of A
        and of B.
        """
        if not self.plan.staging.corrects:
            return total
        b, shifts = self.b, self.plan.staging.product.shifts
        self._shared("zeros", "Zero points.")
        za, zb = (self._quantity(f"{name}_zero", output, 0) for name in "ab")
        if not is_integer(self.spec.type):
            return self._less_zero(total, output, (za, zb), b_sums)
        if (of_a := _plus(b, za, shifts["a"])) != 0:
            note = "Zero point of A, times the sums of B's columns over K: subtracted."
            self._times_sums(output, "a_zero", f"{b_sums}_{output.n}", note)
            each = b("mul", self._terms(), zb) if zb != 0 else 0
            more = b("mul", of_a, b("sub", each, self._operand(b_sums, output)))
            self._stage(output, "less_a_zero", "")
            total = b("add", total, more)
        if (of_b := _plus(b, zb, shifts["b"])) != 0:
            note = "Zero point of B, times the sums of A's rows over K: subtracted."
            self._times_sums(output, "b_zero", f"a_sums_{output.m}", note)
            sums = self._operand("a_sums", output)
            sums = b("add", sums, b("mul", self._terms(), shifts["a"])) if shifts["a"] else sums
            less = b("mul", of_b, sums)
            self._stage(output, "less_b_zero", "")
            total = b("sub", total, less)
        return total

    def _less_zero(
        self, total: Argument, output: Output, zeros: tuple[Argument, Argument], b_sums: str
    ) -> Argument:
        """Return ``sum (A - za) B`` or ``sum A (B - zb)`` from ``sum A B`` in floating point."""
        name, zero, sums = ("a", zeros[0], b_sums) if zeros[0] != 0 else ("b", zeros[1], "a_sums")
        note = f"Zero point of {name.upper()}, times the sums of the other operand: subtracted."
        place = output.n if name == "a" else output.m
        self._times_sums(output, f"{name}_zero", f"{sums}_{place}", note)
        less = self.b("neg", self._as(zero, "s32", self.b.real))
        of_lines = self._operand(sums, output)
        self._stage(output, f"less_{name}_zero", "")
        return self.b("fma", less, of_lines, total)

    def _times_sums(self, output: Output, zero: str, sums: str, note: str) -> None:
        """Start the stage that multiplies a zero point by sums.

        Its value is shared by a row or column unless the zero point itself varies.
        """
        if getattr(self.spec, zero) in ("row", "column"):
            self._stage(output, f"{zero}_times_sums", note, zero)
        else:
            self._shared(f"{zero}_times_{sums}", note, zero)

    def _terms(self) -> Argument:
        """Return the number of products in a sum."""
        terms = self.plan.problem.sizes["k"] * self.plan.problem.matrices
        known = value(terms)
        return known if known is not None else self._number("terms", terms, "s32")

    @property
    def _kind(self) -> str:
        """The type in which alpha and beta are applied."""
        return self.spec.factor_type

    def _multiplied(self, total: Argument, output: Output) -> Argument:
        """Return ``alpha * acc``."""
        if self.spec.type != self._kind:
            self._stage(output, self._kind, f"Convert the sums to {self._kind}.")
        total = self._as(total, self.spec.type, self._kind)
        if self.spec.alpha == 1:
            return total
        self._stage(output, "times_alpha", "Times alpha.")
        return self.b("mul", total, self._factor("alpha", self._kind))

    def _factored(self, total: Argument, output: Output) -> Argument:
        """Return ``alpha * acc + beta * C``."""
        spec, b, kind = self.spec, self.b, self._kind
        total = self._multiplied(total, output)
        if spec.beta == 0:
            return total
        self._stage(output, "plus_c", "Plus C." if spec.beta == 1 else "Plus beta times C.")
        c = self.tile.operands["c"]
        old = self._as(self._operand("c", output), _read_type(c.type, b), kind)
        if spec.beta == 1:
            return b("add", total, old)
        factor = self._factor("beta", kind)
        if is_integer(kind):
            return b("add", total, b("mul", old, factor))
        if spec.beta == "scalar" and not is_integer(c.type):  # if beta is 0, C may hold NaN
            old = b("select", b("eq", factor, 0.0), factor, old)
        return b("fma", old, factor, total)

    def _scaled(self, total: Argument, output: Output) -> Argument:
        """Convert the total to floating point and multiply it by A's and B's scales."""
        if self._kind != self.b.real:
            self._stage(output, self.b.real, f"Convert the sums to {self.b.real}.")
        total = self._as(total, self._kind, self.b.real)
        for name in ("a_scale", "b_scale"):
            if of_sums(getattr(self.spec, name)):
                self._stage(output, f"times_{name}", f"Times {name}.")
                total = self.b("mul", total, self._quantity(name, output, 1.0))
        return total

    def _converted(self, total: Argument, leaves: _Leaves, output: Output) -> Argument:
        """Apply the epilogue, and the scale and zero point of D."""
        b, spec = self.b, self.spec
        if spec.epilogue is not None:
            expression, entering = self._rewritten(spec.epilogue), self._entering(output)
            total = lower_expression(expression, b, leaves, b.real, entering)
        if spec.d_scale is not None:
            self._stage(output, "over_d_scale", "Divided by d_scale: times its reciprocal.")
            total = b("mul", total, b("div", 1.0, self._quantity("d_scale", output, 1.0)))
        if spec.d_zero not in (None, 0):
            self._stage(output, "plus_d_zero", "Plus the zero point of D.")
            zero = self._quantity("d_zero", output, 0)
            element = "s32" if isinstance(zero, int) else quantity_type("d_zero", spec.type)
            total = b("add", total, self._as(zero, element, b.real))
        return total

    def _added(self, total: Argument, output: Output) -> Argument:
        """Apply the epilogue and D's zero point in integer arithmetic."""
        if self.spec.epilogue is not None:
            leaves = _Leaves(self, total, output, whole=True)
            total = lower_expression(
                self.spec.epilogue, self.b, leaves, self.b.whole, self._entering(output)
            )
        self._stage(output, "plus_d_zero", "Plus the zero point of D.")
        return _plus(self.b, total, self._quantity("d_zero", output, 0))

    # --- what the stages use -------------------------------------------------------------------

    def _rewritten(self, expression: Expression) -> Expression:
        return simplified(expression) if self.spec.algebra else expression

    def _as(self, given: Argument, element: str, wanted: str) -> Argument:
        if element == wanted:
            return given
        if isinstance(given, int):
            return float(given)
        return self.b("to_f32", given)

    def _factor(self, name: str, kind: str) -> Argument:
        given = getattr(self.spec, name)
        if given == "scalar":
            return self._number(name, name, kind)
        return int(given) if is_integer(kind) else float(given)

    def _number(self, name: str, source: str | Expr, element: str) -> Argument:
        """Return a number that is the same in all lanes; it is made once."""
        key = name, element
        if key not in self.read:
            self.read[key] = self.emitter.splat(source, element, f"{name}_all")
        return self.read[key]

    def _quantity(self, name: str, output: Output, absent: Argument) -> Argument:
        given = getattr(self.spec, name)
        if given is None:
            return absent
        assert not isinstance(given, tuple), "scales of blocks multiply the sums of blocks"
        return self._operand(name, output) if isinstance(given, str) else given

    def _operand(self, name: str, output: Output) -> Argument:
        """Return operand ``name``'s values for the lanes of ``output``, as floats or integers."""
        operand = self.tile.operands[name]
        address = output.at(operand)
        steps = value(operand.strides[output.line])
        lanes = None if steps == 0 else output.active
        key = name, address.offset, lanes
        if key not in self.read or operand in (self.plan.staging.output, self.tile.operands["c"]):
            self.read[key] = self._read(operand, output, steps)
        return self.read[key]

    def _read(self, operand: Operand, output: Output, steps: int | None) -> Argument:
        name = self._name(operand, output)
        address = output.at(operand)
        if steps == 0:
            return self._spread(operand, address, name)
        active: Active = output.active
        if steps != 1 and self.emitter.lanes > 1:
            address = self._gather(operand, output, name)
            active = active if isinstance(active, int) else None
        with self.emitter.aside(name, operand.type):
            return load(self.emitter, address, active, operand.type, name)

    def _name(self, operand: Operand, output: Output) -> str:
        """Return the name for values of an operand. C and D are read once for each output."""
        if operand in (self.plan.staging.output, self.tile.operands["c"]):
            return f"{output.acc.name}_old_{operand.name}"
        place = {"m": str(output.m), "n": str(output.n)}
        varies = [place[dim] for dim in "mn" if operand.strides[dim] != 0]
        return "_".join((operand.name, *(varies or ["all"])))

    def _spread(self, operand: Operand, address: Address, name: str) -> Argument:
        """Load one element and broadcast it to all lanes."""
        prefix = f"{self.emitter.prefix}{name}_"
        single = Emitter(self.plan.target, 1, prefix, self.b.real, self.b.whole)
        found = load(single, address, None, operand.type, "one")
        register = single.register(found)
        self.emitter.add(*single.emit())
        return self.emitter.spread(register, name)

    def _gather(self, operand: Operand, output: Output, name: str) -> Address:
        """Copy strided elements to a contiguous buffer, and return its address."""
        lanes = self.emitter.lanes
        every = [_exists(output.active, lane, lanes) for lane in range(lanes)]
        there = [exists for exists in every if exists != 0]
        read_whole = not isinstance(output.active, int)
        buffer = StackBuffer(
            f"{self.emitter.prefix}{name}_room", operand.type, lanes, read_whole and there != every
        )
        ops: list[Op] = [buffer]
        plain = operand.type in ("f32", "f64", "s32", "s64")
        single = self.plan.target.of(operand.type if plain else "s32")[-1]
        memory = "" if plain else bits_of(operand.type)
        first = output.at(operand)
        for lane, exists in enumerate(there):
            element = Register(f"{buffer.name}_{lane}", single)
            offset = first.offset + lane * operand.strides[output.line]
            active = None if exists == 1 else exists
            ops.append(Load(element, Address(first.pointer, offset), active, memory))
            ops.append(Store(Address(buffer.name, lane * ONE), element, None, memory))
        self.emitter.add(*ops)
        return Address(buffer.name, 0 * ONE)


def _exists(active: Active, lane: int, lanes: int) -> Expr:
    """Return 1 if ``lane`` is active, else 0."""
    if active is None:
        return ONE
    count = active.active if isinstance(active, MaskRegister) else active * ONE
    return div(count + (lanes - 1 - lane), lanes)


class _Leaves:
    """The leaves of an expression as values, for ``lower_expression``. Each is computed once."""

    def __init__(
        self, finisher: _Finisher, total: Argument, output: Output, whole: bool = False
    ) -> None:
        self.finisher, self.output, self.whole = finisher, output, whole
        self.made: dict[Expression, Argument] = {acc: total}

    def __call__(self, leaf: Expression) -> Argument:
        if leaf not in self.made:
            self.made[leaf] = self._make(leaf)
        return self.made[leaf]

    def _make(self, leaf: Expression) -> Argument:
        finisher = self.finisher
        if leaf == acc2:
            return finisher.second(self.output, self.whole)
        assert isinstance(leaf, (Leaf, Named))
        name = symbol_of(leaf.name) if isinstance(leaf, Named) else "d"
        found = finisher._operand(name, self.output)
        type_ = finisher.tile.operands[name].type
        real = finisher.b.whole if self.whole else finisher.b.real
        return finisher._as(found, _read_type(type_, finisher.b), real)


@cache
def simplified(expression: Expression) -> Expression:
    """Return the expression as sympy simplifies it; cached, because this is slow."""
    return simplify(expression)


def _read_type(type_: str, b: Builder) -> str:
    return b.whole if is_integer(type_) else b.real


def _whole_of(spec: Gemm) -> str:
    """Return the integer type of the tile's end: that of integer sums, otherwise s32."""
    return spec.type if is_integer(spec.type) else "s32"


def _plus(b: Builder, x: Argument, y: Argument) -> Argument:
    if x == 0 or y == 0:
        return y if x == 0 else x
    return b("add", x, y)
