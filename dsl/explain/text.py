"""Explain a plan as text: formulas, register budgets, bounds, loops, and reasons for choices."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from sympy import Expr, Integer

from tilewright.ir.count import Counted, calls, counted, formulas, is_counted, tile_formulas
from tilewright.ir.nest import (
    Argument,
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
    When,
    WhenSame,
)
from tilewright.ir.ops import TileProgram
from tilewright.plan.loops import Decided
from tilewright.plan.plan import Plan
from tilewright.plan.problem import NOMINAL, Problem, Staging
from tilewright.plan.routine import routine_of
from tilewright.plan.tiling.tile_shape import TileShape
from tilewright.plan.tiling.tiles import RegisterTile, steps_text
from tilewright.symbolic import c_text, evaluate, value

from . import estimates, reasons, stages
from .decisions import text_of
from .estimates import Measured

WIDTH = 100
#: Maximum length of a formula in characters; longer formulas are replaced by a note.
LONGEST = 6 * WIDTH

_FORM_TEXTS = {
    "memory": "each multiply-add reads {one} of {other} from memory and broadcasts it",
    "broadcast": "{one} of {other} at a time is broadcast to all lanes of a register",
    "scalar": "{one} of {other} at a time is a scalar operand of the multiply-add",
    "lane_k": "a vector of {other} along K for each row: its lanes serve {lanes} {steps}",
    "repeat": "{lanes} elements of {other} along K for each row are converted together, repeated "
    "over a register, and broadcast from there",
    "lane_s": "a vector of {other} across the rows: its lanes serve {lanes} rows",
}


def explain(
    plan: Decided,
    program: Program,
    sizes: Mapping[str, int] | None = None,
    measured: Measured | None = None,
    width: int = WIDTH,
) -> str:
    """Return the plan as text for a terminal of ``width`` columns.

    ``sizes`` are those of a call, by their names in the signature. The estimate takes ``NOMINAL``
    for missing ones. ``measured`` is the measurement of a call of such sizes.
    """
    target, of_call = plan.target, sizes_of_call(plan, sizes or {})
    routine, core = routine_of(plan), target.core
    numbers = numbers_of_call(program, of_call)
    sections: list[tuple[str, Iterator[str]]] = [
        ("", routine.head(plan)),
        ("Decisions", _aligned([*routine.decisions(plan, program)])),
        ("Register tiles", _tiles(routine.nests(plan), program, numbers)),
        ("Loops", _nest(program.nest, 0)),
        (
            f"Operations and bytes of one call{_of(numbers, of_call)}",
            _formulas(operations(plan, program, numbers, of_call)),
        ),
    ]
    if facts := [*routine.facts(plan, of_call)]:
        given = _with(of_call)
        sections += [
            (f"Bytes of each stage{given}", _aligned([*stages.sizes(facts, core)])),
            (f"Time of each stage{given}", _aligned([*stages.times(facts, measured)])),
        ]
    if rows := [*estimates.told(plan, of_call, measured)]:
        title = "Time" if rows[0][0] == "measured" else "Estimate"
        sections.append((f"{title} of one call{_with(of_call)}", _aligned(rows)))
    unit, matrices = target.matrix, ""
    if unit is not None:
        matrices = f", {unit.most} of {unit.rows} rows of {unit.row_bytes} bytes"
    about = (
        f"target    {target.name}, {target.title}: {target.registers} vector registers{matrices}; "
        f"multiply-add: latency {core.fma_latency:g} cycles, {core.fma_units:g} per cycle; "
        f"per cycle {core.loads:g} loads, {core.stores:g} stores, {core.issue:g} operations in all"
        f"{f'; {core.hidden} stores of a tile cost nothing' if core.hidden else ''}"
    )
    lines: list[str] = []
    for title, body in sections:
        told = list(body)
        lines += ["", title] if title and told else []
        for line in told:
            lines += _wrapped(f"  {line}" if title else line, width)
        if not title:
            lines += _wrapped(about, width)
            lines += _wrapped(f"core      {target.core_source}", width)
    return "\n".join(lines)


def sizes_of_call(plan: Decided, given: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of a call for which explanations have numbers, for example m.

    Sizes that are missing in ``given`` are replaced by ``NOMINAL``.
    """
    slots = {slot for slot, _ in plan.spec.runtime_sizes()}
    return {
        slot: given.get(slot, NOMINAL) for slot in routine_of(plan).shown(plan) if slot in slots
    }


def _with(sizes: Mapping[str, int]) -> str:
    """Return sizes as text, for example `` with m = 64, n = 64``; "" if there are none."""
    return f" with {', '.join(f'{slot} = {size}' for slot, size in sizes.items())}" if sizes else ""


def numbers_of_call(program: Program, sizes: Mapping[str, int]) -> Counted | None:
    """Return the operations of a call with these ``sizes``; None if the text has formulas."""
    return None if is_counted(program) else counted(program, sizes)


