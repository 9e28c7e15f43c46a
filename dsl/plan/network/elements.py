"""Plan stages without products: functions of elements, reductions, and copies, as row programs."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.isa.target import Target
from tilewright.spec.expression.nodes import Composed, Expression, walk
from tilewright.spec.expression.tensors import Full, Input, Reduce
from tilewright.spec.network.value import Network, slot_of
from tilewright.spec.operands import Matrix
from tilewright.spec.pack import Copy
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim, Size
from tilewright.symbolic import ONE, ZERO

from ..routines.copy import plan_copy
from ..rows.plan import plan_rows
from .block import Outer
from .placed import Axis, Placed, axes_of, exprs_of, merged
from .rebuilt import arguments, rebuilt
from .step import Opening, Planned, Rows, Sizes, outer_loops


class Elements:
    """Makes the stage that computes ``node`` from arrays, and writes it to ``target``.

    ``leaves`` has the arrays that the stage reads, by the ``id`` of their nodes. They are broadcast
    to ``shape``. By ``opening``, the stage can compute some of the rows, as far as each needs no
    other row. The loops ``around`` are around those of the stage.
    """

    def __init__(
        self,
        node: Expression,
        leaves: Mapping[int, Placed],
        target: Placed,
        shape: tuple[Size, ...],
        taken: frozenset[str],
        machine: Target,
        schedule: Schedule,
        *,
        opening: Opening = Opening.WHOLE,
        around: tuple[Outer, ...] = (),
    ) -> None:
        self.around = around
        self.node, self.target, self.machine = node, target, machine
        self.opening, self.opened = opening, opening is not Opening.WHOLE
        self.shape, self.schedule = shape or (1,), schedule
        self.sizes = Sizes(taken)
        read = [node, *(arg for each in walk(node, leaves) for arg in arguments(each))]
        placed = dict.fromkeys(leaves[id(each)] for each in read if id(each) in leaves)
        self.values = [target, *placed]
        self.leaves = leaves

    def stage(self) -> Planned:
        """Return the stage."""
        formulas = exprs_of(self.shape)
        written = self.target
        copies = id(self.node) in self.leaves
        if isinstance(self.node, Reduce) and not self.node.keepdims and not copies:
            at = len(self.shape) + self.node.axis
            shape = (*written.shape[:at], 1, *written.shape[at:])
            steps = (*written.strides[:at], ZERO, *written.strides[at:])
            written = Placed(written.name, written.type, shape, steps, written.offset)
        steps_of = [value.spread(self.shape) for value in (written, *self.values[1:])]
        axes = axes_of(formulas, steps_of)
        reduces = [each for each in walk(self.node, self.leaves) if isinstance(each, Reduce)]
        if not reduces:
            found = self._rowwise(axes) if self.opened else None
            return found or self._pointwise(merged(axes))
        axis = reduces[-1].axis
        if axis == -1:
            *outer, rows, cols = self._by_rows(axes)
            return self._made(outer, rows, cols)
        at = len(axes) + axis
        *between, cols = merged(axes[at + 1 :]) or [self._none()]
        if any(step not in (0, 1) for step in cols.steps):
            between, cols = [*between, cols], self._none()
        return self._made([*merged(axes[:at]), *between], axes[at], cols, down=True)

    def _none(self) -> Axis:
        """Return a loop of one trip."""
        return Axis(ONE, (ZERO,) * len(self.values))

    def _by_rows(self, axes: list[Axis]) -> list[Axis]:
        """Return the loops in order: those around the rows, the rows, and the columns.

        The columns are the last axis.
        """
        *lead, cols = axes
        if self.opening is not Opening.STACK or not lead:
            return [*(merged(lead) or [self._none()]), cols]
        return [*(axis for axis in lead[:-1] if axis.size != 1), lead[-1], cols]

    def _rowwise(self, axes: list[Axis]) -> Planned | None:
        """Return the stage with the last axis as columns; None if vectors cannot go along it."""
        *outer, rows, cols = self._by_rows(axes)
        if not self._varies(rows) or not (cols.size == 1 or self._unit(cols)):
            return None
        return self._made(outer, rows, self._none() if cols.size == 1 else cols)

    def _pointwise(self, axes: list[Axis]) -> Planned:
        if len(self.values) == 2 and (copy := self._transposed(axes)) is not None:
            return copy
        fits = [axis for axis in axes if self._unit(axis)]
        cols = fits[-1] if fits else self._none()
        rest = [axis for axis in axes if axis is not cols]
        rows = rest.pop() if rest else self._none()
        if self._varies(rows):
            return self._made(rest, rows, cols)
        return self._made([*rest, rows], self._none(), cols)

    def _unit(self, axis: Axis) -> bool:
        """Return True if vectors can be along an axis: arrays are contiguous or constant there."""
        return axis.steps[0] == 1 and all(s in (0, 1) for s in axis.steps) and self._varies(axis)

    def _varies(self, axis: Axis) -> bool:
        """Return True if the computed value varies along an axis, not only its target."""
        constant = isinstance(self.node, Full) and id(self.node) not in self.leaves
        return constant or axis.size == 1 or any(step != 0 for step in axis.steps[1:])

    def _transposed(self, axes: list[Axis]) -> Planned | None:
        """Return the stage if it transposes a value: contiguous columns become rows. Else None."""
        target, source = self.target, self.values[1]
        if id(self.node) not in self.leaves or target.type != source.type:
            return None
        across = [axis for axis in axes if axis.steps[0] == 1 and axis.steps[1] not in (0, 1)]
        along = [axis for axis in axes if axis.steps[1] == 1 and axis.steps[0] not in (0, 1)]
        if len(across) != 1 or len(along) != 1:
            return None
        (row,), (col,) = along, across
        spec = Copy(
            self.sizes.of(row.size), self.sizes.of(col.size), Matrix(source.type, order="F"),
            Matrix(target.type), lda=self.sizes.of(col.steps[1]), ldd=self.sizes.of(row.steps[0]),
        )  # fmt: skip
        outer = [axis for axis in axes if axis not in (row, col)]
        loops, shifts = outer_loops(outer, ("d", "a"), (target.offset, source.offset), self.around)
        sizes = {slot: self.sizes.bound[f"{dim.name}_"] for slot, dim in spec.runtime_sizes()}
        operands = {"d": target.name, "a": source.name}
        return Planned(plan_copy(spec, Schedule(), self.machine), operands, sizes, loops, shifts)

    def _made(self, outer: list[Axis], rows: Axis, cols: Axis, *, down: bool = False) -> Planned:
        """Return a row program over ``rows`` and ``cols``, with loops around it."""
        stacked = self.opening is Opening.STACK
        opened = self.opened and (stacked or not outer) and not down and self._varies(rows)
        several = opened and rows.size != 1
        height = self.sizes.new(rows.size) if several else self.sizes.of(rows.size)
        width = self.sizes.of(cols.size)
        inputs: dict[Placed, Input] = {}
        names = ["out"]
        for number, placed in enumerate(self.values[1:], 1):
            step, unit = rows.steps[number], cols.steps[number]
            shape = (1 if step == 0 else height, 1 if unit == 0 else width)
            line = cols.size if unit != 0 else ONE
            strides = None if step in (0, line) else (self.sizes.of(step), 1)
            inputs[placed] = Input(f"in{number - 1}", placed.type, shape, strides)
            names.append(f"in{number - 1}_")
        expression = self._inner(inputs, (height, width), down=down)
        step = rows.steps[0]
        line = cols.size if cols.steps[0] != 0 else ONE
        gaps = () if step in (0, line) else ((self.sizes.of(step), 1),)
        spec = Network(tuple(inputs.values()), (expression,), strides=gaps)
        plan = plan_rows(spec, self.schedule, self.machine)
        offsets = tuple(value.offset for value in self.values)
        loops, shifts = outer_loops(outer, tuple(names), offsets, self.around)
        operands = dict(zip(names, (value.name for value in self.values), strict=True))
        slot = slot_of(height.name) if several and isinstance(height, Dim) else None
        steps = dict(zip(names, rows.steps, strict=True))
        found = Rows(slot, rows.size, steps) if opened else None
        return Planned(plan, operands, self.sizes.bound, loops, shifts, rows=found)

    def _inner(
        self, inputs: Mapping[Placed, Input], shape: tuple[Size, Size], *, down: bool
    ) -> Expression:
        """Return the expression of the stage, with two axes."""
        axis = -2 if down else -1
        read = {leaf: inputs[at] for leaf, at in self.leaves.items() if at in inputs}
        whole = self._needs_shapes({leaf: each.shape[axis] for leaf, each in read.items()})

        def leaf(node: Expression) -> Expression | None:
            if id(node) in self.leaves:
                return inputs[self.leaves[id(node)]]
            if isinstance(node, Full):
                return Full(node.value, shape) if whole else node.number
            return None

        def changed(node: Composed, args: tuple[Expression, ...]) -> Expression:
            if isinstance(node, Reduce):
                return Reduce(node.fn, axis, True, args)
            return node.of(node.shell, args)

        return rebuilt(self.node, leaf, changed)

    def _needs_shapes(self, sizes: Mapping[int, Size]) -> bool:
        """Return True if constants must have a shape: only they tell how much is reduced, or made.

        ``sizes`` are those of the leaves along the reduced axis.
        """
        varies = {leaf: size != 1 for leaf, size in sizes.items()}
        reads = dict.fromkeys(sizes, True)
        for node in walk(self.node, self.leaves):
            args = arguments(node)
            varies[id(node)] = any(varies[id(arg)] for arg in args)
            reads[id(node)] = any(reads[id(arg)] for arg in args)
            if isinstance(node, Reduce):
                if not varies[id(node)]:
                    return True
                varies[id(node)] = False
        return not reads[id(self.node)]
