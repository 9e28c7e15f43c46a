"""Verify programs when they are made, before C code is written.

A tile program must obey the rules of its operations (``tile_rules.py``) and fit the registers. The
nest must obey the rules in ``NEST_RULES``, one for each class of nodes. A call must pass operands
that exist, with the types and roles of the tile's parameters. If the sizes are known, the tile must
not touch elements outside these operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from sympy import Expr

from tilewright.errors import PlanError
from tilewright.isa.target import Target
from tilewright.spec.signature import Signature
from tilewright.spec.types import ELEMENTS, ITEMSIZE, is_integer
from tilewright.symbolic import bounds, slots, value

from .alive import verify_alive
from .dataflow import matrices_of
from .extents import Held, Touched, held
from .nest import (
    Argument,
    Beside,
    Bind,
    BlockLoop,
    Call,
    Configuration,
    Configure,
    Lookup,
    NestNode,
    Pack,
    Program,
    SelectBatch,
    Selected,
    Stamp,
    When,
    WhenSame,
    operands_of,
    passed,
)
from .nodes import walk
from .ops import Parameter, TileProgram
from .tile_rules import RULES
from .tile_walk import Walk, shown
from .trips import verify_trips


def verify_program(
    program: Program, target: Target, parameters: Signature, packed: Mapping[str, int | None]
) -> None:
    """Raise PlanError if a tile or the nest breaks a rule.

    The message names the tile or node, the operation and the rule. ``parameters`` is the kernel's
    signature. ``packed`` gives, for each packed operand, the bytes of one matrix; None if only the
    call knows them.
    """
    touched: dict[str, Touched] = {}
    for tile in program.tiles:
        if tile.name in touched:
            raise PlanError(f"two tiles are called {tile.name}", expected="a name for each")
        touched[tile.name] = verify_tile(tile, target)
    _Nest(program, parameters, packed, touched).nodes(program.nest)
    verify_trips(program, parameters, touched)


# --- tiles -------------------------------------------------------------------------------------


def verify_tile(tile: TileProgram, target: Target) -> Touched:
    """Check a tile program, and return the elements that it touches; PlanError if it is illegal."""
    names = [parameter.name for parameter in tile.parameters]
    if len({*names}) < len(names):
        raise PlanError(f"{tile.name}: two parameters of one name", got=", ".join(names))
    found = Walk(tile, target, RULES)
    body, end = found.ops(tile.body), found.ops(tile.end)
    unit = target.matrix
    types = sorted({register.element for register in found.shapes.values()})
    held = [unit.registers.get(element, 0) for element in types] if unit else []
    most = max(held, default=0)
    if len(found.shapes) > most:
        raise PlanError(
            f"{tile.name} uses {len(found.shapes)} matrix registers on {target.name}",
            expected=f"{most} or fewer",
        )
    aliased = len(found.shapes) * unit.aliases if unit else 0
    verify_alive(tile, target, body, end, aliased)
    return Touched(found.reach, found.written)


# --- the nest ----------------------------------------------------------------------------------


class _Nest:
    """A walk through the nest that checks its nodes, and keeps what is known at each node.

    Known are the operands, the ranges of loop counters, the scratch memory in use, and the
    configuration of the matrix unit.
    """

    def __init__(
        self,
        program: Program,
        parameters: Signature,
        packed: Mapping[str, int | None],
        touched: Mapping[str, Touched],
    ) -> None:
        self.program, self.touched = program, touched
        self.tiles = {tile.name: tile for tile in program.tiles}
        arrays = [a for a in parameters.arrays if a.kind != "offsets"]
        self.operands = {a.symbol: held(a, packed) for a in arrays}
        given = {a.name for a in parameters.arrays if a.kind == "offsets"}
        self.offsets = given | {a.offsets for a in arrays if a.static_offsets is not None}
        self.arrays = frozenset(self.operands)
        self.sizes = {size.slot for size in parameters.sizes}
        self.scalars = {scalar.name for scalar in parameters.scalars}
        self.counters: dict[str, tuple[int, int] | None] = {}
        self.taken: list[tuple[str, bool, int, int]] = []
        self.idle = self.parallel = False
        self.computed: set[str] = set()  # sizes that the nest computes
        self.stamps = 0  # times that were noted so far
        configurations = program.configurations
        alone = len(configurations) == 1 and configurations[0].fixed
        first = 0 if alone else program.kept
        self.configuration = None if first is None else configurations[first]

    def nodes(self, nodes: Sequence[NestNode]) -> None:
        """Check ``nodes`` in the order in which they run."""
        for node in nodes:
            rule = NEST_RULES.get(type(node))
            if rule is None:
                self.refuse(node, "has no rule", "an entry of NEST_RULES in verify.py")
            rule(self, node)

    def refuse(self, node: NestNode, problem: str, expected: str) -> NoReturn:
        """Raise PlanError: ``node`` has this ``problem``; ``expected`` says what is legal."""
        which = f" of {node.program}" if isinstance(node, Call) else ""
        said = f"the nest: {node.kind}{which} {problem}"
        raise PlanError(said, got=shown(node), expected=expected)

    def size(self, node: NestNode, expr: Expr) -> tuple[int, int] | None:
        """Return the smallest and largest value of ``expr``, None if unknown.

        PlanError if ``expr`` depends on a size or counter that is not defined at ``node``.
        """
        if not expr.is_Integer:
            for name in sorted(slots(expr) - self.sizes):
                if name not in self.counters:
                    self.refuse(node, f"depends on {name}", "sizes and counters that are known")
        ranges = {name: found for name, found in self.counters.items() if found is not None}
        return bounds(expr, ranges)


def _call(n: _Nest, node: Call) -> None:
    tile = n.tiles.get(node.program)
    if tile is None:
        n.refuse(node, "calls what does not exist", f"one of {', '.join(n.tiles) or 'no tiles'}")
    wanted = passed(tile)
    if len(wanted) != len(node.arguments):
        n.refuse(node, f"passes {len(node.arguments)} arguments", f"{len(wanted)}")
    for parameter in tile.parameters:
        known = {"size": n.sizes, "scalar": n.scalars}.get(parameter.role)
        if known is not None and parameter.name not in known:
            n.refuse(node, f"knows no {parameter.name}", "a parameter of the kernel")
    given = dict(zip((p.name for p in wanted), node.arguments, strict=True))
    at = {
        p.name: _argument(n, node, tile, p, argument)
        for p, argument in zip(wanted, node.arguments, strict=True)
    }
    if not n.idle:
        for (name, each), reach in n.touched[tile.name].reach.items():
            place = at.get(f"{name}_at") if tile_role(wanted, name) == "table" else at[name]
            _inside(n, node, (tile, name), given[name], each, place, reach)
    if tile.numbers or n.program.configurations:
        _configured(n, node, tile)


def tile_role(parameters: Sequence[Parameter], name: str) -> str:
    """Return the role of the parameter called ``name``."""
    return next(p.role for p in parameters if p.name == name)


def _argument(
    n: _Nest, node: Call, tile: TileProgram, parameter: Parameter, argument: Argument
) -> tuple[int, int] | None:
    """Return the range of an argument's offset; PlanError if it does not fit ``parameter``."""
    place, name, role = n.size(node, argument.offset), argument.symbol or None, parameter.role
    if role == "at":
        if name is not None:
            n.refuse(node, f"passes {name} for {parameter.name}", "a number of elements")
        return place
    if role == "offsets":
        if name not in n.offsets or argument.offset != 0:
            n.refuse(node, f"passes {name} for {parameter.name}", "the offsets of a batch")
        return place
    held = n.operands.get(name or "")
    if held is None:
        n.refuse(node, f"passes {name}, which does not exist here", "an operand or a buffer")
    if (role == "table") != (held.batch == "addresses"):
        n.refuse(node, f"passes {name} for {parameter.name}", "a table for a table, else elements")
    if role == "out" and not held.written:
        n.refuse(node, f"writes {name}, an input", "an output or a buffer")
    element = parameter.element or tile.element
    if held.element != element and not argument.cast:
        n.refuse(node, f"passes {held.element} of {name} for {element}", "elements of one type")
    return place


