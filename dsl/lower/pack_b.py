"""The program that packs a B: convert it chunk by chunk of K, and sum its columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from sympy import Expr, Integer

from tilewright.ir.access import read
from tilewright.ir.dataflow import sizes_used
from tilewright.ir.interleaving import row_of_blocks
from tilewright.ir.nest import (
    Argument,
    BlockLoop,
    Call,
    Name,
    NestNode,
    Program,
    Selected,
    of_batch,
    operands_of,
    repeated,
    when,
)
from tilewright.ir.nodes import walk
from tilewright.ir.ops import (
    Advance,
    Apply,
    Load,
    Loop,
    MultiplyAdd,
    Op,
    Parameter,
    Point,
    Splat,
    Store,
    SumLanes,
    TileProgram,
    Zero,
)
from tilewright.ir.values import Address, Register, bits_of_ones
from tilewright.isa.vector import Vector
from tilewright.lower.move import MoveNest
from tilewright.lower.staging.convert import ConversionNest
from tilewright.lower.vectors import over_vectors
from tilewright.plan.formats.layout import ALIGNMENT
from tilewright.plan.routines.copy import Move, filling, staged_move
from tilewright.plan.routines.pack_b import PackPlan
from tilewright.plan.tiling.parts import Part, whole_and_rest
from tilewright.symbolic import ONE, ZERO, div, missing, symbol, value

#: The number of vectors of columns that one call sums, or sets to 0.
VECTORS = 4


@dataclass(frozen=True, slots=True)
class _Packing:
    """The plan, and the tile programs made so far, whose names begin with ``prefix``.

    ``move``, if given, moves the elements of a part of a block in place of a conversion.
    """

    plan: PackPlan
    prefix: str = ""
    move: Move | None = None
    tiles: dict[str, TileProgram] = field(default_factory=dict)

    @property
    def out(self) -> Name:
        """The name of the packed matrix."""
        return self.plan.operands["out"].buffer

    def conversion(self, size: tuple[Expr, Expr], first: tuple[Expr, Expr]) -> ConversionNest:
        """Return the loops that convert ``size`` columns and elements of K.

        ``first`` has their first elements in both matrices.
        """
        plan = self.plan
        move = staged_move(
            plan.target, plan.operands["b"], plan.operands["out"], "n", size,
            rounded=plan.spec.type, group=plan.format.group, shift=plan.shift, lanes=plan.lanes,
            slots=plan.slots,
        )  # fmt: skip
        return ConversionNest(move, self.tiles, self.prefix, first, zero_lines=True)

    def filling(self, type_: str, prefix: str = "") -> MoveNest:
        """Return the loops that fill parts of the packed matrix with numbers of ``type_``."""
        move = filling(self.plan.target, self.out, type_, self.plan.slots)
        return MoveNest(move, self.tiles, self.prefix + prefix)

    def call(self, name: str, made: Iterable[Op], places: tuple[tuple[str, Argument], ...]) -> Call:
        """Return a call of tile ``name``, whose program is made of ``made`` at the first call."""
        summary, name = name.replace("_", " "), self.prefix + name
        if name not in self.tiles:
            ops = tuple(made)
            roles = {"x": "in", "out": "out", "sums": "out"}
            elements = {"sums": "s32"}
            parameters = tuple(
                Parameter(place, roles[place], elements.get(place, ""))  # type: ignore[arg-type]
                for place, _ in places
            )
            sizes = (Parameter(slot, "size") for slot in sizes_used(walk(ops), self.plan.slots))
            self.tiles[name] = TileProgram(
                name, self.plan.element, (*parameters, *sizes), ops, (), summary
            )
        return Call(name, tuple(argument for _, argument in places))


def pack_program(plan: PackPlan, move: Move | None = None) -> Program:
    """Return the program for all matrices of the batch, one block of columns after another."""
    packing = _Packing(plan, move=move)
    nodes = tuple(_matrix(packing))
    if plan.batch is not None and nodes:
        if (b := Name("b")) in operands_of(nodes):
            chosen = Selected(b, plan.spec.source, "strided", plan.batch.strides["b"])
            nodes = (of_batch(symbol("i"), (chosen,), nodes),)
        nodes = (BlockLoop("i", plan.batch.count, nodes, note="batch"),)
    return Program(nodes, tuple(packing.tiles.values()))


def pack_ends(plan: PackPlan) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return what is written once to a packed D before ``pack_rows``: start values of sums, zeros.

    Zeros fill the gap between the elements and the sums.
    """
    packing, form = _Packing(plan, "d_"), plan.format
    nodes = (*_begin_sums(packing, ZERO), *_gap(packing, form.blocks * form.block_elements))
    return nodes, tuple(packing.tiles.values())


