"""Estimate the bytes that a nest of loops transfers into a cache.

A nest is one of these: a piece of work, which uses a region of each operand once; a loop that
repeats a nest with other regions of some operands, and the same regions of the others; or several
nests that follow each other. A region that each iteration uses again is still in the cache if all
that an iteration uses fits in it: this amount is the distance between two uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from math import ceil, gcd
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

#: The distance between two uses of data is the number of other bytes that are used between them. A
#: cache keeps all of the data if the distance is at most ``_KEPT`` times its size, and loses all of
#: them if it is at least ``_GONE`` times its size.
_KEPT, _GONE = 0.75, 1.75
#: Assumed number of cache lines in a set of a cache.
WAYS = 8
#: If rows are far apart, hardware prefetches only a part of each row with fewer bytes than this.
_SHORT = 512
#: ``PAGE`` is the size of a page in bytes. ``PAGES`` is the number of pages that the TLB holds.
PAGE, PAGES = 4096, 64


@dataclass(frozen=True, slots=True)
class Region:
    """Memory in ``rows`` of ``run`` bytes each, which begin ``stride`` bytes apart."""

    rows: float
    run: float
    stride: float

    @property
    def span(self) -> float:
        """The number of bytes from the first row's start to the last row's end."""
        return (self.rows - 1) * self.stride + self.run

    @property
    def scattered(self) -> float:
        """The share of the region that is not prefetched: its rows are short and far apart."""
        apart = self.rows > 1 and self.stride >= 2 * self.run
        return max(0.0, 1 - self.run / _SHORT) if apart else 0.0

    def part(self, share: float) -> Region:
        """Return a region of the given share of this region's size.

        A region of several rows is shortened by whole rows.
        """
        if self.rows > 1:
            return Region(max(1.0, self.rows * share), self.run, self.stride)
        return Region(1, self.run * share, self.stride * share)

    def units(self, size: int) -> float:
        """Return the number of cache lines, or pages, of ``size`` bytes that the region touches."""
        if not self.run:
            return 0.0
        aligned = self.stride % size == 0
        begun = self.run / size if self.run % size == 0 else self.run // size + 1
        each = begun if aligned else self.run / size + 1 - 1 / size
        return max(1.0, min(self.rows * each, ceil(self.span / size) + (0 if aligned else 1)))


class Holds(Protocol):
    """A cache or a TLB, which keeps the data that were used last. All numbers have one unit."""

    @property
    def size(self) -> float:
        """The capacity, for example in bytes."""

    def taken(self, region: Region) -> float:
        """Return the part of the capacity that a region takes."""

    def crowded(self, region: Region) -> float:
        """Return the capacity that a cache must have to hold the region.

        It exceeds the region's size if the region uses only some sets of the cache.
        """


@dataclass(frozen=True, slots=True)
class Lines:
    """A cache of ``size`` bytes. If ``places``, the address of a line selects one of its sets."""

    size: int
    line: int
    places: bool

    def taken(self, region: Region) -> float:
        """Return the bytes of the cache lines that contain a region."""
        return region.units(self.line) * self.line

    def crowded(self, region: Region) -> float:
        """Return the size in bytes that the cache must have to hold the region.

        It exceeds the region's size if rows begin a power of two apart, because they share few
        sets.
        """
        taken = self.taken(region)
        if not (self.places and taken) or region.rows <= 1 or region.stride % self.line:
            return taken
        sets = 1 << (self.size // (self.line * WAYS)).bit_length() - 1
        apart = gcd(int(region.stride) // self.line, sets)
        return taken * max(1.0, apart / -(-region.run // self.line))


def places(stride: int, line: int) -> int:
    """Return the number of cache lines, ``stride`` bytes apart, that L1 holds at the same time."""
    sets = PAGE // line
    return WAYS * sets if stride % line else WAYS * sets // gcd(stride // line, sets)


@dataclass(frozen=True, slots=True)
class Pages:
    """A TLB, which holds the addresses of ``size`` pages."""

    size: int

    def taken(self, region: Region) -> float:
        """Return the number of pages that contain a region."""
        return region.units(PAGE)

    crowded = taken


# --- nests ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cycles:
    """The time of a piece of work if all that it reads is in L1.

    ``bounds`` maps the name of each limit to the cycles that it takes. These times follow each
    other. ``crowded`` is the number of bytes that must be read from L2 again, because too many
    cache lines share their set in L1.
    """

    bounds: Mapping[str, float] = field(default_factory=dict)
    crowded: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all cycles."""
        return sum(self.bounds.values())

    def __add__(self, other: Cycles) -> Cycles:
        names = dict.fromkeys((*self.bounds, *other.bounds))
        bounds = {n: self.bounds.get(n, 0.0) + other.bounds.get(n, 0.0) for n in names}
        return Cycles(bounds, self.crowded + other.crowded)

    def times(self, count: float) -> Cycles:
        """Return the time of ``count`` such pieces of work, one after another."""
        bounds = {name: cycles * count for name, cycles in self.bounds.items()}
        return Cycles(bounds, self.crowded * count)


@dataclass(frozen=True, slots=True)
class _Known:
    """The base class of nests. ``known`` keeps the results of functions of a nest.

    A nest never changes. The results are kept because each stage of a network is in many groups
    that are compared.
    """

    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Piece(_Known):
    """Work that uses a region of each operand once."""

    regions: Mapping[str, Region]
    work: Cycles