def _inside(
    n: _Nest,
    node: Call,
    whose: tuple[TileProgram, str],
    argument: Argument,
    each: bool,
    place: tuple[int, int] | None,
    reach: tuple[int, int],
) -> None:
    """Raise PlanError if a call of a tile certainly touches elements outside an operand."""
    held = n.operands[argument.symbol]
    there = held.each if each else held.whole
    if place is None or there is None:
        return
    tile, name = whose
    element = next(p.element for p in tile.parameters if p.name == name) or tile.element
    given, taken = ITEMSIZE[held.element], ITEMSIZE[element]
    low, high = (at * given + to * taken for at, to in zip(place, reach, strict=True))
    if low < 0 or high > there * given:
        touched = f"bytes {low} to {high} of {argument.operand}"
        n.refuse(node, f"touches {touched}", f"0 to {there * given}, those of {there} elements")


def _configured(n: _Nest, node: Call, tile: TileProgram) -> None:
    """Raise PlanError if ``tile`` uses matrix registers in shapes that are not configured."""
    numbers, found = dict(tile.numbers), n.configuration
    used = {r.name: r for op in walk(tile.body + tile.end) for r in matrices_of(op)}
    for name, register in used.items():
        if not register.unit.template:
            continue
        shape = register.rows, register.columns * ITEMSIZE[register.element]
        number = numbers.get(name)
        known = found.shapes if found is not None else ()
        if number is None or number >= len(known) or known[number] != shape:
            n.refuse(node, f"uses {name} as it is not configured", "its rows and bytes of a row")


