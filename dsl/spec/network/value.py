"""Define ``Network``, the spec of a kernel that computes expressions of whole tensors."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite, prod
from typing import Any, ClassVar, Literal

from tilewright.errors import SpecError

from ..expression.leaves import Leaf, Operand
from ..expression.nodes import Composed, Expression, Number, every_node, text_of
from ..expression.products import Product, Weight
from ..expression.tensors import Count, Extent, Full, Input, Join, Reduce, Scatter, Take, View
from ..names import check_name
from ..pack import Pack, PackQuantized
from ..scalars import check_finite
from ..signature import ArrayParameter, Kind, Parameters, Role, Stored, parameters_of, symbol_of
from ..sizes import Dim, Size, Spec, call_text, check_dims, dims_of, sizes_word
from .doubles import check_real, real_of
from .folded import Folding
from .places import grid_of, is_row_program, reduces_columns
from .tensor import Tensor

#: A part of a printed network that is used twice gets a name if it has more characters.
SHARED = 4
#: Names that a tensor cannot have, because calls or printed networks use them.
TAKEN = ("out", "self", "nn", "dim", "Tensor", "network", "inf", "nan")
#: The largest number of operators of a network: planning them takes seconds.
MOST_OPERATORS = 4000

#: Nodes that no row program computes.
_OF_STAGES = Product | View | Join | Take | Scatter | Full | Count | Weight


@dataclass(frozen=True, slots=True, repr=False)
class Network(Spec):
    """A function of tensors as a value: ``@tw.network`` and ``of`` make it.

    Attributes
    ----------
    inputs : tuple of Input
        The tensors that a call passes, in order.
    results : tuple of Expression
        The computed tensors.
    several : bool
        True if a call returns a tuple.
    strides : tuple
        The strides of each result, None for one without gaps; () if no result has gaps.

    Examples
    --------
    >>> @tw.network
    ... def scaled(x, factor):
    ...     return x * factor
    >>> scaled.of(x=tw.Tensor("f32", (4, 8)), factor=tw.Tensor("f32", (8,)))
    network(lambda x, factor: x * factor).of(x=Tensor('f32', (4, 8)), factor=Tensor('f32', (8,)))
    """

    routine: ClassVar[str] = "tilewright.routines.network"

    inputs: tuple[Input, ...]
    results: tuple[Expression, ...]
    several: bool = False
    strides: tuple[tuple[Size, ...] | None, ...] = ()

    def __post_init__(self) -> None:
        for each in self.inputs:
            check_name(each.name, "a tensor")
            if each.name in TAKEN:
                raise SpecError(
                    f"a tensor cannot be called {each.name!r}", got=each.name, hint="another name"
                )
        _check_size(self.results)
        _check_nodes(self)
        _check_weights(self)
        check_real(self.results, lambda: self.staged)
        _check_numbers(self)
        check_dims(self._sizes())

    def __repr__(self) -> str:
        made: dict[str, tuple[object, object]] = {
            each.name: (Tensor(each.type, each.shape, each.strides), None) for each in self.inputs
        }
        spaces: dict[str, dict[str, Tensor]] = {}
        for each in self.weights:
            spaces.setdefault(each.space, {})[each.key] = Tensor(each.declared, each.shape)
        made |= {space: (weights, None) for space, weights in spaces.items()}
        names = list(made)
        body = text_of(self.results, several=self.several, taken=names, shared=SHARED)
        made |= {"out": (self.declared, None)} if self.strides else {}
        return f"network(lambda {', '.join(names)}: {body}){call_text('.of', [], made)}"

    def canonical(self, text: Callable[[Any], str]) -> str:
        """Return a text that only equal networks have, made of the ``text`` of each part."""
        parts = [f"{name}={text(getattr(self, name))}" for name in ("inputs", "results", "several")]
        parts += [f"strides={text(self.strides)}"] if self.strides else []
        return f"Network({','.join(parts)})"

    @property
    def declared(self) -> object:
        """The argument ``out`` of ``of``: a Tensor, or a Tensor or None for each result."""
        made = [
            None if steps is None or result.tensor is None else Tensor(*result.tensor, steps)
            for result, steps in zip(self.results, self.steps, strict=True)
        ]
        return tuple(made) if self.several else made[0]

    @property
    def steps(self) -> tuple[tuple[Size, ...] | None, ...]:
        """The strides of each result, None for one without gaps."""
        return self.strides or (None,) * len(self.results)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The weights, in the order in which the results use them."""
        return tuple(node for node in _distinct(self.results) if isinstance(node, Weight))

    @property
    def folded(self) -> Network:
        """The network that kernels compute: expressions of weights alone have become weights."""
        return _folded(self)[0]

    @property
    def constants(self) -> Mapping[Weight, Expression]:
        """The expressions that ``pack`` computes, by the weights of ``folded`` in their place."""
        return _folded(self)[1]

    @property
    def packed(self) -> tuple[Weight, ...]:
        """The weights that products use; ``pack`` brings them into the order that kernels read."""
        nodes = _distinct(self.folded.results)
        found = (node.weight for node in nodes if isinstance(node, Product))
        return tuple({weight: None for weight in found if weight is not None})

    @property
    def staged(self) -> bool:
        """True if the network has more than one loop over rows, or over columns.

        It then has products, views, joins, weights or more than two axes, reduces along both axes,
        its tensors do not broadcast to one shape, or an input has contiguous columns.
        """
        axes = set[tuple[int, int]]()
        for node in every_node(self.results):
            shape = () if node.tensor is None else node.tensor.shape
            turned = isinstance(node, Input) and node.strides is not None and node.strides[-1] != 1
            if turned or isinstance(node, _OF_STAGES) or len(shape) > 2:
                return True
            if isinstance(node, Reduce):
                axes.add((node.args[0].ndim, node.axis))
        return ((2, -2) in axes and len(axes) > 1) or not is_row_program(self.results)

    @property
    def apart(self) -> frozenset[str]:
        """The names of results that cannot be in the memory of an input.

        A stage may write a result while later stages read the input. Results with one
        element for each row, beside others, are written before the last pass reads the inputs.
        """
        nodes = list(every_node(self.results))
        if self.staged or (grid := grid_of(nodes)) is None:
            return frozenset(self.names) - set(dict(self.updates))
        if len(self.results) == 1:
            return frozenset()
        columns, pairs = reduces_columns(nodes), zip(self.names, self.results, strict=True)
        return frozenset(name for name, one in pairs if not grid.whole(one, columns=columns))

    @property
    def updates(self) -> tuple[tuple[str, str], ...]:
        """The names of results that may be in the memory of an input, and of that input.

        Such a result is the input with rows written by ``nn.scatter`` or ``nn.scatter_add``. No
        other stage reads the input.
        """
        nodes = [node for node in _distinct(self.results) if isinstance(node, Composed)]
        users = Counter([*self.results, *(arg for node in nodes for arg in node.args)])
        found = []
        for name, result, steps in zip(self.names, self.results, self.steps, strict=True):
            base = result
            while isinstance(base, Scatter) and users[base.args[0]] == 1:
                (base, *_) = base.args
            if base is not result and isinstance(base, Input) and base.strides is steps is None:
                found.append((name, base.name))
        return tuple(found)

    def products_of(self, weight: Weight) -> tuple[Product, ...]:
        """Return the products that use a packed weight."""
        nodes = _distinct(self.folded.results)
        return tuple(n for n in nodes if isinstance(n, Product) and n.weight == weight)

    def packing(self, weight: Weight, ldb: Dim | None = None) -> Pack | PackQuantized:
        """Return the spec that packs a weight (k, n); a low-bit weight has no ``ldb``."""
        k, n = weight.shape
        x = self.products_of(weight)[0].args[0].tensor
        assert x is not None
        if weight.quantized is not None:
            return PackQuantized(k, n, weight.quantized, a=x.type)
        return Pack(k, n, weight.type, a=x.type, ldb=ldb)

    def flops(self, sizes: Mapping[str, Any]) -> Any:
        """Return the operations of all products: 2 m n k each. ``sizes`` are those of the dims."""
        return sum(self.work(sizes).values())

    def work(self, sizes: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
        """Return the operations of products by the types of A and B; nothing without products."""

        def known(size: Size) -> Any:
            return size.at(sizes) if isinstance(size, Dim) else size

        found: dict[tuple[str, ...], Any] = {}
        for node in _distinct(self.folded.results):
            if isinstance(node, Product):
                x, w = (arg.tensor for arg in node.args)
                assert x is not None and w is not None
                low = node.weight is not None and node.weight.quantized is not None
                types: tuple[str, ...] = ("f32", "f32") if low else (x.type, w.type)
                done = 2 * known(x.shape[-1]) * prod(map(known, node.tensor.shape))
                found[types] = found.get(types, 0) + done
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the results in a call: ``out``, or ``out0``, ``out1`` and so on."""
        if not self.several:
            return ("out",)
        return tuple(f"out{number}" for number in range(len(self.results)))

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The results."""
        return self.results

    def words(self) -> list[str]:
        """Return the words with which the names of such kernels begin."""
        types = dict.fromkeys(each.type for each in self.inputs)
        longest = max((each.shape for each in self.inputs), key=len, default=())
        sizes = [(size.name if isinstance(size, Dim) else "", size) for size in longest]
        kind = "network" if self.staged else "rows"
        return [kind, *types, *([sizes_word(*sizes)] if sizes else [])]

    @property
    def filled(self) -> frozenset[Dim]:
        """The dims that a maximum or minimum is taken along: they cannot be 0."""
        reduced = (node for node in every_node(self.results) if isinstance(node, Reduce))
        sizes = [node.along for node in reduced if node.fn != "sum"]
        nodes = list(every_node(self.results))
        for node in nodes:
            if isinstance(node, Take | Scatter | View):
                given = node.args[0].tensor
                assert given is not None
                cut = node.how if isinstance(node, View) and node.fn == "slice" else ()
                pairs = zip(cut, given.shape, strict=False)
                sizes += [size for (_, count, _), size in pairs if count != size]
                sizes += () if isinstance(node, View) else given.shape[:1]
        return frozenset(dims_of(sizes))

    @property
    def real(self) -> Literal["f32", "f64"]:
        """The type of arithmetic."""
        return real_of(self.results)

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Return (C parameter, dim) for each size known only at the call, in parameter order."""
        return tuple((slot_of(name), dim) for name, dim in dict(self._sizes()).items())

    def check_told(self) -> None:
        """Raise SpecError if no input has one of the sizes that are known only at the call."""
        told = {
            size.name for each in self.inputs for size in (*each.shape, *(each.strides or ()))
            if isinstance(size, Dim)
        }  # fmt: skip
        for node in every_node(self.results):
            for size in dims_of(_own_sizes(node)):
                if size.name not in told:
                    raise SpecError("no tensor has this size", got=node)

    def _sizes(self) -> Iterator[tuple[str, Dim]]:
        for each in self.inputs:
            for size in (*each.shape, *(each.strides or ())):
                if isinstance(size, Dim):
                    yield size.name, size
        for steps in self.strides:
            yield from ((size.name, size) for size in dims_of(steps or ()))
        for node in every_node(self.results):
            for size in dims_of(_own_sizes(node)):
                yield size.name, size


def _own_sizes(node: Expression) -> tuple[Size, ...]:
    """Return the sizes that a node has from no argument."""
    if isinstance(node, Extent):
        return (node.dim,)
    if isinstance(node, View):
        return node.tensor.shape if node.fn == "expand" else ()
    return node.tensor.shape if isinstance(node, Full | Count) else ()


@lru_cache(maxsize=64)
def _folded(network: Network) -> tuple[Network, Mapping[Weight, Expression]]:
    """Return ``folded`` and ``constants`` of a network."""
    taken = {*network.names, *(name for name, _ in network._sizes())}
    taken |= {each.name for each in network.inputs}
    taken |= {name for each in network.weights for name in (each.space, each.name)}
    made = Folding(network.results, taken)
    if not made.constants:
        return network, {}
    return replace(network, results=made.results), made.constants


def slot_of(name: str) -> str:
    """Return the C parameter for the dim ``name`` of a network: no other name ends in "_"."""
    return f"{name}_"


def slot(size: Size) -> str:
    """Return the C parameter for ``size``, "" for a fixed one."""
    return slot_of(size.name) if isinstance(size, Dim) else ""


def _distinct(results: tuple[Expression, ...]) -> list[Expression]:
    """Return every node of the results once, arguments first; equal nodes once."""
    return list(dict.fromkeys(every_node(results)))


def _check_size(results: tuple[Expression, ...]) -> None:
    """Raise SpecError if there are too many operators."""
    found = sum(isinstance(node, Composed) for node in every_node(results))
    if found > MOST_OPERATORS:
        raise SpecError(
            f"a network has at most {MOST_OPERATORS} operators",
            got=found,
            hint="several networks, each called with the results of the one before",
        )


def _check_nodes(network: Network) -> None:
    """Raise SpecError if results use something besides the inputs, or leave one out."""
    known, used = set(network.inputs), set[Expression]()
    for node in every_node(network.results):
        if isinstance(node, Leaf | Operand):
            raise SpecError(
                "a network is of its tensors; this belongs to the epilogue of a product",
                got=node,
                expected=", ".join(each.name for each in network.inputs),
            )
        if isinstance(node, Input):
            used.add(node)
        long = [arg for arg in (node.args if isinstance(node, Composed) else ()) if _is_long(arg)]
        if (long and not isinstance(node, Take | Scatter)) or (
            _is_long(node) and node in network.results
        ):
            raise SpecError(
                "a tensor of s64 has numbers of rows, for nn.take and nn.scatter alone",
                got=node,
                hint="s32, or f64",
            )
        if isinstance(node, Input) and node not in known:
            raise SpecError("a network uses a tensor of another one", got=node)
    for each in network.inputs:
        if each not in used:
            raise SpecError(
                f"no result depends on the tensor {each.name!r}",
                got=network.results,
                hint=f"a function without the argument {each.name}",
            )


def _check_numbers(network: Network) -> None:
    """Raise SpecError if the type of an operator has no finite number for one of its numbers."""
    for node in every_node(network.results):
        real = "f64" if node.tensor is not None and node.tensor.type == "f64" else "f32"
        args = node.args if isinstance(node, Composed) else (node,)
        for value in (arg.value for arg in args if isinstance(arg, Number | Full)):
            if isfinite(value):
                check_finite(value, value, "a number of a network", real)


def _is_long(node: Expression) -> bool:
    return node.tensor is not None and node.tensor.type == "s64"


def _check_weights(network: Network) -> None:
    """Raise SpecError if a weight is packed and read as it is, or if two arrays have one name."""
    if network.folded is not network:
        return  # the folded network is checked when it is made
    packed = set(network.packed)
    for node in _distinct(network.results):
        args = node.args if isinstance(node, Composed) else ()
        if not isinstance(node, Product) and (both := packed.intersection(args)):
            raise SpecError(
                "a weight of a product is used in no other way",
                got=node,
                expected=f"{next(iter(both))!r} in products alone",
                hint="the array a second time, under another name",
            )
    for weight in packed.intersection(network.results):
        raise SpecError(
            "a weight of a product is packed: it is no result",
            got=weight,
            hint="the array a second time, under another name",
        )
    for weight in packed:
        kinds = {(n.args[0].tensor or n.tensor).type for n in network.products_of(weight)}
        if len(kinds) > 1:
            raise SpecError(
                "a weight is packed for one type of x",
                got=f"{weight!r} is multiplied by {' and by '.join(sorted(kinds))}",
                hint="the array a second time, under another name",
            )
    for weight in set(network.weights) - packed:
        if weight.quantized is not None:
            raise SpecError("a low-bit weight is used in products alone", got=weight)
    spaces = dict.fromkeys(each.space for each in network.weights)
    names = [*(each.name for each in network.inputs), *spaces]
    names += [each.name for each in network.weights]
    names += dict(network._sizes())
    for name in names:
        if names.count(name) > 1 or name in network.names:
            raise SpecError(
                "two arrays or sizes of a network have one name", got=name, hint="another name"
            )


@parameters_of(Network)
def _parameters(spec: Network, formats: Mapping[str, Stored]) -> Parameters:
    """Return the parameters of a network: its tensors in order, then its results."""
    inputs = [_tensor(each.name, each.type, each.shape, each.strides, "in") for each in spec.inputs]
    packed = spec.packed
    weights = spec.folded.weights
    inputs += [_weight(one, formats.get(one.name), one in packed) for one in weights]
    results = []
    for name, result, steps in zip(spec.names, spec.results, spec.steps, strict=True):
        assert result.tensor is not None
        results.append(_tensor(name, result.tensor.type, result.tensor.shape, steps, "out"))
    places = tuple(each.name for each in (*inputs, *results[:1]))
    return Parameters((*inputs, *results), True, (), places, spec.filled, spec.apart,
                      spec.updates)  # fmt: skip


def _weight(one: Weight, form: Stored | None, packed: bool) -> ArrayParameter:
    """Return the parameter for a weight: a packed matrix if products use it."""
    if not packed:
        return _tensor(one.name, one.type, one.shape, None, "in")
    # Equal texts must be one object: the dispatcher compares the addresses of these strings.
    text, stored = ("", "") if form is None else (sys.intern(form.text), form.stored)
    return ArrayParameter(
        one.name, one.type, "packed", "in", one.shape, "C", None, tuple(map(str, one.shape)), "",
        packed=True, format=text, stored=stored, chosen=True, quantized=one.quantized,
    )  # fmt: skip


def _tensor(
    name: str, type_: str, shape: tuple[Size, ...], strides: tuple[Size, ...] | None, role: Role
) -> ArrayParameter:
    """Return the parameter for a tensor of a network: a matrix, or a vector of one axis or none."""
    chosen = role == "in" or name not in ("out", "out0")
    slots = tuple(symbol_of(s.name) if isinstance(s, Dim) else str(s) for s in shape)
    if len(shape) != 2:
        kind: Kind = "vector" if len(shape) < 2 else "tensor"
        return ArrayParameter(
            name, type_, kind, role, shape or (1,), "C", None, slots, "", chosen=chosen
        )
    order: Literal["C", "F"] = "C"
    leading = None if strides is None else strides[0]
    if strides is not None and strides[0] == 1 != strides[1]:
        order, leading = "F", strides[1]
    return ArrayParameter(
        name, type_, "matrix", role, shape, order, leading, slots, f"{name}.strides", chosen=chosen
    )
