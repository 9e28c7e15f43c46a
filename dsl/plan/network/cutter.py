"""Cut a network into stages: products with their epilogues, and row programs.

Each product is one stage. The element-wise functions after it become its epilogue, if all values
that they read are computed by then. Other functions are row programs, which are stages too. Views
need no stage: they are strides.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

from sympy import Expr

from tilewright.ir.nest import Name
from tilewright.ir.stages import Buffer
from tilewright.isa.target import Target
from tilewright.spec.expression.nodes import Call, Expression, Number, nodes_of, rows
from tilewright.spec.expression.nodes import walk as walked
from tilewright.spec.expression.products import Product, Weight
from tilewright.spec.expression.tensors import (
    Cast,
    Count,
    Extent,
    Full,
    Input,
    Join,
    Reduce,
    Scatter,
    Take,
    View,
    cast,
)
from tilewright.spec.network.stages import Stages
from tilewright.spec.network.value import Network, slot_of
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import signature, symbol_of
from tilewright.spec.sizes import Dim, Size
from tilewright.symbolic import ONE, ZERO, symbol

from ..plan import ByRows, Plan
from ..rows.plan import plan_rows
from .attention import attentions
from .block import Outer
from .composites import Composite, composites
from .elements import Elements
from .names import Computed, Key, Namer, with_names
from .placed import Placed, expr_of, exprs_of, tight
from .products import Products, fits_epilogue, matrix_order
from .rebuilt import arguments, rebuilt
from .shared import shared_nodes
from .step import Indexed, Opening, Step, rows_of, shown_as


@dataclass(frozen=True, slots=True)
class Cuts:
    """Cuts a network into stages several times.

    ``names`` are the names of an earlier cut. No epilogue computes the functions ``moved``.
    """

    spec: Network
    target: Target
    stages: Stages
    names: Mapping[Key, str] = field(default_factory=dict)
    moved: Container[int] = ()
    plans: dict[Any, Plan | ByRows] = field(default_factory=dict)
    composites: list[tuple[Composite, ...]] = field(default_factory=list)

    def of(self, opened: Mapping[int, Opening]) -> Cutter:
        """Return a cutter in which the stages ``opened`` may compute only some of their rows."""
        return Cutter(self, opened)

    def steps(self, opened: Mapping[int, Opening]) -> tuple[Step, ...]:
        """Return the stages."""
        return self.of(opened).steps()


class Cutter:
    """Cuts a network into stages. ``values`` has where nodes are in memory, by their ``id``."""

    def __init__(self, cuts: Cuts, opened: Mapping[int, Opening]) -> None:
        spec, self.target, self.stages = cuts.spec.folded, cuts.target, cuts.stages
        self.opened, self.products, self.moved = opened, cuts.plans, cuts.moved
        self.cuts = cuts
        self.namer = Namer(cuts.names)
        self.nodes = nodes_of(rows(*spec.results))
        self.order = {id(node): number for number, node in enumerate(self.nodes)}
        self.taken = frozenset(dim.name for _, dim in spec.runtime_sizes())
        by_value = {node: node for node in self.nodes}
        self.results = [by_value[result] for result in spec.results]
        self.ends = {id(result) for result in self.results}
        parameters = signature(spec)
        self.outputs = [Name(parameters.array(name).symbol) for name in spec.names]
        self.strides = dict(zip(self.outputs, spec.steps, strict=True))
        self.updates = {Name(parameters.array(name).symbol): Name(symbol_of(given))
                        for name, given in spec.updates}  # fmt: skip
        self.users: dict[int, list[Expression]] = {id(node): [] for node in self.nodes}
        for node in self.nodes:
            for arg in arguments(node):
                self.users[id(arg)].append(node)
        self.shared = shared_nodes(self.nodes, self.users, self.ends)
        self.attentions = {id(each.first): each for each in attentions(self.nodes, self.users)}
        self.values: dict[int, Placed] = {}
        for node in self.nodes:
            if isinstance(node, Input | Weight):
                strides = node.strides if isinstance(node, Input) else None
                steps = tight(exprs_of(node.shape)) if strides is None else exprs_of(strides)
                name = Name(symbol_of(node.name))
                self.values[id(node)] = Placed(name, node.type, node.shape, steps)
        self.made: list[Computed] = []
        self.copies: dict[int, Placed] = {}
        self.joined: dict[int, Placed] = {}
        self.unfilled: dict[Name, Buffer] = {}
        self.multiplied: set[int] = set()
        self.numbers = count()
        self.written: set[Name] = set()

    def steps(self) -> tuple[Step, ...]:
        """Return the stages in order."""
        self._compute(self.nodes)
        for result, output in zip(self.results, self.outputs, strict=True):
            if output not in self.written:
                self._result(result, output)
        if not self.cuts.composites:
            self.cuts.composites.append(composites(self.nodes, self.attentions.values()))
        (found,) = self.cuts.composites
        return with_names(self.made, found, self.namer, self.order)

    def _name(self, node: Expression) -> str:
        """Return the name of a stage, given its product or its last node."""
        return self.namer.named(self.order[id(node)], node)

    def _compute(self, nodes: Iterable[Expression]) -> None:
        """Add the stages of the products, joins and shared values among ``nodes``."""
        for node in nodes:
            if isinstance(node, Product):
                if (found := self.attentions.get(id(node))) is not None:
                    # The stages of an attention follow each other.
                    self._compute(found.before)
                    for each in (each for each in found.before if isinstance(each, Count)):
                        self.place(each)
                    self.place(found.second.args[1])
                if id(node) not in self.multiplied:
                    self._product(node)
            elif isinstance(node, Join | Take | Scatter) or id(node) in self.shared:
                self.place(node)

    def place(self, node: Expression) -> Placed:
        """Return where a value is in memory; add the stages that compute it if there are none."""
        if id(node) not in self.values:
            match node:
                case View():
                    self.values[id(node)] = self._view(node)
                case Product():
                    self._product(node)
                case Join():
                    self._join(node)
                case Count():
                    self._count(node)
                case Take():
                    self._take(node)
                case Scatter():
                    self._scatter(node)
                case _:
                    written, buffer = self._new(node)
                    self._elements(node, written, buffer)
                    self.values[id(node)] = written
        return self.values[id(node)]

    # --- views ---------------------------------------------------------------------------------

    def _view(self, view: View) -> Placed:
        given = self.place(view.args[0])
        found = given.viewed(view)
        if found is None:
            found = self._copied(view.args[0]).viewed(view)
        assert found is not None, "an array without gaps has any shape"
        return found

    def _copied(self, node: Expression) -> Placed:
        """Return where a copy of a value without gaps is; add the stage if there is none."""
        if id(node) not in self.copies:
            made, buffer = self._output(node, gaps=False) or self._buffer(node)
            self._elements(node, made, buffer, known=True)
            self.copies[id(node)] = made
        return self.copies[id(node)]

    # --- products ------------------------------------------------------------------------------

    def _product(self, product: Product) -> None:
        self.multiplied.add(id(product))
        x, y = product.args
        a, weight = self._matrix(x), product.weight
        if weight is not None:
            steps = tight(exprs_of(weight.shape))
            b = Placed(Name(symbol_of(weight.name)), weight.type, weight.shape, steps)
        else:
            b = self._matrix(y)
        end = self._end(product)
        written, buffer = self._new(end)
        name = self._name(product)
        chosen = self.stages.of_product(name)
        stage = Products(
            a, b, written, self.products, self._schedule, chosen, opening=self._opening
        ).stage(product, end, self._ready, self.target)
        said = repr(rebuilt(end, lambda node: None if node is end else self._shown(node)))
        after = self._after(product)
        nodes = tuple(walked(end, self.values))
        functions = tuple(n for n in nodes if id(n) in after and isinstance(n, Call))
        step = Step(
            name, stage.plan, written.name, buffer, stage.operands, stage.sizes, said,
            stage.loops, stage.shifts, stage.parallel, rows=stage.rows,
        )  # fmt: skip
        self.made.append(Computed(step, nodes, functions))
        self.values[id(end)] = written

    @property
    def _opening(self) -> Opening:
        """The rows that the next stage can compute in one run."""
        return self.opened.get(len(self.made), Opening.WHOLE)

    @property
    def _schedule(self) -> Schedule:
        """The schedule of the next stage.

        Threads share blocks of rows if there are any. If a call may have a single block, they share
        what is in it. Matrix units would then be configured for each loop of a block.
        """
        opening = self._opening
        single = opening is Opening.ROWS and self.taken and self.target.matrix is None
        shared = opening is Opening.WHOLE or single
        return Schedule(threads=self.stages.threads if shared else None)

    def _matrix(self, node: Expression) -> Placed:
        """Return where an operand of a product is; copy it if a matrix cannot have its strides."""
        placed = self.place(node)
        return placed if matrix_order(placed) is not None else self._copied(node)

    def _shown(self, node: Expression) -> Expression | None:
        """Return a tensor that prints as the buffer of ``node``; None if it is in no buffer."""
        if isinstance(node, Input | Weight | View) or id(node) not in self.values:
            return None
        return shown_as(node, self.values[id(node)].name)

    def _end(self, product: Product) -> Expression:
        """Return the last node that the epilogue of a product can compute.

        It is the product itself if the epilogue can compute none.
        """
        found: Expression = product
        reached = {id(product)}
        for node in self._followers(product):
            reached.add(id(node))
            assert product.tensor is not None
            if node.tensor is None or node.tensor.shape != product.tensor.shape:
                continue
            inside = list(walked(node, {*self.values, id(product)}))
            inside = [each for each in inside if self._ready(each) is None]
            if any(self.order[id(each)] in self.moved for each in inside):
                continue
            whole = {id(each) for each in inside}
            private = all(
                {id(user) for user in self.users[each]} <= whole and each not in self.ends
                for each in (reached & whole | {id(product)}) - {id(node)}
            )
            if private and all(self._is_of_epilogue(each, product) for each in inside):
                found = node
        return found

    def _after(self, product: Product) -> set[int]:
        """Return the ``id`` of each function of elements that follows a product."""
        return {id(node) for node in self._followers(product)}

    def _followers(self, product: Product) -> Iterator[Expression]:
        """Yield the functions of elements of a product, and of their results, in order."""
        heap, seen = [self.order[id(product)]], {id(product)}
        while heap:
            node = self.nodes[heappop(heap)]
            if node is not product:
                yield node
            for user in self.users[id(node)]:
                if isinstance(user, Call | Cast) and id(user) not in seen:
                    seen.add(id(user))
                    heappush(heap, self.order[id(user)])

    def _is_of_epilogue(self, node: Expression, product: Product) -> bool:
        """Return True if the epilogue of ``product`` can compute a node from its arguments."""
        if isinstance(node, Number):
            return True
        held = [self._ready(arg) for arg in arguments(node) if arg is not product]
        assert product.tensor is not None
        shape = product.tensor.shape
        fits = all(each is None or fits_epilogue(each, shape) for each in held)
        return isinstance(node, Call | Cast) and fits

    def _ready(self, node: Expression) -> Placed | None:
        """Return where a value is in memory; None if a stage must compute or copy it first."""
        if id(node) in self.values:
            return self.values[id(node)]
        chain: list[View] = []
        while isinstance(node, View) and id(node) not in self.values:
            chain.append(node)
            node = node.args[0]
        found = self.values.get(id(node)) if chain else None
        for view in reversed(chain):
            found = None if found is None else found.viewed(view)
        return found

    # --- stages without products ---------------------------------------------------------------

    def _elements(
        self,
        node: Expression,
        target: Placed,
        buffer: Buffer | None,
        *,
        known: bool = False,
        unless: Name | None = None,
    ) -> None:
        """Add the stage that computes ``node``, or only copies it if it is ``known``.

        It does not run if the array ``unless`` is that of ``target``.
        """
        shape, leaves = self._leaves(node) if not known else (target.shape, {})
        if known:
            leaves = {id(node): self.values[id(node)]}
        stage = Elements(
            node, leaves, target, shape, self.taken, self.target, self._schedule,
            opening=self._opening,
        ).stage()  # fmt: skip
        said = repr(rebuilt(node, lambda each: None if each is node else self._shown(each)))
        self.written.add(target.name)
        name = self.namer.of_copy() if known else self._name(node)
        step = Step(
            name, stage.plan, target.name, buffer, stage.operands,
            stage.sizes, said, stage.loops, stage.shifts, rows=stage.rows, unless=unless,
        )  # fmt: skip
        self.made.append(Computed(step, tuple(walked(node, leaves))))

    def _leaves(self, root: Expression) -> tuple[tuple[Size, ...], dict[int, Placed]]:
        """Return the shape over which a stage loops, and where the values that it reads are."""
        assert root.tensor is not None
        shape, along = self._shape(root)
        leaves: dict[int, Placed] = {}
        seen: set[int] = set()
        stack = [root]
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if node is root or self._inline(node, shape, along):
                stack += arguments(node)
            elif not isinstance(node, Number | Extent | Full):
                leaves[id(node)] = self._unit(node, self.place(node), shape)
        # Placing the leaves may have put a reduction of this stage into an earlier stage. The shape
        # is then different.
        return (shape, leaves) if self._shape(root)[0] == shape else self._leaves(root)

    def _unit(self, node: Expression, placed: Placed, shape: tuple[Size, ...]) -> Placed:
        """Return where a leaf is; a copy if its last axis is neither contiguous nor constant."""
        steps = placed.spread(shape)
        return self._copied(node) if steps and steps[-1] not in (0, 1) else placed

    def _shape(self, root: Expression) -> tuple[tuple[Size, ...], int]:
        """Return the shape over which the stage of ``root`` loops, and the axis that it reduces.

        The axis is 0 if there is none: axes are counted from the last.
        """
        assert root.tensor is not None
        if isinstance(root, Reduce):
            given = root.args[0].tensor
            assert given is not None
            return given.shape, root.axis
        shape = root.tensor.shape
        if not shape:
            return shape, 0
        elsewhere = (self.values.keys() | self.shared) - {id(root)}
        for node in walked(root, elsewhere):
            if isinstance(node, Reduce) and node.axis == -1 and node.keepdims:
                given = node.args[0].tensor
                assert given is not None
                if given.shape[:-1] == shape[:-1] and shape[-1] in (1, given.shape[-1]):
                    return given.shape, -1
        return shape, 0

    def _inline(self, node: Expression, shape: tuple[Size, ...], along: int) -> bool:
        """Return True if a stage over ``shape`` can compute an inner node in registers."""
        if id(node) in self.values or id(node) in self.shared:
            return False
        if isinstance(node, Reduce):
            given = node.args[0].tensor
            return (
                along == node.axis == -1 and node.keepdims and given is not None
                and given.shape == shape
            )  # fmt: skip
        return isinstance(node, Call | Cast)

    def _count(self, node: Count) -> None:
        """Add the stage of ``nn.arange``, which writes 0, 1, 2 and so on."""
        written, buffer = self._new(node)
        one = Full(0.0, (1, 1), node.type) + Extent(Dim("counter"))
        plan = plan_rows(Network((), (one,)), Schedule(), self.target)
        loop, place = Outer("outer0", expr_of(node.size)), symbol("outer0")
        step = Step(
            self._name(node), plan, written.name, buffer, {"out": written.name},
            {slot_of("counter"): place}, repr(node), (loop,),
            {"out": written.offset + place * written.strides[0]},
        )  # fmt: skip
        self.made.append(Computed(step))
        self.values[id(node)] = written

    def _take(self, node: Take) -> None:
        """Add the stage of ``nn.take``, which copies rows of a table."""
        table, rows = map(self.place, node.args)
        if not table.is_tight():
            table = self._copied(node.args[0])
        written, buffer = self._part(node), None
        if written is None:
            written, buffer = self._new(node)
        buffer = self.unfilled.pop(written.name, buffer)
        each = rows_of(rows, table, written)
        self._rows(node, node, {id(node): each.table}, each.value, each, buffer)
        self.values[id(node)] = written

    def _scatter(self, node: Scatter) -> None:
        """Add the stages of ``nn.scatter``: a copy, whose rows are then replaced or added to."""
        base, index, rows = node.args
        numbers, added = self.place(index), self.place(rows)
        added = self._unit(rows, added, added.shape)
        if self._is_changed(node):
            written = self.place(base)
        else:
            if known := not isinstance(base, Full):
                self.place(base)
            part = self._part(node)
            written, buffer = self._new(node) if part is None else (part, None)
            buffer = self.unfilled.pop(written.name, buffer)
            given = self.values[id(base)].name if known else None
            same = given if self.updates.get(written.name) == given else None
            self._elements(base, written, buffer, known=known, unless=same)
        self.values[id(node)] = written
        each = rows_of(numbers, written, added, self.stages.threads or 1)
        old, new = (Input(str(x.name), x.type, x.shape) for x in (each.table, each.value))
        made = cast(old + new, written.type) if node.fn == "scatter_add" else new
        leaves = {id(old): each.table, id(new): each.value}
        self._rows(node, made, leaves, each.table, each, None)

    def _is_changed(self, node: Scatter) -> bool:
        """Return True if the base of ``node`` is in an array of its own that nothing else reads."""
        base = node.args[0]
        alone = len(self.users[id(base)]) == 1 and id(base) not in self.ends
        # A part of a joined tensor, which other stages may read, can be in the tensor's array.
        return alone and not isinstance(base, View | Join | Input | Weight)

    def _rows(
        self,
        node: Take | Scatter,
        made: Expression,
        leaves: Mapping[int, Placed],
        target: Placed,
        each: Indexed,
        buffer: Buffer | None,
    ) -> None:
        """Add the stage that computes ``made`` and writes it to ``target``, a row, in loops."""
        stage = Elements(
            made, leaves, target, target.shape, self.taken, self.target, Schedule(),
            around=each.loops,
        ).stage()  # fmt: skip
        said = repr(rebuilt(node, lambda one: None if one is node else self._shown(one)))
        step = Step(
            self._name(node), stage.plan, target.name, buffer, stage.operands, stage.sizes, said,
            stage.loops, stage.shifts, each.parallel, each.found,
        )  # fmt: skip
        self.made.append(Computed(step, () if made is node else (node,)))

    def _join(self, node: Join) -> None:
        """Add the stages of ``nn.concat``: each writes one part of the joined tensor."""
        written = self._joined(node)
        for part, place in self._parts(node, written):
            assert part.tensor is not None
            unfilled = written.name in self.unfilled and part is node.args[-1]
            if self.values.get(id(part)) == place or (0 in part.tensor.shape and not unfilled):
                continue  # the buffer exists from the first stage that fills it
            placed = not isinstance(part, Call | Cast | Reduce | Full)
            if placed and self.place(part) == place:
                continue
            buffer = self.unfilled.pop(written.name, None)
            self._elements(part, place, buffer, known=placed or id(part) in self.values)
            self.values.setdefault(id(part), place)
        self.values[id(node)] = written

    def _joined(self, node: Join) -> Placed:
        """Return where a joined tensor is. The first stage that fills a part has the buffer."""
        if id(node) not in self.joined:
            found = self._part(node)
            if found is None:
                found, buffer = self._new(node)
                if buffer is not None:
                    self.unfilled[found.name] = buffer
            self.joined[id(node)] = found
        return self.joined[id(node)]

    def _parts(self, node: Join, written: Placed) -> Iterator[tuple[Expression, Placed]]:
        """Yield the parts of a joined tensor, and where each is."""
        first: Expr = ZERO
        for part in node.args:
            assert part.tensor is not None
            shape = part.tensor.shape
            offset = written.offset + first * written.strides[node.axis]
            yield part, replace(written, shape=shape, offset=offset)
            first += expr_of(shape[node.axis])

    def _part(self, node: Expression) -> Placed | None:
        """Return the part of a joined tensor that ``node`` is, if nothing else reads it."""
        users = self.users[id(node)]
        if len(users) != 1 or not isinstance(users[0], Join) or id(node) in self.ends:
            return None
        parts = self._parts(users[0], self._joined(users[0]))
        return next(place for part, place in parts if part is node)

    def _result(self, node: Expression, output: Name) -> None:
        """Add the stage that writes a result of the network, if no stage does so yet."""
        assert node.tensor is not None
        target = self._array(node, output)
        known = id(node) in self.values or isinstance(
            node, View | Product | Join | Take | Scatter | Count
        )
        if known:
            self.place(node)
        if output in self.written:
            return
        self._elements(node, target, None, known=known)
        self.values.setdefault(id(node), target)

    def _new(self, node: Expression) -> tuple[Placed, Buffer | None]:
        """Return where a stage writes ``node``: the array of a result, or a new buffer."""
        return self._output(node) or self._buffer(node, self._order(node))

    def _output(self, node: Expression, *, gaps: bool = True) -> tuple[Placed, None] | None:
        """Return the array of the result that ``node`` is, or becomes in another shape.

        Return None if there is no such result. It may have gaps between its rows only if ``gaps``.
        """
        assert node.tensor is not None
        for result, output in zip(self.results, self.outputs, strict=True):
            if self._becomes(node, result) and output not in self.written:
                found = self._array(node, output)
                if self.strides[output] is not None:
                    fits = gaps and result is node and matrix_order(found) is not None
                    if not fits:
                        continue  # a last stage copies the result into rows with gaps
                self.written.add(output)
                return found, None
        return None

    def _becomes(self, node: Expression, result: Expression) -> bool:
        """Return True if a result is ``node``, in another shape or with rows added to its rows."""
        while result is not node:
            if isinstance(result, Scatter) and self._is_changed(result):
                result = result.args[0]
            elif isinstance(result, View) and result.fn == "reshape":
                (result,) = result.args
            else:
                return False
        return True

    def _array(self, node: Expression, output: Name) -> Placed:
        """Return the array of a result, in the shape of ``node``."""
        assert node.tensor is not None
        type_, shape = node.tensor
        steps = self.strides[output]
        return Placed(output, type_, shape, exprs_of(steps) if steps else tight(exprs_of(shape)))

    def _order(self, node: Expression) -> tuple[int, ...] | None:
        """Return the order of axes in memory for which a later transposition has no gaps."""
        turned = (user for user in self.users[id(node)] if isinstance(user, View))
        found = (user.how for user in turned if user.fn == "transpose")
        # The last axis must stay the last.
        return next((how for how in found if how[-1] == len(how) - 1), None)

    def _buffer(
        self, node: Expression, order: tuple[int, ...] | None = None
    ) -> tuple[Placed, Buffer]:
        assert node.tensor is not None
        type_, shape = node.tensor
        sizes = exprs_of(shape)
        elements: Expr = ONE
        for size in sizes:
            elements *= size
        name = Name(f"value{next(self.numbers)}")
        return Placed(name, type_, shape, tight(sizes, order)), Buffer(name, type_, elements)