@dataclass(frozen=True, slots=True)
class Repeat(_Known):
    """A loop that runs ``body`` ``trips`` times.

    Each iteration uses other regions of the operands in ``moves``, and the same regions of the
    others. ``regions`` are those of all iterations together. If ``parallel``, threads may share the
    iterations. The last iteration then does the share ``last`` of the work of another one.
    """

    trips: float
    moves: frozenset[str]
    body: Nest
    regions: Mapping[str, Region]
    parallel: bool = False
    last: float = 1.0


@dataclass(frozen=True, slots=True)
class Series(_Known):
    """Nests that run one after another.

    Each uses other regions of the operands in ``moves`` than the nests before it. ``regions`` are
    those of all nests together. If ``together``, their parallel loops are one parallel region.
    """

    parts: tuple[Nest, ...]
    moves: frozenset[str]
    regions: Mapping[str, Region]
    together: bool = False


Nest = Piece | Repeat | Series
P = ParamSpec("P")
T = TypeVar("T")


def _kept(find: Callable[Concatenate[Nest, P], T]) -> Callable[Concatenate[Nest, P], T]:
    """Return ``find``, a function of a nest, such that each nest keeps its results."""

    def found(nest: Nest, /, *further: P.args, **named: P.kwargs) -> T:
        key = find, further, *named.items()
        if key not in nest.known:
            nest.known[key] = find(nest, *further, **named)
        result: T = nest.known[key]
        return result

    return wraps(find)(found)


@_kept
def work(nest: Nest) -> Cycles:
    """Return the time of a whole nest if all data are in L1."""
    match nest:
        case Piece():
            return nest.work
        case Repeat():
            return work(nest.body).times(nest.trips)
        case Series():
            return sum(map(work, nest.parts), Cycles())


@_kept
def taken(nest: Nest, cache: Holds) -> dict[str, float]:
    """Return the part of the cache's capacity that each operand takes."""
    return {name: cache.taken(region) for name, region in nest.regions.items()}


@_kept
def passing(nest: Nest, cache: Holds) -> dict[str, float]:
    """Return the transfer of each operand into a cache that is empty before the nest runs."""
    match nest:
        case Piece():
            return taken(nest, cache)
        case Repeat():
            once = passing(nest.body, cache)
            left = lost(nest.body, cache)
            found = {n: x * _times(nest, n, left[n], cache) for n, x in once.items()}
        case Series():
            found = {}
            for part in nest.parts:
                left = lost(part, cache)
                for name, moved in passing(part, cache).items():
                    new = name in nest.moves or name not in found
                    found[name] = found.get(name, 0.0) + moved * (1 if new else left[name])
    return _at_least_once(found, nest, cache)


def _times(nest: Repeat, name: str, left: float, cache: Holds) -> float:
    """Return the transfer of an operand in the whole loop, as a multiple of one iteration's.

    ``left`` is the share of the operand that has left the cache when the next iteration begins. The
    result may be less than the number of trips, because regions of neighbouring iterations may
    share cache lines.
    """
    new = 1.0
    if name in nest.moves:
        new = taken(nest, cache)[name] / max(1.0, taken(nest.body, cache)[name])
    return new + left * max(0.0, nest.trips - new)


def _at_least_once(found: dict[str, float], nest: Nest, cache: Holds) -> dict[str, float]:
    """Return the transfers ``found``, limited by the size of each operand.

    If the cache holds all operands, each of their cache lines arrives only once.
    """
    left, whole = lost(nest, cache), taken(nest, cache)
    return {n: min(x, whole[n] + left[n] * max(0.0, x - whole[n])) for n, x in found.items()}


@_kept
def lost(nest: Nest, cache: Holds) -> dict[str, float]:
    """Return the share of each operand that has left the cache when the nest runs again."""
    distance = sum(taken(nest, cache).values())
    return {
        name: gone(max(distance, cache.crowded(region)), cache.size)
        for name, region in nest.regions.items()
    }


def coming(nest: Nest, cache: Holds, *, cold: bool) -> dict[str, float]:
    """Return how much of each operand one call of the kernel transfers into a cache.

    The kernel is called many times. If ``cold`` is True, the cache has lost all data of the
    previous call.
    """
    moved = passing(nest, cache)
    if cold:
        return moved
    left, whole = lost(nest, cache), taken(nest, cache)
    return {name: max(0.0, size - (1 - left[name]) * whole[name]) for name, size in moved.items()}


def scattered(nest: Nest) -> dict[str, float]:
    """Return the share of each operand that is not prefetched: short rows that are far apart."""
    found: dict[str, list[float]] = {}
    for times, piece in _pieces(nest, 1.0):
        for name, region in piece.regions.items():
            both = found.setdefault(name, [0.0, 0.0])
            size = times * region.rows * region.run
            both[0] += size
            both[1] += size * region.scattered
    return {name: part / whole if whole else 0.0 for name, (whole, part) in found.items()}


def _pieces(nest: Nest, times: float) -> Iterator[tuple[float, Piece]]:
    match nest:
        case Piece():
            yield times, nest
        case Repeat():
            yield from _pieces(nest.body, times * nest.trips)
        case Series():
            for part in nest.parts:
                yield from _pieces(part, times)


def gone(distance: float, size: float) -> float:
    """Return the share of data that a cache loses while a program uses other data.

    The cache has ``size`` bytes, and ``distance`` is the number of bytes of the other data.
    """
    return min(1.0, max(0.0, (distance / size - _KEPT) / (_GONE - _KEPT)))
