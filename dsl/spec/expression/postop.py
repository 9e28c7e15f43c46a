"""The entry of a post-op: all facts about a function of epilogues in one place.

An entry holds the function's name, its operands and parameters, its kernel code, the right results,
and samples to try. Printing, lowering, the reference, sympy, random products and tests read the
entry, and know no function by name. ``define.py`` makes entries. The other modules here hold
tilewright's own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from types import FunctionType
from typing import Any, NoReturn, Protocol

from tilewright.errors import SpecError

#: A value of the program that a lowering writes, or a number. Only the program knows its type.
Lane = Any


class Program(Protocol):
    """The interface by which a lowering writes its steps: ``b("fma", x, y, z)`` returns their
    result.

    The operations are those of ``elementwise/operations.py``. A float among the arguments is a
    constant, an int is a constant of s32. ``real`` is the floating-point type, f32 or f64.
    """

    real: str

    def __call__(self, fn: str, *args: Lane) -> Lane:
        """Apply ``fn`` to values and numbers."""
        ...

    def part(self, name: str) -> AbstractContextManager[None]:
        """Name the values written in the ``with`` block, and their constants, in C.

        Examples
        --------
        >>> with b.part("square"):  # doctest: +SKIP
        ...     square = b("mul", x, x)
        """
        ...


@dataclass(frozen=True, slots=True)
class Truth:
    """A comparison that a lowering leaves as a mask: ``yes`` for lanes where it holds, else
    ``no``.
    """

    mask: Lane
    yes: float = 1.0
    no: float = 0.0


# -- what is right ------------------------------------------------------------------------------

#: Absolute error allowed to functions that are composed of several others.
COMPOSED = 1e-6


@dataclass(frozen=True, slots=True)
class Within:
    """A reference ``function`` on float64 arrays, and the allowed error of a kernel's result.

    The error is ``ulps`` units in the last place of the result plus ``absolute``. Parameters follow
    the operand as floats.
    """

    function: Callable[..., Any]
    ulps: float
    absolute: float = 0.0


@dataclass(frozen=True, slots=True)
class Monotone:
    """An exact reference ``function`` that decreases in no operand; the result is rounded if
    ``rounded``.
    """

    function: Callable[..., Any]
    rounded: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """1.0 if the comparison ``function`` holds, else 0.0."""

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An operator, for which the reference has interval arithmetic under the name ``rule``."""

    rule: str


Reference = Within | Monotone | Compared | Arithmetic


# -- the entry ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PostOp:
    """A function of epilogues.

    ``parameters`` are the numbers after the operands, each with its default or None. ``body`` is
    called with the operands and parameters of each use. It refuses wrong parameters, and returns
    the same in other functions, or None if ``lower`` and ``reference`` define the function.
    ``lower(b, *operands, *parameters)`` writes the kernel's program; None means that of the body's
    result. ``reference`` gives the right result; None means that each rounding of the body's result
    is followed.
    """

    name: str
    operands: tuple[str, ...]
    parameters: tuple[tuple[str, float | None], ...]
    body: FunctionType
    lower: Callable[..., Lane | Truth] | None = None
    reference: Reference | None = None
    #: True if ``lower`` may write lanes of f64 too, given the parameters.
    f64: bool | Callable[..., bool] = True
    #: True if the function is an addition, so that s32 integers stay exact.
    whole: bool = False
    #: True if parameters must be finite.
    finite: bool = True
    #: True if ``lower`` takes its first operand as a Truth if it is a comparison.
    condition: bool = False
    #: Name of sympy's function, or a function that makes sympy's terms; None for an unknown
    #: function.
    sympy: str | Callable[..., Any] | None = None
    #: Parameters to try the function with.
    samples: tuple[tuple[float, ...], ...] = ((),)
    #: True if large operands test it as well as small ones.
    straight: bool = False
    #: True if a user defined it; tilewright's own are part of the sources.
    own: bool = False
    home: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", self.body.__module__ or "__main__")

    def __repr__(self) -> str:
        return f"<post-op {self.name}>"

    def meaning(self, operands: tuple[Any, ...], parameters: tuple[float, ...]) -> Any:
        """Return the result of ``body`` for one use; None if it only checks the parameters."""
        return self.body(*operands, *parameters)

    def has_f64(self, parameters: tuple[float, ...]) -> bool:
        """Return True if ``lower`` can write lanes of f64."""
        return self.f64(*parameters) if callable(self.f64) else self.f64

    def __copy__(self) -> PostOp:
        return self

    def __deepcopy__(self, _memo: Any) -> PostOp:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return found, (self.name, self.home)


#: All post-ops by name: tilewright's own, and those that users defined.
REGISTRY: dict[str, PostOp] = {}


def found(name: str, home: str) -> PostOp:
    """Return the post-op ``name`` of the module ``home``, which is imported if necessary.

    SpecError if the module defines none, for example in a process that runs another program.
    """
    entry = REGISTRY.get(name)
    if entry is None and home != "__main__":
        try:
            import_module(home)
        except ImportError as error:
            _unknown(name, home, f"importing it fails: {error}")
        entry = REGISTRY.get(name)
    if entry is None or entry.home != home:
        other = "no post-op of that name" if entry is None else f"one that {entry.home} defines"
        _unknown(name, home, other)
    return entry


def _unknown(name: str, home: str, got: str) -> NoReturn:
    raise SpecError(
        f"this process has no post-op {name!r} of the module {home}",
        got=got,
        expected="the definition with @tw.postop that the spec was made with",
        hint="import the module that defines it before the kernel or spec is unpickled; "
        "what __main__ defines, other programs lack",
    )
