"""What a cache lacks: what passes into it while a nest of loops runs.

A nest is pieces of work, each of which touches a region of each operand once; loops that repeat it
with other regions of some operands, and the same of the others; and nests that follow each other.
What a loop does not change is in the cache still when the loop comes back to it, if all that one
trip touches is: that is the distance between two uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, gcd
from typing import Protocol

#: A cache keeps all until the next use of what is touched up to so much of its size between, and
#: nothing from so much on.
_KEPT, _GONE = 0.75, 1.75
#: Lines that have the same place in a cache, as far as addresses decide it.
WAYS = 8
#: Bytes of a row from which on a core fetches the rest ahead.
_SHORT = 512
#: Bytes of a page, and pages whose places a core knows without looking them up.
PAGE, PAGES = 4096, 64


@dataclass(frozen=True, slots=True)
class Region:
    """Memory in ``rows`` of ``run`` bytes each, which begin ``stride`` bytes apart."""

    rows: float
    run: float
    stride: float

    @property
    def span(self) -> float:
        """The bytes from its beginning to its end."""
        return (self.rows - 1) * self.stride + self.run

    @property
    def scattered(self) -> float:
        """How much of it is not fetched ahead: its rows are short, and far apart."""
        apart = self.rows > 1 and self.stride >= 2 * self.run
        return max(0.0, 1 - self.run / _SHORT) if apart else 0.0

    def part(self, share: float) -> Region:
        """This share of it, in whole rows if it has several."""
        if self.rows > 1:
            return Region(max(1.0, self.rows * share), self.run, self.stride)
        return Region(1, self.run * share, self.stride * share)

    def units(self, size: int) -> float:
        """How many lines, or pages, of ``size`` bytes it lies in."""
        if not self.run:
            return 0.0
        aligned = self.stride % size == 0
        begun = self.run / size if self.run % size == 0 else self.run // size + 1
        each = begun if aligned else self.run / size + 1 - 1 / size
        return max(1.0, min(self.rows * each, ceil(self.span / size) + (0 if aligned else 1)))


class Holds(Protocol):
    """A cache, or what else keeps what was used last: ``size`` of what ``taken`` counts."""

    @property
    def size(self) -> float:
        """How much it holds."""

    def taken(self, region: Region) -> float:
        """How much of it a region takes."""

    def crowded(self, region: Region) -> float:
        """How large it would have to be for a region that may not lie everywhere in it."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A cache of lines, ``size`` in bytes. With ``places`` an address has few places in it."""

    size: int
    line: int
    places: bool

    def taken(self, region: Region) -> float:
        """Bytes of its lines."""
        return region.units(self.line) * self.line

    def crowded(self, region: Region) -> float:
        """Rows that begin a power of two apart share few sets."""
        taken = self.taken(region)
        if not (self.places and taken) or region.rows <= 1 or region.stride % self.line:
            return taken
        sets = 1 << (self.size // (self.line * WAYS)).bit_length() - 1
        apart = gcd(int(region.stride) // self.line, sets)
        return taken * max(1.0, apart / -(-region.run // self.line))


def places(stride: int, line: int) -> int:
    """How many lines that begin ``stride`` bytes apart the first cache holds at once."""
    sets = PAGE // line
    return WAYS * sets if stride % line else WAYS * sets // gcd(stride // line, sets)


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages whose places a core knows without looking them up; ``size`` of them."""

    size: int

    def taken(self, region: Region) -> float:
        """Pages that a region lies in."""
        return region.units(PAGE)

    crowded = taken


# --- nests ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cycles:
    """What a piece of work takes by itself, with all it reads in the first cache.

    ``bounds`` are cycles by what bounds them, which follow each other. ``crowded`` bytes are read
    anew though they were read just before, as their places in the cache are taken.
    """

    bounds: Mapping[str, float] = field(default_factory=dict)
    crowded: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self.bounds.values())

    def __add__(self, other: Cycles) -> Cycles:
        names = dict.fromkeys((*self.bounds, *other.bounds))
        bounds = {n: self.bounds.get(n, 0.0) + other.bounds.get(n, 0.0) for n in names}
        return Cycles(bounds, self.crowded + other.crowded)

    def times(self, count: float) -> Cycles:
        """``count`` of it, one after another."""
        bounds = {name: cycles * count for name, cycles in self.bounds.items()}
        return Cycles(bounds, self.crowded * count)


@dataclass(frozen=True, slots=True)
class Piece:
    """Work that touches a region of each operand once."""

    regions: Mapping[str, Region]
    work: Cycles


@dataclass(frozen=True, slots=True)
class Repeat:
    """``body`` so many times; each time with other regions of the operands that it ``moves``.

    ``regions`` are those of all trips together. Threads may share the trips if it is ``parallel``;
    the last one is then so much shorter that ``last`` of it is left.
    """

    trips: float
    moves: frozenset[str]
    body: Nest
    regions: Mapping[str, Region]
    parallel: bool = False
    last: float = 1.0


@dataclass(frozen=True, slots=True)
class Series:
    """Nests that follow each other; each but the first has other regions of what it ``moves``.

    ``together``: its parallel loops are one region.
    """

    parts: tuple[Nest, ...]
    moves: frozenset[str]
    regions: Mapping[str, Region]
    together: bool = False


Nest = Piece | Repeat | Series


def work(nest: Nest) -> Cycles:
    """The work of a whole nest."""
    match nest:
        case Piece():
            return nest.work
        case Repeat():
            return work(nest.body).times(nest.trips)
        case Series():
            return sum(map(work, nest.parts), Cycles())


def passing(nest: Nest, cache: Holds) -> dict[str, float]:
    """What of each operand passes into an empty cache."""
    match nest:
        case Piece():
            return {name: cache.taken(region) for name, region in nest.regions.items()}
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
    """How often what passes in one trip passes in all; ``left`` the cache is what that share of it.

    Regions of neighbouring trips share lines.
    """
    new = 1.0
    if name in nest.moves:
        new = cache.taken(nest.regions[name]) / max(1.0, cache.taken(nest.body.regions[name]))
    return new + left * max(0.0, nest.trips - new)


def _at_least_once(found: dict[str, float], nest: Nest, cache: Holds) -> dict[str, float]:
    """Regions that share lines are not brought twice where the cache holds all that is touched."""
    left = lost(nest, cache)
    whole = {name: cache.taken(nest.regions[name]) for name in found}
    return {n: min(x, whole[n] + left[n] * max(0.0, x - whole[n])) for n, x in found.items()}


def lost(nest: Nest, cache: Holds) -> dict[str, float]:
    """The share of each operand of a nest that has left the cache when the nest comes again."""
    distance = sum(map(cache.taken, nest.regions.values()))
    return {
        name: gone(max(distance, cache.crowded(region)), cache.size)
        for name, region in nest.regions.items()
    }


def coming(nest: Nest, cache: Holds, *, cold: bool) -> dict[str, float]:
    """What of each operand comes into a cache from beyond it in one of many calls.

    ``cold``: nothing is left of the call before.
    """
    moved = passing(nest, cache)
    if cold:
        return moved
    left = lost(nest, cache)
    return {
        name: max(0.0, size - (1 - left[name]) * cache.taken(nest.regions[name]))
        for name, size in moved.items()
    }


def scattered(nest: Nest) -> dict[str, float]:
    """The share of each operand that is read in rows which nothing fetches ahead."""
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
    """The share that is gone from a place for ``size`` after so much was touched."""
    return min(1.0, max(0.0, (distance / size - _KEPT) / (_GONE - _KEPT)))