def _block_loop(n: _Nest, node: BlockLoop) -> None:
    if node.counter in n.counters or node.counter in n.sizes:
        n.refuse(node, f"counts {node.counter} again", "a counter of its own")
    if node.first < 0:
        n.refuse(node, f"begins at {node.first}", "0 or more")
    n.size(node, node.trips)
    trips = value(node.trips)
    idle = n.idle
    n.idle = idle or (trips is not None and trips <= node.first)
    n.counters[node.counter] = None if trips is None else (node.first, max(trips - 1, node.first))
    before, outside = n.configuration, n.parallel
    n.parallel = outside or node.parallel
    if node.parallel and not (before and before.fixed and len(n.program.configurations) == 1):
        # Threads of this loop start with an unconfigured matrix unit, or with what they keep.
        kept = n.program.kept
        n.configuration = None if kept is None else n.program.configurations[kept]
    entered = n.configuration
    n.nodes(node.body)
    if n.configuration is not entered:
        n.nodes(node.body)  # checked again, because the second iteration has another configuration
    if n.configuration is not before:
        n.configuration = None if n.configuration is None or trips is None else n.configuration
    del n.counters[node.counter]
    n.idle, n.parallel = idle, outside


def _bind(n: _Nest, node: Bind) -> None:
    for bound in node.bound:
        if bound.name in n.counters or bound.name in n.sizes:
            n.refuse(node, f"computes {bound.name} again", "a size of its own")
        n.size(node, bound.value)
        n.sizes.add(bound.name)
        n.computed.add(bound.name)
    n.nodes(node.body)
    n.sizes -= {bound.name for bound in node.bound}
    n.computed -= {bound.name for bound in node.bound}


def _lookup(n: _Nest, node: Lookup) -> None:
    if node.name in n.counters or node.name in n.sizes:
        n.refuse(node, f"reads {node.name} again", "a number of its own")
    held = n.operands.get(str(node.indices))
    if held is None or not is_integer(held.element):
        n.refuse(node, f"reads {node.indices}", "an array of integers")
    n.size(node, node.at)
    n.size(node, node.count)
    count = value(node.count)
    if count is not None and count < 1:
        n.refuse(node, f"finds one of {count}", "1 or more")
    n.counters[node.name] = None if count is None else (0, count - 1)
    n.nodes(node.body)
    del n.counters[node.name]


def _select_batch(n: _Nest, node: SelectBatch) -> None:
    at = n.size(node, node.index)
    outside, chosen = n.operands, dict(n.operands)
    for selected in node.selected:
        held = _selected(n, node, selected)
        if at is not None and held.count is not None and not n.idle:
            _among(n, node, str(selected.name), at, held.count)
        chosen[str(selected.chosen)] = replace(held, whole=held.each, each=None, batch="")
    n.operands = chosen
    n.nodes(node.body)
    n.operands = outside


def _among(n: _Nest, node: SelectBatch, name: str, at: tuple[int, int], count: int) -> None:
    """Raise PlanError if the numbers ``at`` are not all below ``count``, the size of the batch."""
    if at[0] < 0 or at[1] >= count:
        n.refuse(node, f"takes matrix {at[1]} of {name}", f"one of {count}")


def _selected(n: _Nest, node: SelectBatch, selected: Selected) -> Held:
    """Check ``selected``, and return the operand from whose batch it selects a matrix."""
    held = n.operands.get(str(selected.name))
    if held is None or str(selected.name) not in n.arrays:
        n.refuse(node, f"takes {selected.name}, which does not exist here", "an operand")
    if held.batch != selected.batch:
        n.refuse(node, f"finds {selected.name} by {selected.batch!r}", f"by {held.batch!r}")
    if selected.written and not held.written:
        n.refuse(node, f"writes {selected.name}, an input", "an output")
    if selected.batch == "offsets" and selected.offsets not in n.offsets:
        n.refuse(node, f"knows no {selected.offsets}", "the offsets of a batch")
    n.size(node, selected.stride)
    return held


