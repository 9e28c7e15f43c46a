"""The loops over blocks around the register tiles, from the schedule's letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sympy import Expr, Integer

from tilewright.errors import ScheduleError
from tilewright.ir.nest import (
    BlockLoop,
    Name,
    NestNode,
    Pack,
    Program,
    When,
    of_batch,
    operands_of,
    renamed,
)
from tilewright.lower.staging.buffers import (
    Filled,
    begin,
    convert,
    copy_tail,
    needed_sums,
    select,
    sum_lines,
)
from tilewright.lower.staging.pack import beyond_stack, pack
from tilewright.lower.tile.tile import Tile
from tilewright.plan.partition import partition
from tilewright.plan.plan import Plan
from tilewright.plan.staging import is_empty
from tilewright.plan.transpose import parts
from tilewright.symbolic import ZERO, div, mod, symbol, value

from .calls import Block, TileSet, called, looped, offset_of
from .configure import configured
from .panels import panels

#: What each product of a kernel has of its own: its B, what is made of that, and the sums.
_OF_ITS_OWN = ("b", "b_packed", "b_tail_packed", "b_sums", "sums")


def make_program(plan: Plan) -> Program:
    """The whole kernel: what is converted or summed first, then loops over blocks of tiles."""
    tiles = TileSet(plan)
    start = tuple(node for name, _ in plan.spec.outputs for node in _begun(tiles, name))
    if ZERO in (plan.sizes["m"], plan.sizes["n"]):
        return Program(start, tuple(tiles.programs.values()))
    extents = dict(plan.sizes) | ({"k": ZERO} if is_empty(plan.spec) else {})
    block = Block(plan, extents, dict.fromkeys("mnkbp", ZERO), accumulate=False)
    nest = _converted(tiles, "b", _product(tiles, block))
    if plan.spec.b2 is not None:
        nest = (_gated(tiles, block, nest),)
    if not plan.by_panels:
        nest = _converted(tiles, "a", nest)
    for name in needed_sums(plan):
        nest = (_filled(tiles, sum_lines(plan, name), nest),)
        if name == "b" and plan.spec.b2 is not None:
            nest = (_filled(tiles, _second(sum_lines(plan, name)), nest),)
    nodes = start + nest
    scratch = sum(tiles.scratch.values(), ZERO)
    return configured(Program(nodes, tuple(tiles.programs.values()), scratch))


def _begun(tiles: TileSet, name: str) -> tuple[NestNode, ...]:
    nodes, programs = begin(tiles.plan, name)
    tiles.programs |= {("begin", program.name): program for program in programs}
    return nodes


def _converted(tiles: TileSet, name: str, body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    """``body`` with operand ``name`` converted, or its tail copied, where that is needed."""
    plan = tiles.plan
    if f"{name}_tail" in plan.operands:
        return (_filled(tiles, copy_tail(plan, name), body),)
    return (_filled(tiles, convert(plan, name), body),) if name in plan.sources else body


def _gated(tiles: TileSet, block: Block, body: tuple[NestNode, ...]) -> Pack:
    """``body`` with the sums of A B2 in a buffer, made as those of A B are."""
    plan = tiles.plan
    fill = _sums(tiles, block)
    fill = _converted(tiles, "b", fill)
    sums = plan.operands["sums2"]
    elements = plan.sum_elements
    room, second = tiles.room(sums, elements), renamed(fill, _of_second)
    return Pack(sums.buffer, sums.type, elements, room, second, body)


def _of_second(name: Name) -> Name:
    """What stands in the second product where ``name`` does in the first."""
    return replace(name, product=1) if name.text in _OF_ITS_OWN else name


def _second(filled: Filled) -> Filled:
    """A buffer of the first product's B as one of the second's."""
    buffer = _of_second(filled.operand.buffer)
    operand = replace(filled.operand, name=str(buffer), buffer=buffer)
    return replace(filled, operand=operand, nodes=renamed(filled.nodes, _of_second))


def _filled(tiles: TileSet, filled: Filled, body: tuple[NestNode, ...]) -> Pack:
    """``body`` with a buffer that is filled before."""
    tiles.programs |= {("fill", tile.name): tile for tile in filled.tiles}
    return Pack(
        buffer=filled.operand.buffer,
        element=filled.operand.type,
        elements=filled.elements,
        scratch=tiles.room(filled.operand, filled.elements),
        fill=filled.nodes,
        body=body,
    )


def _product(tiles: TileSet, block: Block) -> tuple[NestNode, ...]:
    plan = tiles.plan
    if plan.partial:
        return (_by_partial_sums(tiles, block),)
    nest = tuple(_nest(tiles, plan.outer, block, ""))
    if "b" in plan.outer and plan.batch and value(plan.batch.count) is None:
        empty = replace(block, extents=block.extents | {"k": ZERO})
        scale = tuple(_nest(tiles, plan.outer.replace("b", "").replace("k", ""), empty, ""))
        nest = (When(plan.batch.count, nest, scale),)
    return nest


def _by_partial_sums(tiles: TileSet, block: Block) -> Pack:
    """The sums in a buffer of their own, which is finished when all are there."""
    plan = tiles.plan
    sums = plan.operands["sums"]
    elements = plan.sum_elements
    letters = "".join(x for x in plan.outer if x not in "bk")
    fill = _sums(tiles, block)
    finish = tuple(_nest(tiles, letters, replace(block, stage="finish"), ""))
    return Pack(sums.buffer, sums.type, elements, tiles.room(sums, elements), fill, finish)


def _sums(tiles: TileSet, block: Block) -> tuple[NestNode, ...]:
    """What fills a buffer with the sums."""
    plan = tiles.plan
    fill = tuple(_nest(tiles, plan.outer, replace(block, stage="sum"), ""))
    if "b" in plan.outer and plan.batch and value(plan.batch.count) is None:
        letters = "".join(x for x in plan.outer if x not in "bk")
        empty = replace(block, extents=block.extents | {"k": ZERO}, stage="sum")
        fill = (When(plan.batch.count, fill, tuple(_nest(tiles, letters, empty, ""))),)
    return fill


def _nest(tiles: TileSet, letters: str, block: Block, names: str) -> Iterator[NestNode]:
    """The nodes for the remaining letters; ``names`` holds the counters already taken."""
    plan = tiles.plan
    due = _due(plan, letters.lower(), block)
    if due and block.extents["k"] != 0 and block.stage != "finish":
        yield _packed(tiles, due, letters, block, names)
        return
    if not letters:
        yield from _by_columns(tiles, plan.outer, block)
        return
    letter, rest = letters[0], letters[1:]
    if letter == "b":
        yield from _batch(tiles, rest, block, names)
    elif letter == "k":
        steps = plan.product.depth * (plan.schedule.k_unroll or 1)
        size = plan.blocks["k"] if "k" in rest + plan.inner else steps
        yield from _blocked(tiles, "k", size, rest, block, names)
    elif letter.lower() in rest.lower():
        yield from _blocked(tiles, letter, plan.blocks[letter.lower()], rest, block, names)
    else:
        yield from _nest(tiles, rest, block, names)  # the grid of tiles itself loops over it


def _due(plan: Plan, letters: str, block: Block) -> str:
    """The operand to pack here: no loop to come chooses another block of it, or reuse begins."""
    passes = {"a": "n", "b": "m"}
    for name in plan.packs:
        mine = {"m", "n", "k", "b"} - {passes[name]}
        last = {d for d in "mn" if d in letters and letters.count(d) == 1}
        blocks = [letter for letter in letters if letter not in last]
        if name not in block.bases and not any(letter in mine for letter in blocks):
            return name
    return ""


def _packed(tiles: TileSet, name: str, letters: str, block: Block, names: str) -> Pack:
    plan = block.plan
    at = offset_of(plan, name, block.origin)
    packed = pack(plan, name, block.extents, at, f"pack{len(tiles.programs)}_{name}_")
    scratch = tiles.room(packed.operand, packed.elements)
    if block.parallel and scratch is not None:
        raise beyond_stack(plan, packed)
    tiles.programs |= {("pack", tile.name): tile for tile in packed.tiles}
    operands = dict(plan.operands) | {name: packed.operand}
    bases = block.bases | {name: block.origin}
    inside = replace(block, plan=replace(plan, operands=operands), bases=bases)
    return Pack(
        buffer=packed.operand.buffer,
        element=packed.operand.type,
        elements=packed.elements,
        scratch=scratch,
        fill=packed.nodes,
        body=tuple(_nest(tiles, letters, inside, names)),
    )


def _batch(tiles: TileSet, rest: str, block: Block, names: str) -> Iterator[NestNode]:
    plan = tiles.plan
    assert plan.batch is not None
    count = plan.batch.count
    if value(count) == 0 or block.extents["k"] == 0:
        yield from _nest(tiles, rest, block.inside("k", ZERO, ZERO), names)
        return
    yield from _selected(plan, ZERO, tuple(_nest(tiles, rest, block, names)))
    if count != 1:
        index = symbol("i")
        later = replace(block, accumulate=True, origin=block.origin | {"b": index})
        body = _selected(plan, index, tuple(_nest(tiles, rest, later, names)))
        yield BlockLoop("i", count, body, first=1, note="batch")


def _selected(plan: Plan, index: Expr, body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    """``body`` with the operands of one batch element, where those are not in a buffer."""
    taken = operands_of(body)
    given = (plan.operands[x] for x in "ab" if Name(x) in taken)
    chosen = tuple(select(plan, operand) for operand in given if not operand.packed)
    return (of_batch(index, chosen, body),) if chosen else body


def _blocked(
    tiles: TileSet, letter: str, size: int, rest: str, block: Block, names: str
) -> Iterator[NestNode]:
    """Whole blocks in a loop, then what is left."""
    parallel, letter = letter.isupper(), letter.lower()
    extent = block.extents[letter]
    trips, left = div(extent, size), mod(extent, size)
    counter = f"{letter}{names.count(letter)}"
    names += letter
    first = 0
    known = value(trips)
    if letter == "k" and trips != 0:
        first = 1
        inner = block.inside("k", size + ZERO, ZERO)
        head = tuple(_nest(tiles, rest, inner, names))
        yield from head if known else (When(trips, head),)
    if known is None or known > first:
        later = replace(
            block,
            accumulate=block.accumulate or letter == "k",
            parallel=block.parallel or parallel,
        )
        inner = later.inside(letter, size + ZERO, size * symbol(counter))
        body = tuple(_nest(tiles, rest, inner, names))
        yield BlockLoop(counter, trips, body, first, parallel=parallel)
    yield from _left_over(tiles, letter, (trips, size, left), rest, block, names)


def _left_over(
    tiles: TileSet,
    letter: str,
    cut: tuple[Expr, int, Expr],
    rest: str,
    block: Block,
    names: str,
) -> Iterator[NestNode]:
    trips, size, left = cut
    tail = block.inside(letter, left, size * trips)
    if letter != "k":
        if left != 0:
            body = tuple(_nest(tiles, rest, tail, names))
            yield from body if value(left) else (When(left, body),)
        return
    if value(trips) is not None:
        if left != 0 or trips == 0:
            accumulate = block.accumulate or trips != 0
            yield from _nest(tiles, rest, replace(tail, accumulate=accumulate), names)
        return
    later = tuple(_nest(tiles, rest, replace(tail, accumulate=True), names)) if left != 0 else ()
    only = tuple(_nest(tiles, rest, tail, names))
    yield When(trips, (When(left, later),) if later else (), only)


def _by_columns(tiles: TileSet, letters: str, block: Block) -> Iterator[NestNode]:
    """The grids of tiles; where B is packed in blocks of columns, those of one after the other."""
    width = block.plan.columns
    if width is None:
        yield from _grids(tiles, letters, block)
        return
    step = block.plan.blocks.get("n", width)
    if step % width and width % step:
        raise ScheduleError(
            "blocks of columns of a packed B would be cut",
            got=f"block['n'] == {step}, and B in blocks of {width} columns",
            expected="one to be a multiple of the other",
        )
    before = width * div(block.origin["n"], width)
    parallel = letters[letters.lower().rfind("n") :][:1].isupper()
    for part in parts(block.extents["n"], width):
        first = part.start + part.size * symbol("pt") if part.count != 1 else part.start
        inside = block.inside("n", Integer(part.size), first).inside("p", ZERO, before + first)
        grids = tuple(_grids(tiles, letters, inside))
        if part.count == 1:
            yield from grids
        else:
            note = f"n by {width}"
            yield BlockLoop("pt", part.count, grids, note=note, parallel=parallel)


def _grids(tiles: TileSet, letters: str, block: Block) -> Iterator[NestNode]:
    """Every region's grid of tiles, looped over in the order of the last m and n."""
    plan = block.plan
    along, across = plan.along, plan.across
    order = sorted({"m", "n"}, key=letters.lower().rfind)
    parallel = {dim for dim in "mn" if letters[letters.lower().rfind(dim) :][:1].isupper()}
    steps, rest = plan.steps(block.extents["k"], finish=block.stage == "finish")
    counted = plan.counted(steps, rest)
    regions = partition(
        plan, block.extents[across], block.extents[along], counted, block.accumulate
    )
    if plan.by_panels:
        yield panels(tiles, block, regions, (steps, rest))
        return
    for region in regions:
        tile = Tile(plan, region, steps, block.accumulate, rest, block.stage)
        parts = {along: region.along, across: region.across}
        node: NestNode = called(tiles, block, tile, region.along, region.across)
        for dim in reversed(order):
            node = looped(dim, parts[dim], (node,), parallel)[0]
        yield node
