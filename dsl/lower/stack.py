"""The program of a stack of products: a loop over products, or over groups that share vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, product

from sympy import Expr, Integer

from tilewright.ir.dataflow import sizes_used
from tilewright.ir.nest import (
    Argument,
    BlockLoop,
    Call,
    Name,
    NestNode,
    Pack,
    Program,
    Selected,
    of_batch,
    operands_of,
    repeated,
    when,
)
from tilewright.ir.nodes import rewritten, walk
from tilewright.ir.ops import (
    Advance,
    Apply,
    Load,
    Loop,
    MultiplyAdd,
    Note,
    Op,
    Parameter,
    Point,
    Splat,
    Store,
    TileProgram,
    Zero,
)
from tilewright.ir.values import Address, Register
from tilewright.isa.vector import Vector
from tilewright.plan.routines.stack import StackPlan
from tilewright.plan.routines.transpose import move_plan
from tilewright.plan.tiling.parts import exact_parts
from tilewright.spec.gemm import SHAPES
from tilewright.symbolic import ONE, ZERO, div, linear, mod, symbol, value

from .nest.build import make_program
from .tile.store import update_said
from .transpose import grid_nest

#: The most multiply-adds of a tile for which all of K is unrolled into straight code.
STRAIGHT = 128
#: The name of the loop counter over products, or over groups of products.
COUNTER = "s"
#: The name of the buffer that holds a group's matrices in vectors.
LANES = Name("lanes")
#: The name of B2, which is the operand B of the second product.
_SECOND = Name("b", product=1)


def stack_program(plan: StackPlan) -> Program:
    """Return the program of the whole kernel."""
    if plan.each is not None:
        return _one_by_one(plan)
    tiles = _Tiles(plan)
    nest = tuple(_side_by_side(tiles))
    return Program(nest, tuple(tiles.programs.values()))


def _one_by_one(plan: StackPlan) -> Program:
    """Return the program of one product in a loop over all products."""
    assert plan.each is not None
    one = make_program(plan.each)
    if not one.nest:
        return one
    if plan.parallel:
        one = _of_workers(one)
    nest = tuple(chain.from_iterable(map(_asked, one.nest)))
    body = _chosen(plan, nest, symbol(COUNTER))
    return replace(one, nest=(_loop(plan, plan.batch.count, body, "products"),))


def _of_workers(one: Program) -> Program:
    """Return the program with its buffers in scratch memory of the thread, not of the call."""

    def own(node: NestNode) -> NestNode:
        if not isinstance(node, Pack) or node.scratch is None:
            return node
        return replace(node, of_worker=True)

    nest = tuple(rewritten(one.nest, own))
    return replace(one, nest=nest, scratch=ZERO, worker_scratch=one.scratch)


def _chosen(plan: StackPlan, nodes: tuple[NestNode, ...], index: Expr) -> tuple[NestNode, ...]:
    """Return ``nodes`` for the product with number ``index``."""
    taken = operands_of(nodes)
    selected = tuple(
        Selected(name, operand.type, "strided", plan.batch.strides[n], n == plan.spec.output)
        for n, operand in plan.operands.items()
        if (name := _SECOND if n == "b2" else Name(n)) in taken
    )
    return (of_batch(index, selected, nodes),) if selected else nodes


def _asked(node: NestNode) -> tuple[NestNode, ...]:
    """Return ``node``; a grid is skipped if it has no tiles, as most grids of small products do."""
    return when(_tiles_in(node), (node,))


def _tiles_in(node: NestNode) -> Expr:
    """Return the number of tiles in a grid; 1 for a node that is not a loop."""
    if not isinstance(node, BlockLoop):
        return ONE
    return node.trips * sum(map(_tiles_in, node.body))


def _loop(plan: StackPlan, trips: Expr, body: tuple[NestNode, ...], note: str) -> BlockLoop:
    work = plan.work if plan.parallel else None
    return BlockLoop(COUNTER, trips, body, note=note, parallel=plan.parallel, work=work)


# --- side by side ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tiles:
    """The tile programs made so far, each once."""

    plan: StackPlan
    programs: dict[str, TileProgram] = field(default_factory=dict)

    def add(self, program: TileProgram) -> str:
        return self.programs.setdefault(program.name, program).name


@dataclass(frozen=True, slots=True)
class _Place:
    """A matrix as tiles see it: buffer, first element, and strides of rows and columns in
    elements.
    """

    buffer: Name
    first: Expr
    rows: Expr
    columns: Expr

    def at(self, row: Expr, column: Expr) -> Argument:
        """Return the element in a row and a column."""
        return Argument(self.buffer, self.first + row * self.rows + column * self.columns)


def _side_by_side(tiles: _Tiles) -> Iterator[NestNode]:
    """Yield groups of products that fill vectors, then the remaining products one by one."""
    plan = tiles.plan
    start, left = ZERO, plan.batch.count
    for vector in plan.vectors:
        trips = div(left, vector.lanes)
        if trips != 0:
            index = start + symbol(COUNTER) * vector.lanes
            make = _group if vector.lanes > 1 else _single
            note = f"{vector.lanes} products side by side" if vector.lanes > 1 else "one by one"
            loop = _loop(plan, trips, tuple(make(tiles, vector, index)), note)
            yield loop if vector.lanes > 1 else replace(loop, parallel=False)
        start, left = start + trips * vector.lanes, mod(left, vector.lanes)


def _single(tiles: _Tiles, vector: Vector, index: Expr) -> Iterator[NestNode]:
    """Yield one product, computed directly on the caller's matrices."""
    plan, places = tiles.plan, {}
    for name in "abc":
        rows, columns = (plan.operands[name].strides[d] for d in SHAPES[name])
        places[name] = _Place(Name(name), index * plan.batch.strides[name], rows, columns)
    yield from _multiplied(tiles, vector, places)


