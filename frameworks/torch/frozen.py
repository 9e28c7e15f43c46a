"""Layers that can be frozen: their weight is packed once, and later changes to it are refused."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, NoReturn, Self

import torch
from tilewright.errors import ArgumentError, ArgumentValueError
from tilewright.runtime.call.packed_matrix import PackedMatrix

from .packed import bytes_of
from .products import is_transformed


class Held(NamedTuple):
    """The packed weights of a frozen layer, and the facts that reveal a later change of the weight.

    ``matrices`` has the packed weight for each type of the inputs. ``given`` has the tensors that
    were packed. ``sources`` has views of them: the views keep the memory alive, so that no new
    tensor can get the same address. ``seen`` has each tensor's name, its address, and PyTorch's
    count of writes (None for inference tensors, which have no count).
    """

    matrices: dict[Any, PackedMatrix]
    given: tuple[torch.Tensor, ...]
    sources: tuple[torch.Tensor, ...]
    seen: tuple[tuple[str, int, int | None], ...]


class Freezable(torch.nn.Module):
    """A layer whose weight ``freeze`` packs. An unfrozen layer reads its weight at each call.

    A frozen layer computes with the packed weight. ``load_state_dict``, ``to``, ``half`` and
    similar methods of the layer pack the weight again. Copies and unpickled layers are frozen too,
    and pack the weight at their first call. ``state_dict`` holds the unpacked weight. ``train`` and
    ``eval`` do not affect freezing.

    If PyTorch counted a write, for example ``weight.mul_(2)``, or if another tensor took the
    weight's place, the next call raises ArgumentValueError. Some writes are not counted and cannot
    be detected: writes through ``weight.data``, by fused optimizers, through numpy, DLPack or a
    storage, and all writes in compiled graphs. Call ``freeze`` again after such writes.
    """

    #: Names of the tensors that are packed, and the attribute of the module that holds them.
    _packs: tuple[str, ...] = ("weight",)
    _holder: Literal["_parameters", "_buffers"] = "_buffers"
    _is_frozen: bool = False
    _held: Held | None = None
    #: Packed bytes for a traced graph, the name of their format, and the types of inputs for which
    #: kernels expect this format.
    _bytes: torch.Tensor | None = None
    _format: str = ""
    _types: tuple[Any, ...] = ()
    _trained: tuple[str, ...] = ()

    # --- methods of the layers -----------------------------------------------------------------

    def _pack(self) -> dict[Any, PackedMatrix]:
        """Return the packed weight for each type of the inputs.

        Several types may share one packed matrix.
        """
        raise NotImplementedError

    def _check_packable(self) -> None:
        """Raise ArgumentError if the weight cannot be packed because of its device or type."""
        raise NotImplementedError

    # --- freezing ------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        """True if the layer computes with a packed weight."""
        return self._is_frozen

    def freeze(self) -> Self:
        """Pack the current weight, and return the layer.

        The layer's parameters no longer require gradients. Each later ``freeze`` packs the weight
        again.

        Returns
        -------
        Freezable
            The layer.

        Raises
        ------
        ArgumentError
            The weight cannot be packed.

        Examples
        --------
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
        """Make the layer read its weight at each call from now on, and return the layer.

        Parameters for which ``freeze`` turned off gradients require gradients again.

        Returns
        -------
        Freezable
            The layer.
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
        """Pack the current weight, and record the tensors that were packed."""
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
        """Pack the weight of a frozen layer again, after the weight was loaded or moved.

        Do nothing if the device or type of the weight is not supported.
        """
        if self._is_frozen:
            self._drop()
            try:
                self._check_packable()
            except ArgumentError:
                return  # a call of the layer raises the same error
            self._hold()

    def _matrix(self, dtype: Any) -> PackedMatrix:
        """Return the packed weight for inputs of type ``dtype``.

        Raise ArgumentValueError if the weight was written or replaced since it was packed.
        """
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
        """Return the packed bytes for an operator, None if the operator must read the weight.

        It must if another tensor replaces the weight for this call, for example by
        ``torch.func.functional_call``.
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

    # --- overridden methods of torch.nn.Module -------------------------------------------------

    def _load_from_state_dict(self, *args: Any, **named: Any) -> None:
        super()._load_from_state_dict(*args, **named)
        self._hold_again()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._hold_again()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the packed weight.

        The format of the packed weight may suit only this machine.
        """
        state = dict(self.__dict__)
        for name in ("_held", "_bytes"):
            state.pop(name, None)
        return state

    def _marked(self, shown: str) -> str:
        """Return ``shown``, the text printed for the layer, with "frozen" added if it is frozen."""
        return f"{shown}, frozen" if self._is_frozen else shown


def _writes(tensor: torch.Tensor) -> int | None:
    """Return PyTorch's count of writes to a tensor, None if PyTorch does not count them."""
    return None if tensor.is_inference() else tensor._version