def pack_rows(
    plan: PackPlan, first: Expr, rows: Expr, *, parallel: bool
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return the packing of ``rows`` rows of a packed D, which begin with row ``first``.

    The source has these rows alone. ``first`` is a multiple of a panel's rows.
    """
    packing, form = _Packing(plan, "d_"), plan.format
    at = first * (4 // form.itemsize if form.sums else 0), first * form.groups * form.group
    nodes: list[NestNode] = []
    for part in whole_and_rest(rows, form.nb):
        made = repeated("pt", part.count, _block(packing, at, part), f"m by {form.nb}")
        if parallel and isinstance(made[0], BlockLoop) and part.count != 1:
            made = (replace(made[0], parallel=True),)
        nodes += when(part.size, made)
    return tuple(nodes), tuple(packing.tiles.values())


def _matrix(packing: _Packing) -> Iterator[NestNode]:
    """Yield the packing of one matrix: start the sums, pack its blocks of columns, and zero the
    gap.
    """
    plan, form = packing.plan, packing.plan.format
    first = form.elements * symbol("i") if plan.batch else ZERO
    yield from _begin_sums(packing, first)
    if form.column and form.sums_at != 0:  # sums read whole vectors, so the padding must be 0
        line = ALIGNMENT // form.itemsize
        end = first + div(form.sums_at, form.itemsize)
        yield from _zeros(packing, end - line, Integer(line // (plan.lanes * form.group)))
    for columns in whole_and_rest(form.n, form.nb):
        block = _block(packing, (first, first), columns)
        yield from when(columns.size, repeated("pt", columns.count, block, f"n by {form.nb}"))
    yield from _gap(packing, form.blocks * form.block_elements, first)


def _gap(packing: _Packing, written: Expr, first: Expr = ZERO) -> Iterator[NestNode]:
    """Yield zeros between the ``written`` elements of a matrix and its sums."""
    plan, form = packing.plan, packing.plan.format
    gap = missing(written, ALIGNMENT // form.itemsize)
    yield from _zeros(packing, first + written, div(gap, plan.lanes * form.group))


def _block(packing: _Packing, at: tuple[Expr, Expr], columns: Part) -> Iterator[NestNode]:
    """Yield one block of columns: all of K, and K groups that pad the last step.

    ``at`` has the first elements of the matrix, for its sums, and of the first block.
    """
    plan, form = packing.plan, packing.plan.format
    block = at[1] + columns.at("pt") * form.groups * form.group
    whole = div(form.k + (form.group - 1), form.group)
    yield from _missing(packing, block, columns, whole)
    for strip in whole_and_rest(columns.size, plan.strip):
        nodes: list[NestNode] = []
        for depth in whole_and_rest(form.k, plan.chunk):
            chunk = _chunk(packing, (at[0], block), (columns, strip), depth)
            nodes += repeated("kc", depth.count, when(depth.size, tuple(chunk)), "chunks of k")
        yield from repeated("ps", strip.count, nodes, f"{strip.units} columns")
    there = block + whole * form.nb * form.group
    yield from _zeros(packing, there, missing(whole, form.step) * (form.nb // plan.lanes))


def _missing(packing: _Packing, block: Expr, columns: Part, groups: Expr) -> Iterator[NestNode]:
    """Yield zeros for columns of the last block that B does not have."""
    plan, form = packing.plan, packing.plan.format
    whole = div(columns.size, plan.lanes)
    row = block + form.nb * form.group * symbol("gp")
    vectors = div(form.nb + (plan.lanes - 1) - columns.size, plan.lanes)
    zeros = _zeros(packing, row + whole * plan.lanes * form.group, vectors)
    if nodes := tuple(zeros):
        yield BlockLoop("gp", groups, nodes, note="columns that are not there")


def _chunk(
    packing: _Packing, first: tuple[Expr, Expr], columns: tuple[Part, Part], depth: Part
) -> Iterator[NestNode]:
    """Yield the packing of a chunk of K for some columns. ``first`` has the first elements of
    matrix and block.
    """
    plan, form = packing.plan, packing.plan.format
    b = plan.operands["b"].strides
    block, strip = columns
    inside, k = strip.at("ps"), depth.at("kc")
    column = block.at("pt") + inside
    there = first[1] + inside * form.group + k * form.nb
    if packing.move is not None:
        move = replace(packing.move, lines=strip.size, depth=depth.size)
        nest = MoveNest(move, packing.tiles, first=(move.source.at(column, k), there))
        yield from nest.moves()
    else:
        at = k * b["k"] + column * b["n"], there
        yield from packing.conversion((strip.size, depth.size), at).moves()
    if form.sums:
        vectors = div(strip.size + (plan.lanes - 1), plan.lanes)
        groups = div(depth.size + (form.group - 1), form.group)
        yield from _add_sums(packing, (first[0], there), column, (vectors, groups))


def _zeros(packing: _Packing, at: Expr, vectors: Expr) -> Iterator[NestNode]:
    """Yield zeros for ``vectors`` vectors of columns."""
    plan, form = packing.plan, packing.plan.format
    count = vectors * plan.lanes * form.group
    yield from packing.filling(form.stored).fill(Argument(packing.out, at), count)


# --- sums ----------------------------------------------------------------------------------------


def _sums_place(packing: _Packing, first: Expr, column: Expr) -> tuple[str, Argument]:
    form = packing.plan.format
    at = first + div(form.sums_at, form.itemsize) + 4 // form.itemsize * column
    return "sums", Argument(packing.out, at, cast=True)


def _begin_sums(packing: _Packing, first: Expr) -> Iterator[NestNode]:
    """Yield the start values of sums: the correction of shifts, or 0 without shifts and in
    padding.
    """
    plan, form = packing.plan, packing.plan.format
    if not form.sums:
        return
    start = -plan.shift * form.k
    sums, columns = div(form.nbytes - form.sums_at, 4), ZERO if start == 0 else form.n
    whole = div(columns, plan.lanes)
    # If n is known, zeros are stored only after the columns. Otherwise zeros are stored everywhere
    # first, and the start values then overwrite them.
    before = plan.lanes * whole if value(whole) is not None else ZERO
    zeros = div(sums, plan.lanes) * plan.lanes - before
    nest, each = packing.filling("s32", "sums_"), 4 // form.itemsize
    _, place = _sums_place(packing, first, before)
    yield from nest.fill(place, zeros, scale=each)
    _, place = _sums_place(packing, first, ZERO)
    yield from nest.fill(place, columns, start, each)


def _add_sums(
    packing: _Packing, at: tuple[Expr, Expr], column: Expr, size: tuple[Expr, Expr]
) -> Iterator[NestNode]:
    """Yield sums of vectors of columns over some K groups: products of packed elements
    with ones.
    """
    plan, form = packing.plan, packing.plan.format
    vectors, groups = size
    if form.column:
        places = ("x", Argument(packing.out, at[1])), _sums_place(packing, at[0], column)
        yield packing.call(f"sum_{_named(groups)}", _column_ops(plan, groups), places)
        return

    def called(inside: Expr, vectors: int, tail: Expr | None) -> Call:
        name = f"sum_{vectors * plan.lanes}_columns_of_{_named(groups)}"
        x = Argument(packing.out, at[1] + form.group * inside)
        places = ("x", x), _sums_place(packing, at[0], column + inside)
        return packing.call(name, _sum_ops(plan, vectors, groups), places)

    yield from over_vectors(vectors * plan.lanes, plan.lanes, VECTORS, called)


def _named(groups: Expr) -> str:
    return "rest" if value(groups) is None else str(groups)


def _sum_ops(plan: PackPlan, vectors: int, groups: Expr) -> Iterator[Op]:
    """Yield the operations that sum ``vectors`` vectors of columns over ``groups`` K groups."""
    vector, form = plan.target.holding("s32", plan.lanes), plan.format
    product = plan.summing
    ones = Register("ones", product.held(plan.target, vector, "across"))
    if product.depth > 1:
        yield Splat(ones, bits_of_ones(product.across, product.depth), product.depth)
    totals = [Register(f"s{index}", vector) for index in range(vectors * product.rows)]
    yield from (Zero(total) for total in totals)
    yield Point("px", "x", ZERO, form.stored)
    body: list[Op] = []
    for index, total in enumerate(totals):
        x = Register(f"x{index}", _summed(plan, vector))
        address = Address("px", index * plan.lanes // product.rows * form.group * ONE)
        body += [*read(plan.target, x, address, None, form.stored), _plus(plan, total, x, ones)]
    yield Loop("kt", groups, (*body, Advance("px", form.nb * form.group * ONE)))
    if product.rows > 1:
        # The multiply-add computes blocks of two equal rows. Keep one row of each block.
        squares, totals = totals, [Register(f"t{index}", vector) for index in range(vectors)]
        for total, one, two in zip(totals, squares[::2], squares[1::2], strict=True):
            yield row_of_blocks(product.op, total, one, two, odd=False)
    for index, total in enumerate(totals):
        old, address = Register(f"old{index}", vector), Address("sums", index * plan.lanes * ONE)
        yield from (Load(old, address), Apply(total, "add", (total, old)), Store(address, total))


def _column_ops(plan: PackPlan, groups: Expr) -> Iterator[Op]:
    """Yield the operations that sum a single column of ``groups`` K groups, and then the lanes."""
    vector, single = plan.target.holding("s32", plan.lanes), plan.target.of("s32")[-1]
    product, each = plan.summing, plan.lanes * plan.format.group
    ones = Register("ones", product.held(plan.target, vector, "across"))
    if product.depth > 1:
        yield Splat(ones, bits_of_ones(product.across, product.depth), product.depth)
    total, old = Register("s", vector), Register("old", single)
    yield from (Zero(total), Point("px", "x", ZERO, plan.format.stored))
    x = Register("x0", _summed(plan, vector))
    load = read(plan.target, x, Address("px", ZERO), None, plan.format.stored)
    trips = div(groups + (plan.lanes - 1), plan.lanes)
    yield Loop("kt", trips, (*load, _plus(plan, total, x, ones), Advance("px", each * ONE)))
    summed = total
    if plan.lanes > 1:
        summed = Register("sum", single)
        yield SumLanes(summed, total)
    address = Address("sums", ZERO)
    yield from (Load(old, address), Apply(summed, "add", (summed, old)), Store(address, summed))


def _summed(plan: PackPlan, vector: Vector) -> Vector:
    """Return the vector type of the elements that are summed."""
    product = plan.summing
    return vector if product.depth == 1 else product.held(plan.target, vector, "along")


def _plus(plan: PackPlan, total: Register, x: Register, ones: Register) -> Op:
    if plan.summing.depth == 1:
        return Apply(total, "add", (total, x))
    op = plan.summing.form(total.vector, "broadcast", "scalar")
    assert op is not None
    return MultiplyAdd(op, total, x, ones)
