"""The class ``NetworkKernel``: a compiled network with products, whose weights are packed once."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import ArgumentTypeError
from tilewright.runtime.call.frame import Frame
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.call.packed_weights import (
    Layout,
    PackedWeights,
    frozen,
    layout_of,
    weights_by_name,
)
from tilewright.spec.network.value import Network
from tilewright.spec.pack import Pack

from .kernel import Kernel
from .several import SeveralResults


class NetworkKernel(SeveralResults):
    """A compiled network with products: ``net(x, packed)``, where ``packed = net.pack(weights)``.

    The tensors are passed by position or by name, the packed weights after those that are passed by
    position. Everything else is as for other kernels.
    """

    __slots__ = ("_layout", "_network", "_tensors", "_weights")
    _network: Network
    _layout: Layout
    #: The number of tensors that a call passes, and the names of the weights in C.
    _tensors: int
    _weights: tuple[str, ...]

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        spec = self.spec
        assert isinstance(spec, Network)
        self._network, self._tensors = spec, len(spec.inputs)
        formats = {parameter.name: parameter.format for parameter in self.signature.arrays}
        self._layout = layout_of(spec, formats)
        self._weights = tuple(weight.name for weight in spec.folded.weights)

    @property
    def flops(self) -> Any:
        """Floating-point operations of all products of a call: an int, or a formula of the dims."""
        dims = dict(self._network.runtime_sizes()).values()
        if not dims:
            return self._network.flops({})
        from tilewright.symbolic import size_expr

        return self._network.flops({each.name: size_expr(each.name, each) for each in dims})

    def pack(self, weights: Any) -> PackedWeights:
        """Return the weights of a network in the order that its kernel reads.

        Expressions of weights alone, for example ``w.up.T`` or ``w.scale * 0.125``, are computed
        here, in float64, and rounded to their type. Calls read the results.

        Parameters
        ----------
        weights : dict
            An array for each weight, by name: of numpy, a CPU tensor of PyTorch, or a
            ``tw.QuantizedMatrix`` for a low-bit weight. If the function has several arguments with
            weights, a dict of such dicts.

        Returns
        -------
        PackedWeights
            Copies, to be passed to calls of kernels of this network and target.

        Raises
        ------
        ArgumentError
            A weight is missing, unknown, has another type or shape, or holds NaN.

        Examples
        --------
        >>> weights = {"up": np.ones((2, 2), np.float32)}
        >>> double = tw.network(lambda x, w: x @ w.up)
        >>> net = tw.compile(double.of(x=tw.Tensor("f32", (tw.dim("rows"), 2)), w=weights))
        >>> net(np.float32([[1, 2]]), net.pack(weights))
        array([[3., 3.]], dtype=float32)
        """
        found = weights_by_name(self._network.weights, weights)
        if self._network.constants:
            from tilewright.runtime.reference.network import folded_arrays

            found = folded_arrays(self._network, found)
        packed = self._network.packed
        arrays = (
            self.packed(weight.name, array) if weight in packed else frozen(array)
            for weight, array in found.items()
        )
        return PackedWeights(self._layout, tuple(arrays))

    def packed(self, name: str, matrix: Any) -> PackedMatrix:
        """Return the weight ``name``, for example ``w_up``, packed for this kernel.

        ``pack`` does so for all weights.
        """
        weight = next(each for each in self._network.packed if each.name == name)
        spec = self._network.packing(weight)
        if isinstance(spec, Pack):
            matrix = np.ascontiguousarray(matrix)
        return self._packer(spec)(matrix)  # type: ignore[no-any-return]

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Run the network and return its result, or a tuple of results.

        Parameters
        ----------
        *arrays : array_like
            The tensors in the order of the function's arguments, then the packed weights.
        out : array_like or tuple, optional
            Where the result goes. By default new arrays are made.
        **named
            Tensors by name, and the packed weights as ``packed``.

        Raises
        ------
        ArgumentError
            An argument does not fit. Nothing was written.
        """
        if not named and len(arrays) == self._tensors + 1:
            packed = arrays[-1]
            if type(packed) is PackedWeights and packed.layout is self._layout:
                given = arrays[:-1] + packed.arrays
                made = out
                if out is None and self._new is not None and type(arrays[0]) is np.ndarray:
                    made = self._new(given)
                if made is not None and self._fast_out[0]((*given, made)) == 0:
                    return made
        arrays, named = self._expanded(arrays, named)
        if self._network.several:
            return super().__call__(*arrays, out=out, **named)
        return Kernel.__call__(self, *arrays, out=out, **named)

    def frame(self, *arrays: Any, **named: Any) -> Frame:
        """Return the checked arguments of one call."""
        arrays, named = self._expanded(arrays, named)
        return super().frame(*arrays, **named)

    def _expanded(
        self, arrays: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with an array for each weight in place of the packed weights."""
        if type(named.get("packed")) is PackedWeights:
            arrays, named = (*arrays, named["packed"]), {**named}
            del named["packed"]
        if not arrays or type(arrays[-1]) is not PackedWeights:
            if self._weights[0] in named:
                return arrays, named  # all weights by name, as ``verify`` passes them
            raise ArgumentTypeError(
                f"{self.name} needs its packed weights",
                got=", ".join(type(array).__name__ for array in arrays) or "no arguments",
                expected=f"({', '.join(each.name for each in self._network.inputs)}, packed)",
                hint="packed = net.pack(weights)",
            )
        *given, packed = arrays
        if packed.layout is not self._layout and packed.layout != self._layout:
            raise ArgumentTypeError(
                "the weights were packed for another network or target",
                got=packed,
                expected=", ".join(name for name, _, _ in self._layout),
                hint="net.pack(weights) of this kernel",
            )
        if len(given) > self._tensors:
            raise ArgumentTypeError(
                f"{self.name} takes fewer tensors before its packed weights",
                got=len(given),
                expected=f"({', '.join(each.name for each in self._network.inputs)}, packed)",
            )
        packed.adopt(self._layout)
        if len(given) == self._tensors:
            return (*given, *packed.arrays), named
        both = zip(self._weights, packed.arrays, strict=True)
        return tuple(given), {**named, **dict(both)}