def _group(tiles: _Tiles, vector: Vector, index: Expr) -> Iterator[NestNode]:
    """Yield as many products as the vector has lanes, computed in a buffer."""
    plan = tiles.plan
    places = _beside(plan, vector)
    moved = "ab" if plan.spec.beta == 0 else "abc"
    fill = tuple(node for name in moved for node in _moved(tiles, vector, places, name, index))
    back = tuple(_moved(tiles, vector, places, "c", index, back=True))
    body = (*_multiplied(tiles, vector, places), *back)
    rooms = [plan.room(name) for name in "abc"]
    elements = sum(room for room in rooms if room is not None) * vector.lanes
    yield Pack(LANES, plan.element, Integer(elements), None, fill, body)


def _beside(plan: StackPlan, vector: Vector) -> dict[str, _Place]:
    """Return the places of A, B and C in the buffer: one after another, one product in each lane.

    Their distances are then not multiples of 4 KiB. At such distances some processors mistake a
    load for one that depends on a recent store.
    """
    places, first = {}, ZERO
    for name in "abc":
        rows, columns = (plan.operands[name].strides[d] * vector.lanes for d in SHAPES[name])
        places[name] = _Place(LANES, first, rows, columns)
        first += plan.elements(name) * vector.lanes
    return places


def _moved(
    tiles: _Tiles,
    vector: Vector,
    places: dict[str, _Place],
    name: str,
    index: Expr,
    *,
    back: bool = False,
) -> tuple[NestNode, ...]:
    """Return nodes that copy a group's matrices into the buffer, or from there back to the
    caller's.
    """
    plan, lanes, stride = tiles.plan, vector.lanes, tiles.plan.batch.strides[name]
    sizes, leading = (Integer(lanes), plan.elements(name)), (stride, lanes * ONE)
    names, at = (Name(name), LANES), (index * stride, places[name].first)
    if back:
        sizes, leading, names, at = sizes[::-1], leading[::-1], names[::-1], at[::-1]
    most = max(lanes, plan.room(name) or lanes)
    moves = move_plan(plan.target, plan.element, sizes, leading, plan.slots, most=most)
    nodes, programs = grid_nest(moves, names, at, f"{name}_{'back_' if back else ''}")
    for program in programs:
        tiles.add(program)
    return nodes


def _multiplied(tiles: _Tiles, vector: Vector, places: dict[str, _Place]) -> Iterator[NestNode]:
    """Yield the call of every tile of C, for a group of products or for one."""
    plan, (mr, nr) = tiles.plan, tiles.plan.tile
    sizes = plan.sizes
    for down, over in product(exact_parts(sizes["m"], mr), exact_parts(sizes["n"], nr)):
        name = tiles.add(_tile(plan, vector, places, (down.units, over.units)))
        row, column = down.at("tm"), over.at("tn")
        call = Call(
            name,
            (
                places["a"].at(row, ZERO),
                places["b"].at(ZERO, column),
                places["c"].at(row, column),
            ),
        )
        yield from repeated("tm", down.count, repeated("tn", over.count, (call,)))


