"""``network_of``: a PyTorch module as a network of tilewright, by ``torch.export``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tilewright.errors import ArgumentTypeError, SpecError, TilewrightError
from tilewright.keywords import spelled
from tilewright.runtime.imported import Constants, Model, Names
from tilewright.spec.expression.nodes import Expression, every_node
from tilewright.spec.expression.tensors import Input
from tilewright.spec.network.tensor import Tensor
from tilewright.spec.network.value import Network
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import TypeName

from .aten import called, computed
from .elements import Known, Truth, Use, tensors_of
from .packed import INPUT_TYPES

#: Types of the numbers of rows, for embeddings.
INDEX_TYPES: dict[Any, TypeName] = {torch.int64: "s64", torch.int32: "s32"}


@spelled(ArgumentTypeError)
def network_of(
    module: torch.nn.Module, example: Any, shapes: Sequence[Sequence[Size]] | None = None
) -> Model:
    """Return the network that a module computes, and the arrays of its weights.

    The module is exported by ``torch.export``, and its layers are read before PyTorch decomposes
    them. The network has the types of the module, and rounds where PyTorch rounds. Weights are
    copies: later changes of the module do not change them.

    Parameters
    ----------
    module : torch.nn.Module
        The module, in evaluation mode if it has dropout or batch norm.
    example : torch.Tensor or tuple of torch.Tensor
        The arguments of a call.
    shapes : sequence of shapes, optional
        For each tensor of ``example`` its shape, with a ``tw.dim`` for each size that a call may
        choose. The example has at least 2 elements along these axes. By default all sizes are
        those of the example.

    Returns
    -------
    Model
        ``(network, weights)``: the spec, and the arrays for ``pack``.

    Raises
    ------
    SpecError
        The module does something that no network can do. The message names the operator.

    Examples
    --------
    >>> import torch, tilewright.torch
    >>> layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> network, weights = tilewright.torch.network_of(
    ...     layer, torch.ones(4, 3), shapes=[(tw.dim("rows"), 3)]
    ... )
    >>> network
    network(lambda input, w: relu(input @ w.n0_weight + w.n0_bias)).of(input=Tensor('f32',
        (dim('rows'), 3)), w={'n0_weight': Tensor('f32', (3, 2)), 'n0_bias': Tensor('f32', (2,))})
    >>> net, x = tw.compile(network), torch.ones(5, 3)
    >>> torch.allclose(net(x, net.pack(weights)), layer(x))
    True
    """
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError(
            "a network is made of a module", got=type(module).__name__, expected="torch.nn.Module"
        )
    given = tuple(example) if isinstance(example, tuple | list) else (example,)
    for each in given:
        if not isinstance(each, torch.Tensor):
            raise ArgumentTypeError(
                "an example is a tensor, or a tuple of tensors", got=type(each).__name__
            )
    wanted = [tuple(each.shape) for each in given] if shapes is None else _shapes(shapes, given)
    apart = tuple(each.detach().clone() for each in given)  # one tensor twice would be one input
    exported = _exported(module, apart, wanted)
    return _Import(exported, wanted).model()


def _shapes(
    shapes: Sequence[Sequence[Size]], given: Sequence[torch.Tensor]
) -> list[tuple[Size, ...]]:
    found = [tuple(shape) for shape in shapes]
    fits = len(found) == len(given) and all(
        len(shape) == each.dim()
        and all(
            isinstance(size, Dim) or size == own
            for size, own in zip(shape, each.shape, strict=True)
        )
        for shape, each in zip(found, given, strict=False)
    )
    if not fits:
        raise SpecError(
            "the shapes are not those of the example",
            got=found,
            expected=[tuple(each.shape) for each in given],
            hint="a tw.dim in place of a size that a call may choose",
        )
    return found


def _exported(
    module: torch.nn.Module, given: tuple[torch.Tensor, ...], shapes: list[tuple[Size, ...]]
) -> Any:
    made: dict[str, Any] = {}
    free = tuple(
        {
            axis: made.setdefault(size.name, torch.export.Dim(size.name, min=2))
            for axis, size in enumerate(shape)
            if isinstance(size, Dim)
        }
        for shape in shapes
    )
    try:
        kinds = [each.kind for each in inspect.signature(module.forward).parameters.values()]
        several: tuple[Any, ...] = free
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            fixed = kinds.index(inspect.Parameter.VAR_POSITIONAL)
            several = (*free[:fixed], free[fixed:])
        with torch.no_grad():
            found = torch.export.export(module, given, dynamic_shapes=several if made else None)
            if any(map(_writes, found.graph.nodes)):  # into views too: values in place of writes
                found = found.run_decompositions({})
            return found
    except TilewrightError:
        raise
    except Exception as error:  # torch.export raises errors of many classes
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise SpecError(
            "torch.export cannot export the module",
            got=lines[0],
            expected="a module without branches on data, and sizes that fit each other",
            hint="an example of at least 2 elements along each tw.dim, or shapes=None, which fixes "
            "all sizes"
            if made
            else "torch.export.export(module, example) shows the whole error",
        ) from error


def _writes(node: torch.fx.Node) -> bool:
    """Return True if a node writes into a tensor that it is given."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


