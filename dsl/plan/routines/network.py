"""The plan of a network with products: stages in order, and the buffers between them.

Each product is one stage. Functions of elements that follow it are its epilogue as far as they read
nothing that is computed later. All else is a stage of its own, a row program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sympy import Expr

from tilewright.errors import PlanError, ScheduleError
from tilewright.ir.nest import Name
from tilewright.ir.stages import Buffer
from tilewright.isa.target import Target
from tilewright.spec.expression.leaves import Operand, Per, acc
from tilewright.spec.expression.nodes import Call, Composed, Expression, Number, nodes_of, rows
from tilewright.spec.expression.nodes import walk as walked
from tilewright.spec.expression.products import Product, Weight
from tilewright.spec.expression.shapes import Shaped
from tilewright.spec.expression.tensors import Cast, Input
from tilewright.spec.gemm import Gemm
from tilewright.spec.network.value import Network, slot, slot_of
from tilewright.spec.operands import Packed
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import signature, symbol_of
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import is_integer
from tilewright.symbolic import ONE, size_expr

from ..loops import Decided, Decision
from ..plan import Plan
from ..planner import make_plan
from ..rows.plan import RowsPlan, plan_rows

#: The schedule of each product. Every element of C is summed in one chain, in the order of K. The
#: bits of a row then depend only on that row and the weights, not on the number of rows.
_PRODUCT = Schedule(vectorize="n", k_split=1, stores="cached")


@dataclass(frozen=True, slots=True)
class Step:
    """One stage: its plan, the array that it writes, and the names of its operands and sizes.

    ``operands`` and ``sizes`` map names of the stage to those of the network. ``buffer`` is the
    array if it is an intermediate tensor. ``said`` is what the stage computes.
    """

    plan: Plan | RowsPlan
    written: Name
    buffer: Buffer | None
    operands: Mapping[str, Name]
    sizes: Mapping[str, Expr]
    said: str


@dataclass(frozen=True, slots=True, repr=False)
class NetworkPlan(Decided):
    """Every choice for a network with products."""

    spec: Network
    schedule: Schedule
    target: Target
    decisions: tuple[Decision, ...]
    steps: tuple[Step, ...] = field(hash=False)

    @property
    def products(self) -> Iterator[Step]:
        """The stages that are products."""
        return (step for step in self.steps if isinstance(step.plan, Plan))


def plan_network(spec: Network, schedule: Schedule, target: Target) -> NetworkPlan:
    """Return the plan of a network with products."""
    if schedule != Schedule(threads=schedule.threads):
        raise ScheduleError(
            "a network with products has no schedule to choose but its threads",
            got=schedule,
            expected="tw.Schedule(threads=2), or none",
        )
    steps = _Cutter(spec, target, schedule.threads).steps()
    return NetworkPlan(spec, schedule, target, (), steps)


class _Cutter:
    """Cuts a network into stages. ``values`` are the arrays that hold nodes, by their ``id``."""

    def __init__(self, spec: Network, target: Target, threads: int | None) -> None:
        self.spec, self.target = spec, target
        self.by_product = replace(_PRODUCT, threads=threads)
        self.by_rows = Schedule(threads=threads)
        self.nodes = nodes_of(rows(*spec.results))
        self.by_id = {id(node): node for node in self.nodes}
        by_value = {node: node for node in self.nodes}
        self.results = [by_value[result] for result in spec.results]
        parameters = signature(spec)
        self.outputs = [Name(parameters.array(name).symbol) for name in spec.names]
        self.values: dict[int, Name] = {
            id(node): Name(symbol_of(node.name)) for node in self.nodes if isinstance(node, Input)
        }
        self.users: dict[int, set[int]] = {id(node): set() for node in self.nodes}
        for node in self.nodes:
            for arg in node.args if isinstance(node, Composed) else ():
                self.users[id(arg)].add(id(node))
        self.made: list[Step] = []
        self.plans: dict[Gemm | Network, Plan | RowsPlan] = {}
        self.written: set[Name] = set()

    def steps(self) -> tuple[Step, ...]:
        """Return the stages in order."""
        for node in self.nodes:
            if isinstance(node, Product):
                if id(node.args[0]) not in self.values:
                    self._rows(node.args[0])
                self._product(node)
            elif self._leaves_rows(node):
                self._rows(node)
        for result, output in zip(self.results, self.outputs, strict=True):
            if output not in self.written:
                self._rows(result, output)
        return tuple(self.made)

    def _leaves_rows(self, node: Expression) -> bool:
        """Return True for a value of each row that is used with rows of another length.

        A row program has one length, so the value gets an array.
        """
        if not isinstance(node, Composed) or self._width(node) != 1:
            return False
        users = {self._width(self.by_id[at]) for at in self.users[id(node)]} - {1}
        inside = {self._width(each) for each in walked(node, self.values)} - {1, None}
        return bool(users and inside) and users != inside

    def _width(self, node: Expression) -> Size | None:
        """Return the columns of a tensor with two axes; None for other values."""
        shape = () if node.tensor is None else node.tensor.shape
        return shape[1] if len(shape) == 2 else None

    # --- products ------------------------------------------------------------------------------

    def _product(self, product: Product) -> None:
        x, weight = product.args[0], product.weight
        end = self._end(product)
        named: dict[str, Name] = {}

        def leaf(node: Expression) -> Expression | None:
            return sums if node is product else self._operand(node, product.tensor, named)

        # The last rounding is that of the product's output.
        last = end.args[0] if isinstance(end, Cast) else end
        sums: Expression = acc
        if end is not product and (product.type != product.sums or is_integer(product.type)):
            sums = Cast("f32" if is_integer(product.type) else product.type, (acc,))
        found = sums if last is product else _rebuilt(last, leaf)
        epilogue = None if found is acc or end is product else found
        assert x.tensor is not None
        if isinstance(x, Input) and x.strides is not None and x.strides[1] != 1:
            raise PlanError(
                f"{x.name} is read along its columns, whose elements do not follow each other",
                got=f"strides {x.strides}",
                expected="strides (rows, 1)",
            )
        assert end.tensor is not None
        finished = epilogue is not None or end.tensor.type != product.sums
        spec = Gemm(
            m=x.tensor.shape[0], n=weight.shape[1], k=weight.shape[0], a=x.tensor.type,
            b=Packed(weight.declared), d=end.tensor.type if finished else None,
            a_zero=product.a_zero or None, b_zero=product.b_zero or None, epilogue=epilogue,
            lda=x.strides[0] if isinstance(x, Input) and x.strides else None,
        )  # fmt: skip
        said = repr(_rebuilt(end, self._shown))
        written, buffer = self._place(end)
        a, b = self.values[id(x)], Name(symbol_of(weight.name))
        operands = {"a": a, "b": b, spec.output: written, **named}
        sizes = {name: size_expr(slot_of(dim.name), dim) for name, dim in spec.runtime_sizes()}
        if spec not in self.plans:
            self.plans[spec] = make_plan(spec, self.by_product, self.target)
        self.made.append(Step(self.plans[spec], written, buffer, operands, sizes, said))

    def _shown(self, node: Expression) -> Expression | None:
        """Return a buffer as a tensor of its name, for texts."""
        if isinstance(node, Input) or id(node) not in self.values:
            return None
        assert node.tensor is not None
        return Input(str(self.values[id(node)]), *node.tensor)

    def _end(self, product: Product) -> Expression:
        """Return the last node that the epilogue of a product can compute.

        It is the product itself if the epilogue can compute none.
        """
        results = {id(result) for result in self.results}
        found: Expression = product
        reached = {id(product)}
        for node in self.nodes[self.nodes.index(product) + 1 :]:
            args = node.args if isinstance(node, Call | Cast) else ()
            if not reached.intersection(map(id, args)):
                continue
            reached.add(id(node))
            if node.tensor is None or node.tensor.shape != product.tensor.shape:
                continue
            inside = list(walked(node, {*self.values, id(product)}))
            whole = {id(each) for each in inside}
            private = all(
                self.users[each] <= whole and each not in results
                for each in (reached & whole | {id(product)}) - {id(node)}
            )
            if private and all(self._is_of_epilogue(each, product) for each in inside):
                found = node
        return found

    def _is_of_epilogue(self, node: Expression, product: Product) -> bool:
        """Return True if an epilogue can compute a node, given the arguments."""
        args = node.args if isinstance(node, Call | Cast) else (node,)
        held = [arg for arg in args if id(arg) in self.values and arg is not product]
        leaves = [*held, *([node] if isinstance(node, Weight) else [])]
        known = isinstance(node, Call | Cast | Number | Weight)
        return known and all(_per(leaf, product.tensor) is not _NOT for leaf in leaves)

    def _operand(
        self, node: Expression, tensor: Shaped, named: dict[str, Name]
    ) -> Expression | None:
        """Return the array of a node as an operand of an epilogue; None if it has no array."""
        if not isinstance(node, Weight) and id(node) not in self.values:
            return None
        assert node.tensor is not None
        place = self.values.get(id(node))
        if isinstance(node, Weight):
            place = Name(symbol_of(node.name))
        assert place is not None
        name = _numbered(named, place)
        per = _per(node, tensor)
        assert not isinstance(per, _Not)
        return Operand(name, node.tensor.type, per)

    # --- row programs --------------------------------------------------------------------------

    def _rows(self, node: Expression, output: Name | None = None) -> None:
        """Add the stage of a row program that computes ``node``."""
        inputs: dict[str, Input] = {}
        named: dict[str, Name] = {}

        def leaf(each: Expression) -> Expression | None:
            if not isinstance(each, Weight | Input) and id(each) not in self.values:
                return None
            assert each.tensor is not None
            place = self.values.get(id(each))
            if isinstance(each, Weight):
                place = Name(symbol_of(each.name))
            assert place is not None
            name = _numbered(named, place)
            strides = each.strides if isinstance(each, Input) else None
            return inputs.setdefault(name, Input(name, *each.tensor, strides))

        held = output is not None and id(node) in self.values
        said = repr(node if held and isinstance(node, Input) else _rebuilt(node, self._shown))
        made = leaf(node) if held else _rebuilt(node, leaf)
        assert made is not None
        written, buffer = (output, None) if output is not None else self._place(node)
        self.written.add(written)
        spec = Network(tuple(inputs.values()), (made,))
        if spec not in self.plans:
            self.plans[spec] = plan_rows(spec, self.by_rows, self.target)
        plan = self.plans[spec]
        self.made.append(Step(plan, written, buffer, {**named, "out": written}, {}, said))

    def _place(self, node: Expression) -> tuple[Name, Buffer | None]:
        """Return the array for a node: a result's, or a new buffer."""
        for result, output in zip(self.results, self.outputs, strict=True):
            if result is node and output not in self.written:
                self.written.add(output)
                self.values[id(node)] = output
                return output, None
        assert node.tensor is not None
        name = self.values[id(node)] = Name(f"value{len(self.made)}")
        elements: Expr = ONE
        for size in node.tensor.shape:
            elements *= size_expr(slot(size) if isinstance(size, Dim) else "", size)
        return name, Buffer(name, node.tensor.type, elements)


