"""The class ``SeveralResults``: a compiled network that returns a tuple."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tilewright.errors import ArgumentTypeError

from .kernel import Kernel

if TYPE_CHECKING:
    from tilewright.runtime.call.frame import Frame


class SeveralResults(Kernel):
    """A compiled network that returns a tuple: ``y, top = kernel(x)``, ``kernel(x, out=(y, top))``.

    By name the results are ``out0``, ``out1`` and so on.
    """

    __slots__ = ()

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Return all results, in order."""
        names = self._results
        named |= self._given(out)
        found = super().__call__(*arrays, **named)
        made = iter(found if isinstance(found, tuple) else (found,))
        first = next(made)
        given = [named.get(name) for name in names[1:]]
        return first, *(next(made) if one is None else one for one in given)

    def frame(self, *arrays: Any, out: Any = None, **named: Any) -> Frame:
        """Return the checked arguments of one call."""
        if not self._several:
            return super().frame(*arrays, **named, **({} if out is None else {"out": out}))
        return super().frame(*arrays, **named, **self._given(out))

    def bind(self, *arrays: Any, **named: Any) -> partial[int]:
        """Check the arguments once, as other kernels do; ``out`` is a tuple of the results."""
        bound = super().bind(*arrays, **named)
        if not self._several:
            return bound
        places = [p.name for p in self.signature.arrays]
        held = vars(bound)
        held["out"] = tuple(held["arrays"][places.index(name)] for name in self._results)
        return bound

    @property
    def _several(self) -> bool:
        return bool(getattr(self.spec, "several", False))

    @property
    def _results(self) -> list[str]:
        return [p.name for p in self.signature.arrays if p.role == "out"]

    def _given(self, out: Any) -> dict[str, Any]:
        """Return the arrays of ``out`` by the names of the results."""
        if out is None:
            return {}
        names = self._results
        if not isinstance(out, tuple | list) or len(out) != len(names):
            raise ArgumentTypeError(
                "out is a tuple with an array for each result",
                got=type(out).__name__ if not isinstance(out, tuple | list) else len(out),
                expected=f"{len(names)} arrays: out=({', '.join(names)})",
            )
        return dict(zip(names, out, strict=True))