class _Import:
    """The import of one exported program."""

    def __init__(self, exported: Any, shapes: list[tuple[Size, ...]]) -> None:
        self.exported, self.shapes = exported, list(shapes)
        self.constants, self.names = Constants(), Names(("w",))
        self.values: dict[str, Any] = {}
        self.inputs: list[Input] = []

    def model(self) -> Model:
        """Return the network and its weights."""
        signature = self.exported.graph_signature
        if signature.buffers_to_mutate:
            raise SpecError(
                "networks are not trained: the module changes its buffers",
                got=", ".join(signature.buffers_to_mutate.values()),
                expected="a module in evaluation mode",
                hint="module.eval()",
            )
        if signature.user_inputs_to_mutate:
            raise SpecError(
                "the module writes into an input",
                got=", ".join(signature.user_inputs_to_mutate.values()),
                expected="a module that returns what it computes",
                hint="x = x.clone() before it",
            )
        held = self._held(signature)
        for node in self.exported.graph.nodes:
            match node.op:
                case "placeholder":
                    self.values[node.name] = held.get(node.name) or self._input(node)
                case "call_function":
                    self.values[node.name] = self._called(node)
                case "output":
                    results = self._read(node.args[0])
        several = len(results) > 1 or not str(self.exported.call_spec.out_spec).startswith("*")
        for each in results:
            if isinstance(each, Truth):
                raise SpecError("a result is a tensor of booleans", got=each.value, hint=".float()")
            if not isinstance(each, Expression):
                raise SpecError("a result is not computed of the inputs", got=type(each).__name__)
        used = set(every_node(results))
        network = Network(
            tuple(each for each in self.inputs if each in used), tuple(results), several=several
        )
        return self.constants.model(network)

    def _held(self, signature: Any) -> dict[str, Known]:
        """Return the parameters and buffers by the names of their placeholders."""
        places: Mapping[str, str] = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        tensors = {**self.exported.constants, **self.exported.state_dict}
        return {
            name: self._known(place, tensors[place], signature) for name, place in places.items()
        }

    def _known(self, place: str, tensor: torch.Tensor, signature: Any) -> Known:
        """Return a parameter, a buffer or a constant. Floating-point buffers stay weights."""
        constant = place in signature.inputs_to_lifted_tensor_constants.values()
        fixed = constant or not tensor.is_floating_point()
        return Known(tensor.detach(), place, fixed)

    def _input(self, node: Any) -> Input:
        tensor = node.meta["val"]
        types = {**INPUT_TYPES, **INDEX_TYPES}
        if tensor.dtype not in types:
            raise SpecError(
                f"the input {node.name} has a type that networks do not compute with",
                got=tensor.dtype,
                expected=", ".join(map(str, types)),
                hint="module.float()" if tensor.dtype == torch.float64 else None,
            )
        type_ = types[tensor.dtype]
        declared = Tensor(type_, self.shapes[len(self.inputs)])
        found = Input(self.names.give(node.name), type_, declared.shape)
        self.inputs.append(found)
        return found

    def _called(self, node: Any) -> Any:
        given = self._read(node.args), self._read(dict(node.kwargs))
        if (found := computed(node.target, node.name, *given)) is not None:
            return found
        place = f"{node.name!r} ({node.target})"
        types = [each.dtype for each in tensors_of(node.meta.get("val"))]
        return called(str(node.target), Use(place, _source(node), self.constants), *given, types)

    def _read(self, given: Any) -> Any:
        """Return arguments, with values in place of the nodes that compute them."""
        if isinstance(given, torch.fx.Node):
            return self.values[given.name]
        if isinstance(given, list | tuple):
            return [self._read(each) for each in given]
        if isinstance(given, dict):
            return {key: self._read(each) for key, each in given.items()}
        return given


def _source(node: Any) -> str:
    """Return the line of the module's code that a node comes from, "" if unknown."""
    lines = str(node.meta.get("stack_trace") or "").strip().splitlines()
    return lines[-1].strip() if lines else ""
