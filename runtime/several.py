"""The class ``SeveralResults``: a compiled network that returns a tuple."""

from __future__ import annotations

from typing import Any

from tilewright.errors import ArgumentTypeError

from .kernel import Kernel


class SeveralResults(Kernel):
    """A compiled network that returns a tuple: ``y, top = kernel(x)``, ``kernel(x, out=(y, top))``.

    By name the results are ``out0``, ``out1`` and so on.
    """

    __slots__ = ()

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Return all results, in order."""
        names = [p.name for p in self.signature.arrays if p.role == "out"]
        if out is not None:
            if not isinstance(out, tuple | list) or len(out) != len(names):
                raise ArgumentTypeError(
                    "out is a tuple with an array for each result",
                    got=type(out).__name__ if not isinstance(out, tuple | list) else len(out),
                    expected=f"{len(names)} arrays: out=({', '.join(names)})",
                )
            named |= dict(zip(names, out, strict=True))
        found = super().__call__(*arrays, **named)
        made = iter(found if isinstance(found, tuple) else (found,))
        first = next(made)
        given = [named.get(name) for name in names[1:]]
        return first, *(next(made) if one is None else one for one in given)
