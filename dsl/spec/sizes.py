"""Sizes of a spec (ints, or dims known only at the call), and checks that all specs share."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from .names import check_identifier

#: Largest value of a dim without ``max``.
MAX_SIZE = 2**62
#: Largest fixed size in a spec, and largest number of bytes of an operand: addresses have 48 bits.
#: The byte count of an operand that is padded to whole vectors then still fits into 64 bits.
MAX_FIXED = 2**48


def whole_number(value: object) -> int | None:
    """Return a Python or numpy integer as an int. Return None for a boolean or anything else."""
    if isinstance(value, bool) or getattr(value, "ndim", 0) != 0:
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def real_number(value: object) -> float | None:
    """Return a number as a float (Inf if it is too large). Return None for anything else.

    Booleans, texts and arrays are not numbers. Scalars of numpy and ml_dtypes are numbers.
    """
    truth = isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b"
    if truth or isinstance(value, (str, bytes)) or getattr(value, "ndim", 0) != 0:
        return None
    if not hasattr(value, "__float__"):
        value = whole_number(value)
    try:
        return None if value is None else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    except (TypeError, ValueError):
        return None


def check_count(value: object, what: str) -> int:
    """Return ``value`` as an int from 1 to 2**48, else raise SpecError."""
    count = whole_number(value)
    if count is None or not 1 <= count <= MAX_FIXED:
        raise SpecError(f"{what} must be a positive int", got=value, expected="1 to 2**48")
    return count


def call_text(
    name: str, given: Sequence[object], options: Mapping[str, tuple[object, object]]
) -> str:
    """Return Python code that calls ``name`` with ``given`` and with keywords.

    ``options`` maps keywords to (value, default). Keywords with their default are left out.
    """
    said = [repr(value) for value in given]
    said += [f"{key}={value!r}" for key, (value, default) in options.items() if value != default]
    return f"{name}({', '.join(said)})"


@dataclass(frozen=True, slots=True, repr=False)
class Dim:
    """A size that is known only at the call, from the shapes and strides of the arrays."""

    name: str
    multiple_of: int = 1
    max: int | None = None

    def __post_init__(self) -> None:
        check_identifier(self.name, "a dim")
        multiple = check_count(self.multiple_of, f"dim {self.name!r}: multiple_of")
        object.__setattr__(self, "multiple_of", multiple)
        if self.max is not None:
            most = whole_number(self.max)
            if most is None or not 0 <= most <= MAX_SIZE:
                raise SpecError(
                    f"dim {self.name!r}: max must be an int, 0 or more",
                    got=self.max,
                    expected="0 to 2**62",
                )
            object.__setattr__(self, "max", most)
        if self.max is not None and self.max < self.multiple_of:
            raise SpecError(
                f"dim {self.name!r}: no positive size is both a multiple of {self.multiple_of} "
                f"and at most {self.max}",
                hint="raise max or lower multiple_of",
            )

    def __repr__(self) -> str:
        options = {"multiple_of": (self.multiple_of, 1), "max": (self.max, None)}
        return call_text("dim", [self.name], options)

    def __mul__(self, other: object) -> Size:
        size = other if isinstance(other, Dim) else whole_number(other)
        return NotImplemented if size is None else joined_size((self, size))

    __rmul__ = __mul__

    @property
    def parts(self) -> tuple[Dim, ...]:
        """The dims whose values give the value of this one."""
        return (self,)

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the value, given the values of dims by name."""
        return sizes[self.name]


