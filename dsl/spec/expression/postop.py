"""Define ``PostOp``, the entry that holds all facts about one function of epilogues.

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

#: A value in the program of elementary operations that a lowering function writes, or a number.
#: Only the program knows the type of its values.
Lane = Any


class Program(Protocol):
    """Interface by which a lowering function writes operations: ``b("fma", x, y, z)`` adds one.

    The call returns the operation's result. ``elementwise/operations.py`` lists the operations. A
    float among the arguments is a constant, an int is a constant of s32. ``real`` is the
    floating-point type, f32 or f64.
    """

    real: str

    def __call__(self, fn: str, *args: Lane) -> Lane:
        """Add the operation ``fn`` on ``args`` (values and numbers), and return its result."""
        ...

    def has(self, fn: str) -> bool:
        """Return True if the target has the operation ``fn``."""
        ...

    def part(self, name: str) -> AbstractContextManager[None]:
        """Use ``name`` in C for the values that the ``with`` block writes, and their constants.

        Examples
        --------
        >>> with b.part("square"):  # doctest: +SKIP
        ...     square = b("mul", x, x)
        """
        ...


@dataclass(frozen=True, slots=True)
class Truth:
    """The result of a comparison, kept as a mask.

    As a number it is ``yes`` in lanes where the comparison holds, else ``no``.
    """

    mask: Lane
    yes: float = 1.0
    no: float = 0.0


# -- references, with which the results of kernels are compared ---------------------------------

#: Absolute error that is allowed for functions composed of several others.
COMPOSED = 1e-6


@dataclass(frozen=True, slots=True)
class Within:
    """A reference ``function`` on float64 arrays, and the allowed error of a kernel's result.

    The error is ``ulps`` units in the last place of the result plus ``absolute``. Parameters follow
    the operand as floats. ``slope`` is the largest slope of a function that turns again and again,
    so that a few points of an interval do not show its range; None for others.
    """

    function: Callable[..., Any]
    ulps: float
    absolute: float = 0.0
    slope: float | None = None


@dataclass(frozen=True, slots=True)
class Monotone:
    """A reference ``function`` whose result never decreases if an operand increases.

    Its float64 result is exact. A kernel's result is rounded if ``rounded``, else exact too.
    """

    function: Callable[..., Any]
    rounded: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """A reference for a comparison: the result is 1.0 if ``function`` returns True, else 0.0."""

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A reference for an operator; ``rule`` is its name in the reference's interval arithmetic."""

    rule: str


Reference = Within | Monotone | Compared | Arithmetic


# -- the entry of a post-op ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PostOp:
    """All facts about one function of epilogues, a post-op.

    ``parameters`` are the numbers after the operands, each with its default or None. ``body`` is
    called with the operands and parameters of each use. It refuses wrong parameters. It returns an
    expression of other functions with the same result, or None if ``lower`` and ``reference``
    define the function. ``lower(b, *operands, *parameters)`` writes the operations that compute the
    function in a kernel; if it is None, the kernel computes the expression of ``body``.
    ``reference`` gives the right result; if it is None, the reference follows each rounding in the
    expression of ``body``.
    """

    name: str
    operands: tuple[str, ...]
    parameters: tuple[tuple[str, float | None], ...]
    body: FunctionType
    lower: Callable[..., Lane | Truth] | None = None
    reference: Reference | None = None
    #: True if ``lower`` can compute in f64 too; or a function of the parameters that tells this.
    f64: bool | Callable[..., bool] = True
    #: True if the function adds, subtracts or negates, so that it is exact for s32 integers.
    whole: bool = False
    #: True if infinite parameters are refused.
    finite: bool = True
    #: True if ``lower`` accepts the mask of a comparison (a ``Truth``) as its first operand.
    condition: bool = False
    #: The function in sympy: its name there, or a Python function that makes the sympy expression.
    #: None if sympy cannot represent it.
    sympy: str | Callable[..., Any] | None = None
    #: Parameters with which tests call the function, one tuple for each call.
    samples: tuple[tuple[float, ...], ...] = ((),)
    #: True if the function is nearly linear for large operands, so that large sums test it well.
    straight: bool = False
    #: True if a user defined the function, False if it is one of tilewright's own.
    own: bool = False
    home: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", self.body.__module__ or "__main__")

    def __repr__(self) -> str:
        return f"<post-op {self.name}>"

    def meaning(self, operands: tuple[Any, ...], parameters: tuple[float, ...]) -> Any:
        """Return the expression that ``body`` returns for operands and parameters; maybe None."""
        return self.body(*operands, *parameters)

    def has_f64(self, parameters: tuple[float, ...]) -> bool:
        """Return True if ``lower`` can compute in f64 with these ``parameters``."""
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
    """Return the post-op ``name`` that module ``home`` defines, importing the module if needed.

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