def _of(numbers: Counted | None, sizes: Mapping[str, int]) -> str:
    return "" if numbers is None else _with(sizes)


def _wrapped(line: str, width: int) -> list[str]:
    inside = len(line) - len(line.lstrip())
    return textwrap.wrap(
        line, width, subsequent_indent=" " * (inside + 10), drop_whitespace=True,
        break_long_words=False, break_on_hyphens=False,
    ) or [""]  # fmt: skip


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    for row in rows:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()


# --- register tiles ----------------------------------------------------------------------------


def _tiles(nests: Sequence[Plan], program: Program, numbers: Counted | None) -> Iterator[str]:
    """Yield lines that describe the tiles; tiles that differ only in their use of C share lines."""
    apart, in_place = _calls(program, numbers)
    groups: dict[object, list[TileProgram]] = {}
    for tile in program.tiles:
        groups.setdefault(_alike(nests, tile), []).append(tile)
    for tiles in groups.values():
        for tile in tiles:
            times = _times(apart[tile.name])
            if apart[tile.name] == 0 != in_place[tile.name]:
                times = f"{_times(in_place[tile.name])} in place"
            found = reasons.planned_of(nests, tile)
            yield f"{tile.name}, called {times}: {_work(tile, found and found[1])}"
        found = reasons.planned_of(nests, tiles[0])
        what = "work     " if nests and found is None else "registers"
        yield f"  {what}  {tiles[0].summary}"
        if found is not None:
            yield from (f"  {line}" for line in _tile(tiles[0], *found))


def _calls(program: Program, numbers: Counted | None) -> tuple[dict[str, Expr], dict[str, Expr]]:
    """Return two numbers of calls of each tile: with C and D in two arrays, and in the same one."""
    if numbers is None:
        return calls(program, same=False), calls(program, same=True)
    found = {tile.name: Integer(numbers.calls.get(tile.name, 0)) for tile in program.tiles}
    return found, found


def _alike(nests: Sequence[Plan], tile: TileProgram) -> object:
    found = reasons.planned_of(nests, tile)
    if found is None:
        return tile.name
    _, planned = found
    return planned.mr, planned.nr, planned.steps, planned.shape


def _work(tile: TileProgram, planned: RegisterTile | None) -> str:
    """Return as text the operations of one call of a tile, and where its sums come from."""
    done = tile_formulas(tile)
    parts = [
        f"{text_of(getattr(done, f.name))} {f.name.replace('_', ' ')}"
        for f in fields(done)
        if not f.name.startswith("bytes") and getattr(done, f.name) != 0
    ]
    return ", ".join(parts) + _stage(tile, planned)


def _stage(tile: TileProgram, planned: RegisterTile | None) -> str:
    """Return as text how a tile shares its sums with other calls; "" if it computes whole sums."""
    partial = next((p.role for p in tile.parameters if p.name == "sums"), "")
    if planned is not None and planned.accumulate:
        return f"; adds to the sum that {'the buffer' if partial else 'C'} holds"
    return {"out": "; begins the sums in the buffer", "in": "; takes the sums from the buffer"}.get(
        partial, ""
    )


def _times(count: Expr) -> str:
    return "once" if count == 1 else f"{text_of(count)} times"


def _tile(tile: TileProgram, plan: Plan, planned: RegisterTile) -> Iterator[str]:
    sizes = f"{text_of(planned.mr)} x {text_of(planned.nr)} of C"
    yield f"size       {sizes}: {_why_size(plan.problem, planned)}"
    if planned.steps == 0:
        return
    if plan.problem.dot:
        yield "feed       vectors of A and B along K; the lanes are added at the end"
    else:
        yield f"feed       {_form_text(plan.staging, planned.shape)}"
    yield f"K sets     {planned.shape.k_split}: {planned.why_split}"
    steps = planned.unroll.steps
    counted = steps_text(plan.staging.product, steps)
    how = f"{steps} {counted} per iteration" if steps else "all of K, without a loop"
    yield f"unroll     {how}: {planned.unroll.reason}"
    yield f"bound      {planned.bound}"
    for text in reasons.why_lines(plan.staging, tile):
        yield f"end        {text}"


def _form_text(staging: Staging, shape: TileShape) -> str:
    depth = staging.product.depth
    if shape.height > 1:
        cols = shape.vector.lanes // shape.height
        if shape.unit is not None:
            cols = shape.vector.lanes
        return f"registers of groups of both; each multiply-add sums {shape.height} x {cols} of C"
    return _FORM_TEXTS[shape.form].format(
        other=staging.input_of(staging.problem.across).name.upper(),
        lanes=shape.vector.lanes if shape.form == "lane_s" else shape.group,
        one="one element" if depth == 1 else f"one group of {depth} elements",
        steps=steps_text(staging.product, shape.vector.lanes),
    )