def _tile(
    plan: StackPlan, vector: Vector, places: dict[str, _Place], size: tuple[int, int]
) -> TileProgram:
    """Return the program of a tile with ``size`` (rows, columns), for all products in the lanes."""
    mr, nr = size
    sums = [[Register(f"c{i}_{j}", vector) for j in range(nr)] for i in range(mr)]
    body = (
        *(Zero(each) for row in sums for each in row),
        *_summed(plan, vector, places, sums),
    )
    end = tuple(_stored(plan, places["c"], sums))
    lanes = f"{vector.lanes} products" if vector.lanes > 1 else "one product"
    return TileProgram(
        name=f"{'products' if vector.lanes > 1 else 'product'}_{mr}x{nr}",
        element=plan.element,
        parameters=(
            Parameter("a", "in"),
            Parameter("b", "in"),
            Parameter("c", "out"),
            *(Parameter(slot, "size") for slot in sizes_used((*walk(body), *end), plan.slots)),
        ),
        body=body,
        end=end,
        summary=f"{mr * nr} accumulators + {mr} A + 1 B = {mr * nr + mr + 1} of "
        f"{plan.target.registers} {vector.name}, of {lanes}",
        mr=Integer(mr),
        nr=Integer(nr),
        accumulators=tuple(tuple(each.name for each in row) for row in sums),
    )


def _summed(
    plan: StackPlan, vector: Vector, places: dict[str, _Place], sums: list[list[Register]]
) -> Iterator[Op]:
    """Yield the multiply-adds of all of K: straight code if it is short, else a loop."""
    a, b, k = places["a"], places["b"], plan.sizes["k"]
    yield Point("pa", "a", ZERO, plan.element)
    yield Point("pb", "b", ZERO, plan.element)
    steps = value(k)
    if steps is not None and steps * len(sums) * len(sums[0]) <= STRAIGHT:
        for step in range(steps):
            yield Note(f"Load, multiply-add: step {step + 1} of {steps}.")
            yield from _step(vector, (a, b), sums, step)
        return
    advance = (Advance("pa", a.columns), Advance("pb", b.rows))
    ops = (Note("Load, multiply-add."), *_step(vector, (a, b), sums, 0), *advance)
    yield Loop("kt", k, ops, "K")


def _step(
    vector: Vector, places: tuple[_Place, _Place], sums: list[list[Register]], step: int
) -> Iterator[Op]:
    """Yield the multiply-adds of one element of K with all rows and columns of the tile."""
    a, b = places
    said = f"_k{step}" if step else ""
    rows = [Register(f"a{i}{said}", vector) for i in range(len(sums))]
    for i, row in enumerate(rows):
        yield Load(row, Address("pa", linear(((i, a.rows), (step, a.columns)))))
    for j in range(len(sums[0])):
        column = Register(f"b{j}{said}", vector)
        yield Load(column, Address("pb", linear(((step, b.rows), (j, b.columns)))))
        for i, row in enumerate(rows):
            yield MultiplyAdd(vector.fma, sums[i][j], row, column)


def _stored(plan: StackPlan, c: _Place, sums: list[list[Register]]) -> Iterator[Op]:
    """Yield ``C = alpha * sums + beta * C``."""
    spec, vector = plan.spec, sums[0][0].vector
    alpha, beta = Register("alpha_v", vector), Register("beta_v", vector)
    if spec.alpha != 1:
        yield Splat(alpha, spec.alpha)
    if spec.beta not in (0, 1):
        yield Splat(beta, spec.beta)
    yield Note(update_said(spec.alpha, spec.beta))
    for i, row in enumerate(sums):
        for j, each in enumerate(row):
            address = Address("c", linear(((i, c.rows), (j, c.columns))))
            if spec.alpha != 1:
                yield Apply(each, "mul", (each, alpha))
            if spec.beta != 0:
                old = Register(f"old{i}_{j}", vector)
                yield Load(old, address)
                plus = Apply(each, "add", (each, old))
                yield plus if spec.beta == 1 else MultiplyAdd(vector.fma, each, old, beta)
            yield Store(address, each)