class _Not:
    """The result of ``_per`` for a leaf that cannot become an operand."""


_NOT = _Not()


def _numbered(named: dict[str, Name], place: Name) -> str:
    """Return the name within a stage for the array ``place``, which is added to ``named``.

    Arrays are numbered, so that equal stages on different arrays have equal specs.
    """
    for number, known in enumerate(named.values()):
        if known == place:
            return f"in{number}"
    named[symbol_of(name := f"in{len(named)}")] = place
    return name


def _per(node: Expression, tensor: Shaped) -> Per | _Not | None:
    """Return ``per`` of the operand that a leaf becomes; ``_NOT`` if no operand can be it.

    Full operands have rows without gaps.
    """
    assert node.tensor is not None
    shape = node.tensor.shape
    if isinstance(node, Input) and node.strides is not None:
        return _NOT
    if shape in ((), (1,)):
        return None
    if shape in (tensor.shape[1:], (1, *tensor.shape[1:])):
        return "column"
    if shape == (tensor.shape[0], 1):
        return "row"
    return "full" if shape == tensor.shape else _NOT


def _rebuilt(node: Expression, leaf: Callable[[Expression], Expression | None]) -> Expression:
    """Return ``node`` with some of its nodes replaced.

    A node is replaced by the result of ``leaf`` for it, unless this is None.
    """
    made: dict[int, Expression] = {}
    stack = [node]
    while stack:
        each = stack[-1]
        if id(each) in made:
            stack.pop()
            continue
        found = None if each is node else leaf(each)
        args = each.args if found is None and isinstance(each, Composed) else ()
        if missing := [arg for arg in args if id(arg) not in made]:
            stack += missing
            continue
        if found is None:
            found = each
            if isinstance(each, Composed):
                found = each.of(each.shell, tuple(made[id(arg)] for arg in args))
        made[id(each)] = found
        stack.pop()
    return made[id(node)]