def _why_size(problem: Problem, planned: RegisterTile) -> str:
    tile = problem.schedule.tile
    if tile is None:
        return "the cost model's cut, in equal parts"
    if (value(planned.mr), value(planned.nr)) == tile:
        return "asked for"
    return f"what tiles of {tile[0]}x{tile[1]} leave over"


# --- loops and formulas ------------------------------------------------------------------------


def nest_lines(nodes: Sequence[NestNode]) -> Iterator[str]:
    """Yield the loops and calls of a nest, each as one line of text, indented by its depth."""
    yield from _nest(nodes, 0)


def _nest(nodes: Sequence[NestNode], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for node in nodes:
        match node:
            case Call():
                line = f"{pad}{node.program} at {', '.join(map(_argument, node.arguments))}"
                yield line if len(line) <= WIDTH - 2 else f"{pad}{node.program}"
            case BlockLoop():
                notes = [*filter(None, [node.note]), *(["in parallel"] if node.parallel else [])]
                note = f"   ({', '.join(notes)})" if notes else ""
                yield f"{pad}{node.counter} from {node.first} below {text_of(node.trips)}{note}"
                yield from _nest(node.body, depth + 1)
            case Bind():
                each = (f"{bound.name} = {text_of(bound.value)}" for bound in node.bound)
                yield f"{pad}with {', '.join(each)}"
                yield from _nest(node.body, depth + 1)
            case Lookup():
                found = f"{node.name} = {node.indices}[{text_of(node.at)}]"
                yield f"{pad}with {found}, at most {text_of(node.count - 1)}"
                yield from _nest(node.body, depth + 1)
            case SelectBatch():
                names = _listed([str(selected.name).upper() for selected in node.selected])
                yield f"{pad}with {names} of batch element {text_of(node.index)}"
                yield from _nest(node.body, depth + 1)
            case Pack():
                own = " of each thread" if node.of_worker else ""
                where = "" if node.scratch is None else f", in scratch memory{own}"
                verb = "pack" if node.buffer.text.endswith("_packed") else "fill"
                size = f"{text_of(node.elements)} elements of {node.element}"
                yield f"{pad}{verb} {node.buffer}, {size}{where}"
                yield from _nest(node.fill + node.body, depth + 1)
            case Configure():
                yield f"{pad}configure the matrix unit: {configuration_text(node.configuration)}"
            case When() | WhenSame():
                yield from _choice(node, depth)


def _listed(names: list[str]) -> str:
    """Return names as one text, for example ``A, B and C``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def configuration_text(configuration: Configuration) -> str:
    """Return a matrix unit's configuration as text: rows and bytes of a row for each register."""
    sizes = (f"{text_of(rows)} x {size}" for rows, size in configuration.shapes)
    return f"registers of {', '.join(sizes)} bytes"


def _argument(argument: Argument) -> str:
    name = argument.operand
    operand = None if name is None else str(replace(name, matrix=False))
    if argument.offset == 0:
        return operand or "0"
    return " + ".join(filter(None, (operand, text_of(argument.offset))))


def _choice(node: When | WhenSame, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(node, When):
        yield f"{pad}where {text_of(node.count)} is positive"
    else:
        yield f"{pad}where {node.one} is {'' if node.body else 'not '}{node.other}"
    apart = isinstance(node, WhenSame) and not node.body
    yield from _nest(node.otherwise if apart else node.body, depth + 1)
    if node.otherwise and not apart:
        yield f"{pad}else"
        yield from _nest(node.otherwise, depth + 1)


def operations(
    plan: Decided, program: Program, numbers: Counted | None, sizes: Mapping[str, int]
) -> list[tuple[str, Expr]]:
    """Return (name, amount) for each kind of operation and for the bytes of a call.

    Amounts are formulas, or numbers if ``numbers`` is given.
    """
    asked = routine_of(plan).flops(plan)
    found = formulas(program) if numbers is None else numbers.formulas
    if numbers is not None:
        asked = Integer(evaluate(asked, sizes))
    rows = [("flops", asked)]
    rows += [(f.name.replace("_", " "), getattr(found, f.name)) for f in fields(found)]
    return [(name, expr) for name, expr in rows if expr != 0]


def _formulas(rows: Sequence[tuple[str, Expr]]) -> Iterator[str]:
    yield from _aligned([(name, formula_text(expr)) for name, expr in rows])
    each = {name: value(expr) or 0 for name, expr in rows}
    total = each.get("bytes read", 0) + each.get("bytes written", 0)
    if total and (count := each.get("flops", 0)):
        yield f"{count / total:.2f} flops per byte loaded or stored"


def formula_text(expr: Expr) -> str:
    """Return a formula as C text, or a note if the text would be too long."""
    text = c_text(expr)
    return text if len(text) <= LONGEST else "the sum over the tiles above"
