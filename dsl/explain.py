"""A plan in words: formulas, register budgets, bounds, the loops, and the reason of each choice."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields

from sympy import Expr

from . import reasons
from .count import calls, flops, formulas, tile_formulas
from .pack_plan import PackPlan
from .plan import Plan
from .program import (
    Argument,
    BlockLoop,
    Call,
    NestNode,
    Pack,
    Program,
    SelectBatch,
    TileFacts,
    TileProgram,
    When,
    WhenSame,
)
from .spec import Gemm
from .symbolic import c_text, simplify, value
from .transposition import TransposePlan

AnyPlan = Plan | TransposePlan | PackPlan

WIDTH = 100
#: A formula longer than this is left to the tiles' own numbers.
LONGEST = 6 * WIDTH

_FEEDS = {
    "memory": "the multiply-add itself reads one element of {other} from memory and spreads it: "
    "no register",
    "broadcast": "one element of {other} at a time is spread over a register",
    "scalar": "one element of {other} at a time is a scalar, which the multiply-add takes",
    "lane_k": "a vector of {other} along K per row: its lanes serve {lanes} K steps",
    "lane_s": "a vector of {other} across the rows: its lanes serve {lanes} rows",
}


def explain(plan: AnyPlan, program: Program) -> str:
    """The plan as text for a terminal of 100 columns."""
    target = plan.target
    sections: list[tuple[str, Iterator[str]]] = [
        ("", _head(plan)),
        ("Decisions", _decisions(plan, program)),
        ("Register tiles", _tiles(plan, program)),
        ("Loops", _nest(program.nest, 0)),
        ("Operations and bytes of one call", _formulas(plan, program)),
    ]
    core = target.core
    about = (
        f"target    {target.name}, {target.title}: {target.registers} vector registers; "
        f"multiply-add {core.fma_latency} cycles, {core.fma_units} per cycle; per cycle "
        f"{core.loads} loads, {core.stores} stores, {core.issue} operations in all"
    )
    lines: list[str] = []
    for title, body in sections:
        lines += ["", title] if title else []
        for line in body:
            lines += _wrapped(f"  {line}" if title else line)
        lines += _wrapped(about) if not title else []
    return "\n".join(lines)


def _wrapped(line: str) -> list[str]:
    inside = len(line) - len(line.lstrip())
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=" " * (inside + 10), drop_whitespace=True,
        break_long_words=False, break_on_hyphens=False,
    ) or [""]  # fmt: skip


def _text(expr: Expr) -> str:
    return c_text(simplify(expr))


# --- the head ----------------------------------------------------------------------------------


def _head(plan: AnyPlan) -> Iterator[str]:
    spec = plan.spec
    if isinstance(plan, TransposePlan):
        yield f"transpose {_matrix(plan, 'x')} to {_matrix(plan, 'out')}, {plan.element}"
        return
    if isinstance(plan, PackPlan):
        yield from _head_of_packing(plan)
        return
    assert isinstance(spec, Gemm)
    product = "sum of A B" if spec.batch else "A B"
    alpha, beta = (_factor(factor) for factor in (spec.alpha, spec.beta))
    old = "" if spec.beta == 0 else " + C" if spec.beta == 1 else f" + {beta} C"
    yield f"gemm      C = {product if spec.alpha == 1 else f'{alpha} {product}'}{old}, {spec.type}"
    yield f"          {', '.join(_matrix(plan, name) for name in 'abc')}"
    if plan.batch:
        yield f"batch     {plan.batch.kind}, {_text(plan.batch.count)} pairs of A and B"


def _head_of_packing(plan: PackPlan) -> Iterator[str]:
    spec, strides = plan.spec, plan.operands["b"].strides
    apart = strides["k" if spec.order == "C" else "n"]
    yield (
        f"pack      B {spec.k} x {spec.n} (lines {_text(apart)} apart), {spec.source} as "
        f"{spec.type}, for A of {spec.a}: {plan.format.nbytes} bytes"
    )
    if plan.batch:
        yield f"batch     strided, {_text(plan.batch.count)} of B"


def _factor(factor: float | str) -> str:
    return f"{factor:g}" if isinstance(factor, float) else "a number of the call"


def _matrix(plan: Plan | TransposePlan, name: str) -> str:
    dimensions = {"a": "mk", "b": "kn", "c": "mn", "x": ("rows", "cols"), "out": ("cols", "rows")}
    strides = plan.operands[name].strides
    shape = " x ".join(_text(plan.sizes[dimension]) for dimension in dimensions[name])
    apart = next((d for d in dimensions[name] if strides[d] != 1), dimensions[name][0])
    return f"{name.upper()} {shape} (lines {_text(strides[apart])} apart)"


# --- decisions ---------------------------------------------------------------------------------


def _decisions(plan: AnyPlan, program: Program) -> Iterator[str]:
    rows = [(d.what, d.choice, d.reason) for d in plan.decisions]
    if isinstance(plan, Plan):
        rows += [*reasons.decisions(plan, program), *_stores(plan)]
    yield from _aligned(rows)


def _stores(plan: Plan) -> Iterator[tuple[str, str, str]]:
    schedule = plan.schedule
    why = "asked for"
    if schedule.tails == "auto":
        masks = any(vector.mask for vector in plan.vectors)
        how = "masked vectors" if masks else "partial accesses or narrower vectors"
        why = f"{how}, or a last vector that overlaps the one before in the same tile"
    if plan.bounces:
        why += ": a last vector goes whole to a buffer on the stack, what exists of it from there"
    yield "tails", schedule.tails, why
    if plan.transposed:
        yield (
            "store",
            "transposed",
            f"C is contiguous across the vectors: blocks are transposed in registers, so that "
            f"{plan.across} is contiguous",
        )


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    for row in rows:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()


# --- register tiles ----------------------------------------------------------------------------


def _tiles(plan: AnyPlan, program: Program) -> Iterator[str]:
    """Tiles that differ only in what they add to C are told together."""
    apart, in_place = calls(program), calls(program, same=True)
    groups: dict[object, list[TileProgram]] = {}
    for tile in program.tiles:
        groups.setdefault(_alike(tile), []).append(tile)
    for tiles in groups.values():
        for tile in tiles:
            times = _times(apart[tile.name])
            if apart[tile.name] == 0:
                times = f"{_times(in_place[tile.name])} in place"
            yield f"{tile.name}, called {times}: {_work(tile)}"
        yield f"  registers  {tiles[0].summary}"
        if isinstance(plan, Plan) and tiles[0].facts:
            yield from (f"  {line}" for line in _tile(plan, tiles[0], tiles[0].facts))


def _alike(tile: TileProgram) -> object:
    facts = tile.facts
    return (facts.rows, facts.cols, facts.steps, facts.shape) if facts else tile.name


def _work(tile: TileProgram) -> str:
    """What one call does, and whether it adds to a sum that C holds."""
    done = tile_formulas(tile)
    parts = [
        f"{_text(getattr(done, f.name))} {f.name.replace('_', ' ')}"
        for f in fields(done)
        if not f.name.startswith("bytes") and getattr(done, f.name) != 0
    ]
    more = "; adds to the sum that C holds" if tile.facts and tile.facts.accumulate else ""
    return ", ".join(parts) + more


def _times(count: Expr) -> str:
    return "once" if count == 1 else f"{_text(count)} times"


def _tile(plan: Plan, tile: TileProgram, facts: TileFacts) -> Iterator[str]:
    shape = facts.shape
    yield f"size       {_text(facts.rows)} x {_text(facts.cols)} of C: {_why_size(plan, facts)}"
    if facts.steps == 0:
        return
    other = plan.feeder(plan.across).name.upper()
    if plan.dot:
        yield "feed       vectors of A and B along K; the lanes are added at the end"
    else:
        yield f"feed       {_FEEDS[shape.feed].format(other=other, lanes=shape.vector.lanes)}"
    yield f"K sets     {shape.k_split}: {reasons.why_split(plan, facts)}"
    steps = reasons.steps_per_trip(plan, tile, facts)
    how = f"{steps} K steps a trip" if steps else "all of K, without a loop"
    yield f"unroll     {how}: {reasons.why_unroll(plan, tile, facts)}"
    yield f"bound      {reasons.bound_text(plan.target, shape)}"


def _why_size(plan: Plan, facts: TileFacts) -> str:
    tile = plan.schedule.tile
    if tile is None:
        return "the cost model's cut, in equal parts"
    if (value(facts.rows), value(facts.cols)) == tile:
        return "asked for"
    return f"what tiles of {tile[0]}x{tile[1]} leave over"


# --- loops and formulas ------------------------------------------------------------------------


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
                yield f"{pad}{node.counter} from {node.first} below {_text(node.trips)}{note}"
                yield from _nest(node.body, depth + 1)
            case SelectBatch():
                yield f"{pad}with A and B of batch element {_text(node.index)}"
                yield from _nest(node.body, depth + 1)
            case Pack():
                yield f"{pad}pack {node.buffer}, {_text(node.elements)} elements"
                yield from _nest(node.fill + node.body, depth + 1)
            case When() | WhenSame():
                yield from _choice(node, depth)


def _argument(argument: Argument) -> str:
    if argument.offset == 0:
        return argument.operand or "0"
    return " + ".join(filter(None, (argument.operand, _text(argument.offset))))


def _choice(node: When | WhenSame, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(node, When):
        yield f"{pad}where {_text(node.count)} is positive"
    else:
        yield f"{pad}where {node.one} is {node.other}"
    yield from _nest(node.body, depth + 1)
    if node.otherwise:
        yield f"{pad}else"
        yield from _nest(node.otherwise, depth + 1)


def _formulas(plan: AnyPlan, program: Program) -> Iterator[str]:
    found = formulas(program)
    rows = [("flops", flops(plan))] if isinstance(plan, Plan) else []
    rows += [(f.name.replace("_", " "), getattr(found, f.name)) for f in fields(found)]
    shown = [(name, _formula(expr)) for name, expr in rows if expr != 0]
    yield from _aligned(shown)
    if isinstance(plan, Plan) and (total := value(found.bytes_read + found.bytes_written)):
        count = value(flops(plan))
        if count:
            yield f"{count / total:.2f} flops for each byte that passes between registers and cache"


def _formula(expr: Expr) -> str:
    text = c_text(expr)
    return text if len(text) <= LONGEST else "the sum over the tiles above"
