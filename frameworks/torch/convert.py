"""Replace the linear layers of a model by low-bit layers, in place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from tilewright.errors import ArgumentTypeError, TilewrightError
from tilewright.runtime.quantized.formats import as_format
from tilewright.runtime.quantized.quantize import Method
from tilewright.spec.quantized import Quantized

from .layers import BlockQuantizedLinear, Linear
from .packed import INPUT_TYPES, Inputs

#: Modules that read the weights of their inner layers directly. These layers are not replaced.
_OWNERS = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)


class Conversion(NamedTuple):
    """The result of ``quantize_``.

    Attributes
    ----------
    format : Quantized
        The format of the new layers.
    replaced : dict
        The new layers by name.
    left : dict
        For each other module with a weight, the reason why it was not replaced.
    """

    format: Quantized
    replaced: dict[str, BlockQuantizedLinear]
    left: dict[str, str]

    def __str__(self) -> str:
        """Return a line for each module that was replaced or left."""
        lines = [f"replaced {len(self.replaced)} layers by ones of {self.format}"]
        lines += [
            f"  {name}: {layer.in_features} to {layer.out_features}, inputs={layer.inputs}"
            for name, layer in self.replaced.items()
        ]
        lines.append(f"left {len(self.left)} modules with a weight")
        lines += [f"  {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def quantize_(
    model: torch.nn.Module,
    format: Quantized | str,
    *,
    only: Callable[[str, torch.nn.Module], bool] | None = None,
    inputs: Inputs | None = None,
    method: Method = "nearest",
) -> Conversion:
    """Replace each ``Linear`` in a model by a ``BlockQuantizedLinear``.

    The replaced layers are printed.

    Parameters
    ----------
    model : torch.nn.Module
        The model, which is modified.
    format : Quantized or str
        The format, or the name of a GGUF type, for example "q4_0".
    only : callable, optional
        Called with the name and the module of each layer; must return True to replace the layer.
    inputs, method : optional
        Arguments of ``BlockQuantizedLinear.from_float``.

    Returns
    -------
    Conversion
        The layers that were replaced, and for each other module the reason why it was not.

    Raises
    ------
    ArgumentError
        The format is unknown, or the model is a layer itself.

    Examples
    --------
    >>> import torch, tilewright.torch as tt
    >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 64), torch.nn.Linear(64, 8))
    >>> made = tt.quantize_(model, "q8_0")
    replaced 1 layers by ones of Quantized(type='s8', scale='f16', zero=0, block=32)
      1: 64 to 8, inputs=blocks
    left 1 modules with a weight
      0: Embedding is no torch.nn.Linear
    >>> made.replaced["1"] is model[1]
    True
    """
    form = as_format(format)
    if isinstance(model, torch.nn.Linear):
        raise ArgumentTypeError(
            "a layer is replaced in the module that holds it",
            got=model,
            expected="a model with layers in it",
            hint="tt.BlockQuantizedLinear.from_float(layer, format)",
        )
    replaced: dict[str, BlockQuantizedLinear] = {}
    left: dict[str, str] = {}
    for name, module in list(model.named_modules()):
        if not _has_weight(module):
            continue
        owner = model.get_submodule(name.rpartition(".")[0])
        why = _why_left(module, owner)
        if why is None and only is not None and not only(name, module):
            why = "only= leaves it"
        if why is None:
            try:
                replaced[name] = BlockQuantizedLinear.from_float(
                    module, form, inputs=inputs, method=method
                )
            except TilewrightError as error:
                why = f"{error.problem}: {error.got}"
        if why is not None:
            left[name] = why
    _put(model, {id(model.get_submodule(name)): layer for name, layer in replaced.items()})
    made = Conversion(form, replaced, left)
    sys.stdout.write(f"{made}\n")
    return made


def _has_weight(module: torch.nn.Module) -> bool:
    """Return True if a module itself, not an inner module, has a matrix as a parameter."""
    return any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))


def _why_left(module: Any, owner: torch.nn.Module) -> str | None:
    """Return why a module is not replaced, None if it can be."""
    if not isinstance(module, torch.nn.Linear):
        return f"{type(module).__name__} is no torch.nn.Linear"
    if isinstance(owner, _OWNERS):
        return f"{type(owner).__name__} reads the weight itself"
    if type(module) not in (torch.nn.Linear, Linear):
        return f"{type(module).__name__} is a subclass of torch.nn.Linear"
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return "it has hooks"
    if module.weight.device.type != "cpu":
        return f"the weight is on {module.weight.device.type}"
    if module.weight.dtype not in INPUT_TYPES:
        return f"inputs of {str(module.weight.dtype).removeprefix('torch.')} are not taken"
    return None


def _put(model: torch.nn.Module, made: dict[int, BlockQuantizedLinear]) -> None:
    """Replace modules of ``model`` by the layers ``made``, in every module that holds them.

    The keys of ``made`` are the ids of the replaced modules.
    """
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children() skips repeats
            if child is not None and (layer := made.get(id(child))) is not None:
                setattr(parent, name, layer.train(child.training))
