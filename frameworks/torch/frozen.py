"""Layers that can be frozen: their weight is packed once, and what changes it is refused."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, NoReturn, Self

import torch
from tilewright.errors import ArgumentError, ArgumentValueError
from tilewright.runtime.call.packed_matrix import PackedMatrix

from .packed import bytes_of
from .products import is_transformed


class Held(NamedTuple):
    """What a frozen layer holds beside its tensors.

    ``matrices`` are its packed weights by the type of the inputs, ``given`` the tensors that were
    packed. ``sources`` are views of those that keep their memory, so that no other tensor can be
    there. ``seen`` has the name of each, its address, and how often PyTorch had counted a write;
    None for inference tensors, whose writes it does not count.
    """

    matrices: dict[Any, PackedMatrix]
    given: tuple[torch.Tensor, ...]
    sources: tuple[torch.Tensor, ...]
    seen: tuple[tuple[str, int, int | None], ...]


class Freezable(torch.nn.Module):
    """A layer whose weight ``freeze`` packs. An unfrozen layer reads its weight at each call.

    A frozen layer computes with what was packed. Its own operations keep that right:
    ``load_state_dict``, ``to``, ``half`` and the like pack the weight again; copies and unpickled
    layers are frozen too, and pack theirs when they are first called; ``state_dict`` holds the
    weight itself; ``train`` and ``eval`` change nothing. A write that PyTorch counts, for example
    ``weight.mul_(2)``, and another tensor in the weight's place make the next call an
    ArgumentValueError. Writes that PyTorch does not count cannot be seen: through ``weight.data``,
    by fused optimizers, through numpy, DLPack or a storage, and any in compiled graphs. Call
    ``freeze`` again after those.
    """

    #: The names of the tensors that are packed, and the module's dictionary that holds them.
    _packs: tuple[str, ...] = ("weight",)
    _holder: Literal["_parameters", "_buffers"] = "_buffers"
    _is_frozen: bool = False
    _held: Held | None = None
    #: What a graph takes: the packed bytes and their format, for inputs of these types.
    _bytes: torch.Tensor | None = None
    _format: str = ""
    _types: tuple[Any, ...] = ()
    _trained: tuple[str, ...] = ()

    # --- what a layer says of itself -----------------------------------------------------------

    def _pack(self) -> dict[Any, PackedMatrix]:
        """The packed weight by the type of the inputs; one matrix stands for several types."""
        raise NotImplementedError

    def _check_packable(self) -> None:
        """ArgumentError if the weight cannot be packed: its device, its type."""
        raise NotImplementedError

    # --- freezing ------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        """True if the layer computes with a weight that was packed."""
        return self._is_frozen

    def freeze(self) -> Self:
        """Pack the weight as it is now; returns the layer. Parameters are no longer trained.

        Each later ``freeze`` packs the weight again. Raises ArgumentError if it cannot be packed.

        >>> import tilewright.torch as tt
        >>> layer = tt.Linear(4, 3).freeze()
        >>> layer
        Linear(in_features=4, out_features=3, bias=True, activation=None, frozen)
        >>> layer.weight.requires_grad
        False
        """
        tensors = getattr(self, self._holder)
        if computed := [name for name in self._packs if name not in tensors]:
            raise ArgumentValueError(
                "a weight that is computed at each call cannot be frozen",
                got=f"{', '.join(computed)} of {type(self).__name__}, which is no parameter",
                hint="torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')",
            )
        self._check_packable()
        trained = tuple(name for name, p in self._own_parameters() if p.requires_grad)
        self._trained = tuple(dict.fromkeys((*self._trained, *trained)))
        for _, parameter in self._own_parameters():
            parameter.requires_grad_(False)
        self._is_frozen = True
        self._hold()
        return self

    def unfreeze(self) -> Self:
        """Read the weight at each call; returns the layer.

        Parameters that ``freeze`` took out of training require grad again.
        """
        self._is_frozen = False
        for name, parameter in self._own_parameters():
            if name in self._trained:
                parameter.requires_grad_(True)
        self._trained = ()
        self._drop()
        return self

    def _own_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self.named_parameters(recurse=False))

    def _hold(self) -> None:
        """Pack the weight as it is now."""
        tensors: dict[str, torch.Tensor | None] = getattr(self, self._holder)
        named = [(name, x) for name in self._packs if (x := tensors.get(name)) is not None]
        given = tuple(x for _, x in named)
        sources = tuple(x.detach() for x in given)
        matrices = self._pack()
        first = next(iter(matrices.values()))
        seen = tuple((name, x.data_ptr(), _writes(x)) for name, x in named)
        self._held = Held(matrices, given, sources, seen)
        self._bytes, self._format = bytes_of(first), first.format
        self._types = tuple(t for t, each in matrices.items() if each.format == first.format)

    def _drop(self) -> None:
        self._held = self._bytes = None

    def _hold_again(self) -> None:
        """Pack the weight of a frozen layer after it was loaded or moved, if it can be packed."""
        if self._is_frozen:
            self._drop()
            try:
                self._check_packable()
            except ArgumentError:
                return  # calls say so, until the layer is where it can be computed
            self._hold()

    def _matrix(self, dtype: Any) -> PackedMatrix:
        """The packed weight for inputs of a type; ArgumentValueError if the weight was written."""
        if self._held is None:
            self._check_packable()
            self._hold()
        held = self._held
        assert held is not None
        tensors = getattr(self, self._holder)
        for name, pointer, writes in held.seen:
            now = tensors.get(name)
            if (
                now is None
                or now.data_ptr() != pointer
                or (writes is not None and now._version != writes)
            ):
                self._refuse_written(name)
        return held.matrices[dtype]

    def _packed_for_graph(self) -> torch.Tensor | None:
        """The packed bytes as an operator takes them; None if it has to read the weight.

        Other tensors may stand in for the weight, as ``torch.func.functional_call`` has them.
        """
        if self._held is not None and is_transformed():
            tensors = getattr(self, self._holder)
            now = (tensors.get(name) for name, _, _ in self._held.seen)
            if any(x is not y for x, y in zip(now, self._held.given, strict=True)):
                return None
        return self._bytes

    def _refuse_written(self, name: str) -> NoReturn:
        raise ArgumentValueError(
            "the weight of a frozen layer was changed",
            got=f"{name} of {self}",
            expected=f"the {name} that was packed",
            hint="layer.freeze() packs it again, layer.unfreeze() reads it at each call",
        )

    # --- what modules do -----------------------------------------------------------------------

    def _load_from_state_dict(self, *args: Any, **named: Any) -> None:
        super()._load_from_state_dict(*args, **named)
        self._hold_again()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._hold_again()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return all but what was packed, which is for this machine."""
        state = dict(self.__dict__)
        for name in ("_held", "_bytes"):
            state.pop(name, None)
        return state

    def _marked(self, shown: str) -> str:
        """Return what is printed of the layer, with a word if it is frozen."""
        return f"{shown}, frozen" if self._is_frozen else shown


def _writes(tensor: torch.Tensor) -> int | None:
    """Return how often PyTorch counted a write of a tensor; None where it does not count."""
    return None if tensor.is_inference() else tensor._version