def _pack(n: _Nest, node: Pack) -> None:
    buffer = str(node.buffer)
    if buffer in n.operands:
        n.refuse(node, f"defines {node.buffer} twice", "one definition of each name")
    if node.element not in ELEMENTS:
        n.refuse(node, f"of {node.element}", "a type there is")
    elements = n.size(node, node.elements)
    if elements is not None and elements[0] < 0:
        n.refuse(node, f"of {elements[0]} elements", "0 or more")
    whole = elements[0] if elements is not None and elements[0] == elements[1] else None
    taken = _in_scratch(n, node, whole)
    n.operands = {**n.operands, buffer: Held(node.element, True, whole)}
    n.nodes(node.fill)
    n.nodes(node.body)
    n.operands = {name: held for name, held in n.operands.items() if name != buffer}
    del n.taken[len(n.taken) - taken :]


def _in_scratch(n: _Nest, node: Pack, elements: int | None) -> int:
    """Return 1 if the buffer of ``node`` takes scratch memory at a known place, else 0.

    PlanError if it overlaps another buffer that is used from here on, or exceeds the scratch
    memory of the call or of a thread.
    """
    if node.of_worker and not (n.parallel and node.scratch is not None):
        n.refuse(node, "takes a thread's scratch memory", "a place there, in a parallel loop")
    if node.scratch is None:
        return 0
    n.size(node, node.scratch)
    room = n.program.worker_scratch if node.of_worker else n.program.scratch
    first, total = value(node.scratch), value(room)
    if first is None or elements is None:
        return 0
    behind = first + elements * ITEMSIZE[node.element]
    if first < 0 or (total is not None and behind > total):
        n.refuse(node, f"lies at bytes {first} to {behind}", f"within {total} of scratch memory")
    used = {str(name) for name in operands_of((*node.fill, *node.body))}
    for other, of_worker, low, high in n.taken:
        if other in used and of_worker == node.of_worker and first < high and low < behind:
            n.refuse(node, f"lies in the scratch memory of {other}", "memory of its own")
    n.taken.append((str(node.buffer), node.of_worker, first, behind))
    return 1


def _beside(n: _Nest, node: Beside) -> None:
    for each in node.body:
        inner: NestNode = each
        while isinstance(inner, When) and len(inner.body) == 1 and not inner.otherwise:
            inner = inner.body[0]
        if not (isinstance(inner, BlockLoop) and inner.parallel):
            n.refuse(node, f"contains a {inner.kind}", "parallel loops, possibly in a when")
    n.nodes(node.body)


def _when(n: _Nest, node: When) -> None:
    n.size(node, node.count)
    # A size that the nest computes may be too small for a body in every call.
    count, idle = value(node.count), n.idle or bool(slots(node.count) & n.computed)
    _either(n, node, idle or (count is not None and count <= 0), idle or (count or 0) > 0)


def _when_same(n: _Nest, node: WhenSame) -> None:
    for name in map(str, (node.one, node.other)):
        if name not in n.arrays or n.operands[name].batch == "addresses":
            n.refuse(node, f"compares {name}", "two arrays of the kernel")
    _either(n, node, n.idle, n.idle)


def _either(n: _Nest, node: When | WhenSame, first: bool, second: bool) -> None:
    """Check both bodies of a condition, each with the configuration that holds before ``node``.

    ``first`` and ``second`` are true for a body that never runs.
    """
    idle, before = n.idle, n.configuration
    n.idle = first
    n.nodes(node.body)
    then, n.configuration, n.idle = n.configuration, before, second
    n.nodes(node.otherwise)
    n.configuration, n.idle = then if then is n.configuration else None, idle


def _configure(n: _Nest, node: Configure) -> None:
    configurations: Sequence[Configuration] = n.program.configurations
    if not 0 <= node.index < len(configurations):
        n.refuse(node, f"loads configuration {node.index}", f"one of {len(configurations)}")
    if node.configuration != configurations[node.index]:
        n.refuse(node, f"is not configuration {node.index}", "that of the program")
    n.configuration = node.configuration


def _stamp(n: _Nest, node: Stamp) -> None:
    if n.counters:
        n.refuse(node, "is in a loop", "a place between two stages")
    if node.number != n.stamps:
        n.refuse(node, f"notes time {node.number}", f"time {n.stamps}, the next one")
    n.stamps += 1


#: For each class of nodes, the function that checks such a node.
NEST_RULES: Mapping[type[Any], Callable[[_Nest, Any], None]] = {
    Call: _call,
    BlockLoop: _block_loop,
    Beside: _beside,
    Bind: _bind,
    Lookup: _lookup,
    SelectBatch: _select_batch,
    Pack: _pack,
    When: _when,
    WhenSame: _when_same,
    Configure: _configure,
    Stamp: _stamp,
}


__all__ = ["NEST_RULES", "verify_program", "verify_tile"]
