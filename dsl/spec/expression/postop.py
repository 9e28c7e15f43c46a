"""What a post-op is: one entry with everything that tilewright knows of a function of epilogues.

An entry says what the function is called, which operands and parameters it has and what these may
be, how a kernel computes it, what is right for the result, and what to try it on. Printing,
lowering, the reference, sympy's view, the random products and the tests read the entry and know no
function by name. ``define.py`` makes entries; the modules beside it hold tilewright's own.
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
    """What a lowering writes its steps with: ``b("fma", x, y, z)`` gives their result.

    The operations and what they compute are those of ``elementwise/operations.py``; a float among
    the arguments is a constant, an int one of s32. ``real`` is the floating-point type, f32 or f64.
    """

    real: str

    def __call__(self, fn: str, *args: Lane) -> Lane:
        """``fn`` applied to values and numbers."""
        ...

    def part(self, name: str) -> AbstractContextManager[None]:
        """What is written within is called ``name`` in C, its constants too; the innermost counts.

        >>> with b.part("square"):  # doctest: +SKIP
        ...     square = b("mul", x, x)
        """
        ...


@dataclass(frozen=True, slots=True)
class Truth:
    """A comparison that a lowering leaves as a mask: ``yes`` in the lanes of it, else ``no``."""

    mask: Lane
    yes: float = 1.0
    no: float = 0.0


# -- what is right ------------------------------------------------------------------------------

#: Results of functions composed of several may be this far off.
COMPOSED = 1e-6


@dataclass(frozen=True, slots=True)
class Within:
    """``function`` of arrays of float64, and by how much a kernel's result may miss it.

    That is ``ulps`` units in the last place of the result, and ``absolute``. Parameters follow the
    operand as floats.
    """

    function: Callable[..., Any]
    ulps: float
    absolute: float = 0.0


@dataclass(frozen=True, slots=True)
class Monotone:
    """``function`` exactly, then rounded once if ``rounded``; it falls in none of its operands."""

    function: Callable[..., Any]
    rounded: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """1.0 where the comparison ``function`` holds, else 0.0."""

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An operator, whose meaning on intervals the reference has under the name ``rule``."""

    rule: str


Reference = Within | Monotone | Compared | Arithmetic


# -- the entry ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PostOp:
    """A function of epilogues.

    ``parameters`` are the numbers that follow the operands, each with its default or None.
    ``body`` is called with the operands and parameters of each use: it refuses wrong parameters,
    and returns what the function means in other functions, or None where ``lower`` and
    ``reference`` say it. ``lower(b, *operands, *parameters)`` writes the program of a kernel; None:
    that of the meaning. ``reference`` says what is right; None: what the meaning's roundings allow.
    """

    name: str
    operands: tuple[str, ...]
    parameters: tuple[tuple[str, float | None], ...]
    body: FunctionType
    lower: Callable[..., Lane | Truth] | None = None
    reference: Reference | None = None
    #: Whether ``lower`` may write lanes of f64 too, given the parameters.
    f64: bool | Callable[..., bool] = True
    #: Whether the function is an addition, so that integers of s32 stay exact.
    whole: bool = False
    #: Whether parameters must be finite.
    finite: bool = True
    #: Whether ``lower`` takes its first operand as a Truth where it is a comparison.
    condition: bool = False
    #: The function of sympy by name, or what makes sympy's terms; None: an unknown function.
    sympy: str | Callable[..., Any] | None = None
    #: Parameters to try the function with.
    samples: tuple[tuple[float, ...], ...] = ((),)
    #: Whether large operands try it as well as small ones.
    straight: bool = False
    #: Whether it is a user's; tilewright's own are part of the sources.
    own: bool = False
    home: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", self.body.__module__ or "__main__")

    def __repr__(self) -> str:
        return f"<post-op {self.name}>"

    def meaning(self, operands: tuple[Any, ...], parameters: tuple[float, ...]) -> Any:
        """What ``body`` makes of one use; None where it only looks at the parameters."""
        return self.body(*operands, *parameters)

    def has_f64(self, parameters: tuple[float, ...]) -> bool:
        """Whether ``lower`` may be used in lanes of f64."""
        return self.f64(*parameters) if callable(self.f64) else self.f64

    def __copy__(self) -> PostOp:
        return self

    def __deepcopy__(self, _memo: Any) -> PostOp:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return found, (self.name, self.home)


#: Every post-op by name: tilewright's own, and what users have defined.
REGISTRY: dict[str, PostOp] = {}


def found(name: str, home: str) -> PostOp:
    """The post-op of that name that the module ``home`` defines, which may have to be imported.

    SpecError where it defines none, as in a process that does not run the same program.
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
