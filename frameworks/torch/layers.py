"""Layers: ``Linear`` with an activation in its kernel, and layers with weights of 8 and fewer
bits.
"""

from __future__ import annotations

from typing import Any, NoReturn, get_args

import torch
from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.runtime.quantized.quantize import Method, quantize
from tilewright.spec.quantized import Quantized

from . import blocks, products, quantized
from .frozen import Freezable
from .packed import (
    INPUT_TYPES,
    Inputs,
    LayerKind,
    format_here,
    format_text,
    layer_spec,
    packed_weight,
    run_layer,
)
from .products import ACTIVATIONS, LAYER_TYPES, is_plain


def _activation(name: str | None) -> str:
    """Return the name of an activation, for example "relu", or "" for None; raise
    ArgumentValueError if it is unknown.
    """
    if name not in (None, *ACTIVATIONS):
        raise ArgumentValueError(
            "a layer has no such activation",
            got=name,
            expected=f"None, {', '.join(filter(None, ACTIVATIONS))}",
            hint="an activation of your own behind a layer without one",
        )
    return name or ""


class Linear(Freezable, torch.nn.Linear):
    """A layer that computes ``activation(x @ weight.T + bias)`` in one kernel.

    The layer is a differentiable ``torch.nn.Linear`` of float32 or bfloat16 on the CPU. Each call
    reads the weight. ``freeze`` packs the weight for inference; see ``Freezable``.

    Parameters
    ----------
    in_features, out_features : int
        Number of elements in a row of the inputs, and in a row of the results.
    bias : bool
        True if the layer has a bias.
    activation : str, optional
        "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh" or "hardswish".

    Raises
    ------
    ArgumentError
        The activation is unknown.

    Examples
    --------
    >>> import torch, tilewright.torch as tt
    >>> layer = tt.Linear(4, 3, activation="relu")
    >>> layer(torch.ones(2, 4)).shape
    torch.Size([2, 3])
    """

    _holder = "_parameters"

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True,
        activation: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, **options)
        self.activation: str = _activation(activation)

    @classmethod
    def from_float(cls, linear: torch.nn.Linear, activation: str | None = None) -> Linear:
        """Return a layer that shares the parameters ``weight`` and ``bias`` with ``linear``."""
        made = cls(
            linear.in_features, linear.out_features, linear.bias is not None, activation,
            device="meta",
        )  # fmt: skip
        made.weight, made.bias = linear.weight, linear.bias
        made.train(linear.training)
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's results for ``x``.

        ``x`` has the shape (..., in_features) and the type of the weight.
        """
        weight, bias = self.weight, self.bias
        if x.dtype != weight.dtype or x.dtype not in LAYER_TYPES or x.device.type != "cpu":
            _refuse(x, weight)
        if x.is_nested:
            as_array(x, "x")
        if self._is_frozen and weight.requires_grad:
            _refuse_trained(self)
        recorded, plain = self._is_recorded(x), is_plain()
        operators = torch.ops.tilewright
        found: torch.Tensor
        if recorded or not (self._is_frozen or plain):
            found = operators.linear(x, weight, bias, self.activation)
        elif plain and self._is_frozen:
            kind = self._kind(x.dtype)
            found = run_layer(kind, self._matrix(x.dtype), x, bias)
        elif plain:
            found = products.linear(x, weight, bias, self.activation)
        elif (packed := self._packed_for_graph()) is None:
            found = operators.linear_of_constants(x, weight, bias, self.activation)
        else:
            found = operators.linear_of_packed(
                x, packed, bias, self._format, self.out_features, "", "float", self.activation
            )
        return found

    def _kind(self, dtype: Any) -> LayerKind:
        return LayerKind(
            self.in_features, self.out_features, LAYER_TYPES[dtype], self.bias is not None,
            self.activation,
        )  # fmt: skip

    def _pack(self) -> dict[Any, Any]:
        return {self.weight.dtype: packed_weight(self.weight)}

    def _check_packable(self) -> None:
        if self.weight.dtype not in LAYER_TYPES or self.weight.device.type != "cpu":
            _refuse(self.weight, self.weight)

    def _is_recorded(self, x: torch.Tensor) -> bool:
        """Return True if autograd records the layer's call with ``x``."""
        if not torch.is_grad_enabled():
            return False
        bias = self.bias
        return (
            x.requires_grad or self.weight.requires_grad
            or (bias is not None and bias.requires_grad)
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the text that PyTorch prints for the layer."""
        shown = f"{torch.nn.Linear.extra_repr(self)}, activation={self.activation or None}"
        return self._marked(shown)


def _refuse_trained(layer: torch.nn.Module) -> NoReturn:
    raise ArgumentValueError(
        "the weight of a frozen layer is to be trained",
        got=f"{layer}, whose weight requires grad",
        expected="the weight that freeze() packed, which stays",
        hint="layer.unfreeze() before training, or layer.freeze() again after it",
    )


def _refuse(x: torch.Tensor, weight: torch.Tensor) -> NoReturn:
    raise ArgumentTypeError(
        "a layer takes tensors of its weight's type on the CPU",
        got=f"x of {x.dtype} on {x.device}, weight of {weight.dtype}",
        expected=f"both of {' or both of '.join(map(str, LAYER_TYPES))}",
        hint="layer.to(x.dtype), or x.to(layer.weight.dtype)",
    )


class _Inference(Freezable):
    """A layer for inference, whose buffers keep their types.

    For example, ``.to(torch.bfloat16)`` does not convert the weight.
    """

    activation: str
    in_features: int
    out_features: int

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return super()._apply(lambda tensor: _of_type(fn(tensor), tensor), recurse)

    def _check_packable(self) -> None:
        tensors = [getattr(self, name) for name in self._packs]
        devices = {tensor.device.type for tensor in tensors if tensor is not None}
        if devices != {"cpu"}:
            raise ArgumentTypeError(
                "a layer is packed on the CPU", got=f"buffers on {', '.join(sorted(devices))}",
                hint='layer.to("cpu"), or layer.to_empty(device="cpu") and a state',
            )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the text that PyTorch prints for the layer."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return self._marked(f"{sizes}, {self._shown()}, activation={self.activation or None}")

    def _shown(self) -> str:
        raise NotImplementedError


def _of_type(moved: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return the buffer ``before`` on the device of ``moved``, without a change of its type."""
    return moved if moved.dtype == before.dtype else before.to(moved.device)


def _bias_of(linear: torch.nn.Linear) -> torch.Tensor | None:
    return None if linear.bias is None else linear.bias.detach().float().clone()


def _own_activation(linear: torch.nn.Linear, given: str | None) -> str | None:
    """Return the activation ``given``; if it is None, the activation of ``linear``."""
    return given or getattr(linear, "activation", None) or None


class QuantizedLinear(_Inference):
    """A layer that computes ``activation(x @ weight.T + bias)`` in 8-bit integers with exact sums.

    The weight is int8 with one scale for each output. Without ``input_scale``, each row of ``x`` is
    quantized to int8 with its own scale. With ``input_scale``, ``x`` is quantized to uint8: ``x /
    input_scale + input_zero``. The layer is for inference and has no gradient.
    ``BlockQuantizedLinear`` has weights with fewer bits.

    Parameters
    ----------
    weight : torch.Tensor
        int8, out_features x in_features.
    weight_scale : torch.Tensor
        float32, (out_features,).
    bias : torch.Tensor, optional
        (out_features,).
    activation : str, optional
        As in ``Linear``.
    input_scale, input_zero : optional
        Scale (float) and zero point (int) that all elements of ``x`` share.

    Raises
    ------
    ArgumentError
        The shape of an argument does not fit.

    Notes
    -----
    The layer is frozen when it is made: ``weight`` and ``weight_scale`` are packed once. The other
    buffers are read at each call. After ``unfreeze`` each call packs the weight, which is slow. See
    ``Freezable``.
    """

    _packs = ("weight", "weight_scale")

    def __init__(
        self, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None = None,
        *, activation: str | None = None, input_scale: float | None = None, input_zero: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.activation = _activation(activation)
        fixed = input_scale is not None
        for name, value in (
            ("weight", weight), ("weight_scale", weight_scale), ("bias", bias),
            ("input_scale", torch.tensor(float(input_scale or 0)) if fixed else None),
            ("input_zero", torch.tensor(input_zero, dtype=torch.int32) if fixed else None),
        ):  # fmt: skip
            self.register_buffer(name, value)
        self._is_frozen = True
        self._hold_again()

    @classmethod
    def from_float(
        cls, linear: torch.nn.Linear, *, activation: str | None = None,
        input_range: tuple[float, float] | None = None,
    ) -> QuantizedLinear:  # fmt: skip
        """Return a layer like ``linear`` with an int8 weight.

        The scale of each row of the weight is the row's largest magnitude / 127.

        ``input_range`` is the least and the largest element of ``x`` that must not saturate.
        Without ``input_range``, each row of ``x`` is quantized with its own scale.
        """
        weight = linear.weight.detach().float()
        codes, scale = quantized.quantize_rows(weight)
        bias, activation = _bias_of(linear), _own_activation(linear, activation)
        if input_range is None:
            return cls(codes, scale, bias, activation=activation)
        low, high = min(float(input_range[0]), 0.0), max(float(input_range[1]), 0.0)
        if not low < high:
            raise ArgumentValueError(
                "input_range is the least and the largest input", got=input_range
            )
        step = (high - low) / 255
        zero = round(-low / step)
        return cls(
            codes, scale, bias, activation=activation, input_scale=step, input_zero=zero
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer of ``x``, which is (..., in_features) in floating point, in the type of
        ``x``.
        """
        _check_rows(x, self.in_features, _FLOATS)
        operators, found = torch.ops.tilewright, None
        plain, bias, activation = _is_computed(x), self.bias, self.activation
        if plain and self._is_frozen:
            packed = self._matrix(x.dtype)
            if (numbers := self._numbers()) is None:
                found = quantized.run_rows(packed, x, bias, activation)
            else:
                found = quantized.run_fixed(packed, x, numbers, bias, activation)
        elif self._is_frozen and (bytes_ := self._packed_for_graph()) is not None:
            found = self._traced(x, bytes_)
        else:
            compute = quantized.quantized_linear if plain else operators.quantized_linear
            found = compute(
                x, self.weight, self.weight_scale, bias, self.input_scale, self.input_zero,
                activation,
            )  # fmt: skip
        return found

    def _traced(self, x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        """Compute the frozen layer by an operator that a traced graph can contain."""
        found: torch.Tensor
        if (numbers := self._numbers()) is not None:
            found = torch.ops.tilewright.fixed_linear_of_packed(
                x, packed, numbers.weight_scale, self.bias, numbers.input_scale,
                numbers.input_zero, self._format, self.activation,
            )  # fmt: skip
            return found
        given = x if x.dtype in INPUT_TYPES else x.float()
        found = torch.ops.tilewright.linear_of_packed(
            given, packed, self.bias, self._format, self.out_features, quantized.FORM_TEXT, "rows",
            self.activation,
        )  # fmt: skip
        return found.to(x.dtype)

    def _numbers(self) -> quantized.Fixed | None:
        """Return the scales if all inputs share one, None if each row of ``x`` has its own."""
        if self.input_scale is None or self.input_zero is None:
            return None
        return quantized.Fixed(self.weight_scale, self.input_scale, self.input_zero)

    def _pack(self) -> dict[Any, Any]:
        if self.input_scale is None:
            packed = quantized.packed_rows(self.weight, self.weight_scale)
        else:
            packed = quantized.packed_codes(self.weight)
        return dict.fromkeys(_FLOATS, packed)

    def _shown(self) -> str:
        return f"inputs={'int8 by rows' if self.input_scale is None else 'uint8'}"


class BlockQuantizedLinear(_Inference):
    """A layer that computes ``activation(x @ weight.T + bias)`` with a low-bit, block-quantized
    weight.

    The layer is for inference and has no gradient.

    Parameters
    ----------
    matrix : QuantizedMatrix
        The transposed weight, in_features x out_features, for example from ``tw.quantize``,
        ``tw.from_gguf`` or ``tw.from_gptq``.
    bias : torch.Tensor, optional
        (out_features,).
    activation : str, optional
        As in ``Linear``.
    inputs : {"blocks", "rows", "float"}, optional
        How the kernel converts ``x``. "blocks": to 8-bit integers with a scale for each block of a
        row; blocks are as long as those of the weight. "rows": to 8-bit integers with a scale for
        each row. "float": not at all. The default is "blocks", or "float" if the weight is f8.

    Raises
    ------
    ArgumentError
        The matrix or another argument does not fit.

    Notes
    -----
    ``x`` is float32, bfloat16 or float16; the result has the same type. The buffers ``weight``,
    ``scales`` and ``zeros`` hold the numbers of the matrix. Elements of 2 and 4 bits share bytes.
    The layer is frozen when it is made: the three buffers are packed once, and ``bias`` is read at
    each call. After ``unfreeze`` each call packs the three buffers, which is slow. See
    ``Freezable``. A state of ``state_dict`` can be loaded only into a layer of the same format.
    """

    _packs = ("weight", "scales", "zeros")

    def __init__(
        self, matrix: QuantizedMatrix, bias: torch.Tensor | None = None, *,
        activation: str | None = None, inputs: Inputs | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check_matrix(matrix)
        (self.in_features, self.out_features), self.format = matrix.shape, matrix.format
        self.activation = _activation(activation)
        if inputs not in (None, *get_args(Inputs)):
            raise ArgumentValueError(
                "inputs are made something else", got=inputs,
                expected=" or ".join(map(repr, get_args(Inputs))),
            )  # fmt: skip
        integers = self.format.stored.unpacked in ("s8", "u8")
        self.inputs: Inputs = inputs or ("blocks" if integers else "float")
        self._text = format_text(self.format)
        _check_bias(bias, self.out_features)
        layer_spec(self._kind(torch.float32, bias))
        for name, value in (*blocks.Stored.of(matrix)._asdict().items(), ("bias", bias)):
            self.register_buffer(name, value)
        self._is_frozen = True
        self._hold_again()

    @classmethod
    def from_float(
        cls, linear: torch.nn.Linear, format: Quantized | str, *, activation: str | None = None,
        inputs: Inputs | None = None, method: Method = "nearest",
    ) -> BlockQuantizedLinear:  # fmt: skip
        """Return a layer like ``linear`` with the weight quantized to ``format`` by
        ``tw.quantize``.

        ``format`` may be the name of a GGUF type, for example "q4_0".
        """
        matrix = quantize(linear.weight.detach().float().t(), format, method=method)
        activation = _own_activation(linear, activation)
        return cls(matrix, _bias_of(linear), activation=activation, inputs=inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer of ``x``, which is (..., in_features) in floating point, in the type of
        ``x``.
        """
        _check_rows(x, self.in_features, tuple(INPUT_TYPES))
        plain, bias = _is_computed(x), self.bias
        found: torch.Tensor
        if plain and self._is_frozen:
            found = run_layer(self._kind(x.dtype, bias), self._matrix(x.dtype), x, bias)
        elif (
            self._is_frozen
            and x.dtype in self._types
            and (packed := self._packed_for_graph()) is not None
        ):
            found = torch.ops.tilewright.linear_of_packed(
                x, packed, bias, self._format, self.out_features, self._text, self.inputs,
                self.activation,
            )  # fmt: skip
        else:
            compute = blocks.block_linear if plain else torch.ops.tilewright.block_linear
            found = compute(
                x, self.weight, self.scales, self.zeros, bias, self._text, self.inputs,
                self.activation,
            )  # fmt: skip
        return found

    def _kind(self, dtype: Any, bias: torch.Tensor | None) -> LayerKind:
        return LayerKind(
            self.in_features, self.out_features, INPUT_TYPES[dtype], bias is not None,
            self.activation, self.format, self.inputs,
        )  # fmt: skip

    def _pack(self) -> dict[Any, Any]:
        matrix = blocks.Stored(self.weight, self.scales, self.zeros).matrix(
            self.format, self.in_features
        )
        kinds = {dtype: self._kind(dtype, None) for dtype in INPUT_TYPES}
        formats = {dtype: format_here(kind).text for dtype, kind in kinds.items()}
        made = {formats[t]: kind for t, kind in reversed(kinds.items())}
        packed = {text: blocks.packed_blocks(matrix, kind) for text, kind in made.items()}
        return {dtype: packed[text] for dtype, text in formats.items()}

    def get_extra_state(self) -> torch.Tensor:
        """Return the format of the weight as a tensor of bytes, which ``state_dict`` stores."""
        return torch.frombuffer(bytearray(self._text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Raise ArgumentValueError if a loaded state has another format than this layer."""
        text = bytes(state.tolist()).decode()
        if text != self._text:
            raise ArgumentValueError(
                "the state is one of weights of another format", got=text, expected=self._text,
                hint="BlockQuantizedLinear of a matrix of that tw.Quantized(*...)",
            )  # fmt: skip

    def _shown(self) -> str:
        return f"format={self.format}, inputs={self.inputs}"


#: Element types of ``x`` that ``QuantizedLinear`` accepts.
_FLOATS = (*INPUT_TYPES, torch.float64)


def _is_computed(x: torch.Tensor) -> bool:
    """Return True if a layer can be computed directly, without PyTorch's dispatcher."""
    return is_plain() and x.device.type == "cpu"


def _check_rows(x: torch.Tensor, length: int, types: tuple[Any, ...]) -> None:
    """Raise ArgumentTypeError unless ``x`` has rows of ``length`` elements and one of the types."""
    if x.is_nested:
        as_array(x, "x")
    if x.dtype not in types or x.shape[-1:] != (length,):
        raise ArgumentTypeError(
            "a layer takes rows of its inputs in floating point",
            got=f"{x.dtype} tensor of shape {tuple(x.shape)}",
            expected=f"(..., {length}), one of {', '.join(map(str, types))}",
        )


def _check_matrix(matrix: Any) -> None:
    if not isinstance(matrix, QuantizedMatrix) or matrix.ndim != 2:
        raise ArgumentTypeError(
            "a layer takes one matrix of few bits", got=matrix, expected="tw.QuantizedMatrix",
            hint="tt.BlockQuantizedLinear.from_float(linear, tw.Quantized(...))",
        )  # fmt: skip


def _check_bias(bias: torch.Tensor | None, n: int) -> None:
    if bias is not None and tuple(bias.shape) != (n,):
        raise ArgumentValueError(
            "the bias has the wrong shape", got=tuple(bias.shape), expected=f"({n},)"
        )