@dataclass(frozen=True, slots=True, repr=False)
class Joined(Dim):
    """The size of an axis that several axes become: a number times dims, sorted by name."""

    factor: int = 1
    dims: tuple[Dim, ...] = ()

    def __post_init__(self) -> None:
        pass

    def __repr__(self) -> str:
        numbers = [repr(self.factor)] * (self.factor != 1)
        return " * ".join((*numbers, *map(repr, self.dims)))

    @property
    def parts(self) -> tuple[Dim, ...]:
        """The dims."""
        return self.dims

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the value, given the values of dims by name."""
        return self.factor * math.prod(each.at(sizes) for each in self.dims)


@spelled(SpecTypeError)
def dim(name: str, multiple_of: int = 1, max: int | None = None) -> Dim:
    """Make a size that is known only when the kernel is called.

    The size is read from the arrays' shapes and strides. If a dim is used several times in a spec,
    all these sizes must be equal.

    Parameters
    ----------
    name : str
        An identifier, used in messages and as the C parameter's name.
    multiple_of : int
        The value is a multiple of this number, which allows faster kernels.
    max : int, optional
        Largest value.

    Returns
    -------
    Dim
        The size.

    Raises
    ------
    SpecError
        The name is not an identifier, or a limit is not possible.

    Examples
    --------
    >>> rows = tw.dim("m", multiple_of=2, max=1024)
    >>> kernel = tw.compile(tw.Gemm(rows, 3, 4))
    >>> b = np.ones((4, 3), np.float32)
    >>> kernel(np.ones((2, 4), np.float32), b).shape, kernel(np.ones((6, 4), np.float32), b).shape
    ((2, 3), (6, 3))
    """
    return Dim(name, multiple_of, max)


Size = int | Dim


def terms_of(size: Size) -> tuple[int, tuple[Dim, ...]]:
    """Return the number and the dims whose product a size is."""
    if isinstance(size, Joined):
        return size.factor, size.dims
    return (1, (size,)) if isinstance(size, Dim) else (size, ())


def joined_size(sizes: Iterable[Size]) -> Size:
    """Return the number of elements of axes of these sizes."""
    terms = [terms_of(size) for size in sizes]
    factor = math.prod(number for number, _ in terms)
    found = sorted((each for _, dims in terms for each in dims), key=lambda each: each.name)
    if not found or factor == 0:
        return factor
    if factor == 1 and len(found) == 1:
        return found[0]
    name = "*".join([str(factor)] * (factor != 1) + [each.name for each in found])
    most = math.prod(most_of(each) for each in found) * factor
    multiple = factor * math.prod(each.multiple_of for each in found)
    limit = int(most) if most < MAX_SIZE else None
    return Joined(name, multiple, limit, factor, tuple(found))


def dims_of(sizes: Iterable[Size]) -> Iterator[Dim]:
    """Yield the dims whose values give those of ``sizes``."""
    for size in sizes:
        if isinstance(size, Dim):
            yield from size.parts


def check_size(value: object, what: str, *, least: int = 0) -> Size:
    """Return ``value`` if it is a dim, or an int of at least ``least``; else raise SpecError."""
    if isinstance(value, Joined):
        raise SpecError(f"{what} is one dim", got=value, hint="x.reshape joins axes of a network")
    if isinstance(value, Dim):
        return value
    size = whole_number(value)
    if size is None:
        raise SpecError(f"{what} must be an int or tw.dim(...)", got=value)
    if not least <= size <= MAX_FIXED:
        raise SpecError(f"{what} is out of range", got=value, expected=f"{least} to 2**48")
    return size


def check_extent(sizes: Sequence[Size | None], itemsize: int, what: str) -> None:
    """Raise SpecError if an array with these ``sizes`` exceeds 2**48 bytes.

    Sizes that are not known yet count as 1. ``itemsize`` is the size of an element in bytes.
    """
    elements = math.prod(size for size in sizes if isinstance(size, int))
    if elements * itemsize > MAX_FIXED:
        raise SpecError(
            f"{what} is larger than memory can be",
            got=f"{elements} elements of {itemsize} bytes",
            expected="at most 2**48 bytes",
            hint="smaller sizes, leading dimensions and strides",
        )


def check_dims(sizes: Iterable[tuple[str, Dim]]) -> None:
    """Raise SpecError if two dims with the same name have different properties."""
    known: dict[str, Dim] = {}
    for _, size in sizes:
        if known.setdefault(size.name, size) != size:
            raise SpecError(
                f"dim {size.name!r} is declared twice with different properties",
                got=f"{known[size.name]} and {size}",
                hint="make one tw.dim and use it in both places",
            )


def most_of(size: int | Dim) -> float:
    """Return the largest value that ``size`` may have; infinity for a dim without ``max``."""
    if isinstance(size, int):
        return size
    return math.inf if size.max is None else size.max


class Spec:
    """The base class of all specs, which say what one C function computes.

    A spec is a frozen dataclass that prints as the Python that makes it. ``routine`` names the
    module that registers how specs of the class are planned (``plan/routine.py``). It is imported
    when the first of them is planned.
    """

    __slots__ = ()
    routine: ClassVar[str]

    @property
    def expressions(self) -> tuple[Any, ...]:
        """The expressions that the kernel computes, in which functions of the user may be."""
        return ()

    @property
    def real(self) -> Literal["f32", "f64"]:
        """The type in which expressions are computed."""
        return "f32"

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Return (C parameter, dim) for each size known only at the call, in parameter order."""
        raise NotImplementedError

    @property
    def slots(self) -> tuple[str, ...]:
        """The C parameters of all sizes that are known only at the call."""
        return tuple(slot for slot, _ in self.runtime_sizes())

    def words(self) -> list[str]:
        """Return the words with which the names of such kernels begin, such as "pack", "bf16"."""
        raise NotImplementedError


def sizes_word(*sizes: tuple[str, Size]) -> str:
    """Return sizes as a word: ``64x48xK`` for a k of the call, given (C parameter, size)."""
    return "x".join(name[0].upper() if isinstance(s, Dim) else str(s) for name, s in sizes)


def canonical(value: Any) -> str:
    """Return a text for a spec, a schedule or a part of one; equal values have equal texts.

    A user's post-op, which is equal only to itself, is represented by its name.
    """
    # Expressions have their own method for their text, which prints a shared subexpression once.
    # Below, it would be printed at each use, and the text could become huge.
    own = getattr(value, "canonical", None)
    if own is not None:
        return str(own(canonical))
    names = getattr(value, "__dataclass_fields__", None)
    if names is not None and value.__dataclass_params__.eq:
        inner = ",".join([f"{name}={canonical(getattr(value, name))}" for name in names])
        return f"{type(value).__name__}({inner})"
    if isinstance(value, tuple):
        return f"({','.join(map(canonical, value))})"
    return value.hex() if isinstance(value, float) else repr(value)
