"""Declare how nodes of a program use their fields; visit and rewrite nodes by these declarations.

Nodes are the operations of tile programs (``ops.py``) and the nodes of a nest (``nest.py``). A
field's annotation says how the node uses the field, for example ``Reads[Register]``,
``Writes[Address]``, ``Sizes[Expr]`` or ``Body["tuple[Op, ...]"]``. Code that needs the registers,
addresses, names, sizes or bodies of a node reads these declarations. A new class of nodes therefore
changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, get_args, overload

T = TypeVar("T")

# --- declarations ------------------------------------------------------------------------------


class Role(Enum):
    """The use that a node makes of the value in one of its fields."""

    READS = "reads"
    WRITES = "gives a value"
    UPDATES = "reads, and gives another value"
    HINTS = "speaks of, and leaves alone"
    SIZES = "depends on the sizes of"
    BODY = "contains"


Reads: TypeAlias = Annotated[T, Role.READS]
Writes: TypeAlias = Annotated[T, Role.WRITES]
Updates: TypeAlias = Annotated[T, Role.UPDATES]
Hints: TypeAlias = Annotated[T, Role.HINTS]
Sizes: TypeAlias = Annotated[T, Role.SIZES]
Body: TypeAlias = Annotated[T, Role.BODY]

READING = frozenset((Role.READS, Role.UPDATES))
WRITING = frozenset((Role.WRITES, Role.UPDATES))
EVERY_ROLE = frozenset(Role)


class Space(Enum):
    """The kind of thing that a name in a field stands for: a pointer, or a loop counter."""

    POINTER = "a pointer of a tile program: a parameter, a stack buffer, or what was pointed"
    COUNTER = "the counter of a loop"


PointerName: TypeAlias = Annotated[str, Space.POINTER]
CounterName: TypeAlias = Annotated[str, Space.COUNTER]


class Node:
    """An operation, or a node of a nest: a frozen dataclass that declares its fields.

    ``kind`` is the node's name in templates and messages.
    """

    __slots__ = ()
    kind: ClassVar[str]


N = TypeVar("N", bound=Node)


_DECLARED: dict[type[Any], Mapping[str, Any]] = {}


def declared(cls: type[Any]) -> Mapping[str, Any]:
    """Return the annotations of a dataclass's fields, by field name."""
    if cls not in _DECLARED:
        _DECLARED[cls] = {f.name: f.type for f in fields(cls)}
    return _DECLARED[cls]


def roles_of(annotation: Any) -> frozenset[Role]:
    """Return the roles, for example ``Role.READS``, that a field's annotation declares."""
    said = getattr(annotation, "__metadata__", ())
    return frozenset(each for each in said if isinstance(each, Role))


def holds(annotation: Any, what: Any) -> bool:
    """Return True if a field with this annotation may hold a ``what``, or a tuple of them."""
    if annotation is what or what in getattr(annotation, "__metadata__", ()):
        return True
    return any(holds(each, what) for each in get_args(annotation))


def _parts(annotation: Any) -> Iterator[type[Any]]:
    """Yield the dataclasses of which a field with this annotation may hold objects."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        yield annotation
    for each in get_args(annotation):
        yield from _parts(each)


# --- finding values in a node ------------------------------------------------------------------


@overload
def finder(what: type[T], roles: frozenset[Role]) -> Callable[[Node], tuple[T, ...]]: ...
@overload
def finder(what: Space, roles: frozenset[Role]) -> Callable[[Node], tuple[str, ...]]: ...
def finder(what: Any, roles: frozenset[Role]) -> Callable[[Node], tuple[Any, ...]]:
    """Return a function that finds all values of kind ``what`` in a node, except in its bodies.

    The function searches the fields that have one of ``roles``, in their order. It also searches
    the dataclasses that are values of the node's fields.
    """
    known: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {}

    def find(node: Any) -> tuple[Any, ...]:
        cls = type(node)
        if cls not in known:
            known[cls] = _getter(cls, what, roles, find) if is_dataclass(cls) else lambda node: ()
        return known[cls](node)

    return find


def _getter(
    cls: type[Any], what: Any, roles: frozenset[Role], find: Callable[[Any], tuple[Any, ...]]
) -> Callable[[Any], tuple[Any, ...]]:
    """Return the function that finds values of kind ``what`` in nodes of class ``cls``.

    The returned function reads only fields that may hold values of kind ``what``. ``find`` searches
    the dataclasses in these fields.
    """
    type_ = str if isinstance(what, Space) else what
    steps: list[tuple[str, bool, bool]] = []
    exact = True
    for name, annotation in declared(cls).items():
        said = roles_of(annotation)
        here = bool(said & roles) and holds(annotation, what)
        inner = _within(cls, name, what, roles, frozenset())
        if Role.BODY not in said and (here or inner):
            steps.append((name, here, inner))
            exact = exact and here and not inner and get_args(annotation)[0] is type_
    if not steps:
        return lambda node: ()
    if exact:
        get = attrgetter(*(name for name, *_ in steps))
        return get if len(steps) > 1 else lambda node: (get(node),)

    def taken(value: Any, here: bool, inner: bool) -> tuple[Any, ...]:
        if here and isinstance(value, type_):
            return (value,)
        if type(value) is tuple:
            return tuple(found for each in value for found in taken(each, here, inner))
        return find(value) if inner else ()

    def collect(node: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = ()
        for name, here, inner in steps:
            if (value := getattr(node, name)) is not None:
                found += taken(value, here, inner)
        return found

    return collect


def _within(
    cls: type[Any], name: str, what: Any, roles: frozenset[Role], seen: frozenset[type[Any]]
) -> bool:
    """Return True if a dataclass in field ``name`` of ``cls`` may contain a ``what``."""
    for part in _parts(declared(cls)[name]):
        for inner, annotation in declared(part).items() if part not in seen else ():
            if roles & roles_of(annotation) and holds(annotation, what):
                return True
            if _within(part, inner, what, roles, seen | {part}):
                return True
    return False


# --- bodies ------------------------------------------------------------------------------------


class _Bodies(dict[type[Any], tuple[str, ...]]):
    """For each class of nodes, the names of its fields that hold other nodes."""

    def __missing__(self, cls: type[Any]) -> tuple[str, ...]:
        found = declared(cls).items()
        names = tuple(name for name, each in found if Role.BODY in roles_of(each))
        self[cls] = names
        return names


_BODIES = _Bodies()


def walk(nodes: Iterable[N]) -> Iterator[N]:
    """Yield ``nodes`` and all nodes in their bodies; each node comes before those in its body."""
    for node in nodes:
        yield node
        for name in _BODIES[type(node)]:
            yield from walk(getattr(node, name))


def contains(node: Node) -> bool:
    """Return True if a node has a body, which may contain other nodes."""
    return bool(_BODIES[type(node)])


def inside(node: N) -> tuple[N, ...]:
    """Return the nodes that are directly in the bodies of ``node``."""
    return tuple(inner for name in _BODIES[type(node)] for inner in getattr(node, name))


def within(node: N, change: Callable[[tuple[Any, ...]], Iterable[Any]]) -> N:
    """Return ``node`` with its bodies rewritten by ``change``; ``node`` itself if none changes."""
    changed: dict[str, Any] = {}
    for name in _BODIES[type(node)]:
        body = getattr(node, name)
        after = tuple(change(body))
        if after != body:
            changed[name] = after
    return replace(node, **changed) if changed else node  # type: ignore[type-var]


def rewritten(nodes: Iterable[N], change: Callable[[N], N | None]) -> Iterator[N]:
    """Yield ``nodes`` rewritten by ``change``, inner nodes first; None from it removes a node."""
    for node in nodes:
        if _BODIES[type(node)]:
            after = change(within(node, lambda body: rewritten(body, change)))
        else:
            after = change(node)
        if after is not None:
            yield after


# --- the map -----------------------------------------------------------------------------------


def mapped(node: T, what: type[Any] | Space, change: Callable[[Any], Any]) -> T:
    """Return ``node`` with ``change`` applied to each ``what`` in it, at any depth.

    ``node`` may be a tuple of nodes. A node in which nothing changes is returned as the same
    object.
    """
    after: T = _mapped(node, what, change)
    return after


def _mapped(node: Any, what: Any, change: Callable[[Any], Any]) -> Any:
    if type(node) is tuple:
        after = tuple(_mapped(each, what, change) for each in node)
        same = all(new is old for new, old in zip(after, node, strict=True))
        return node if same else after
    if not isinstance(what, Space) and isinstance(node, what):
        return change(node)
    changed = {}
    for name, named in _mapped_fields(type(node), what):
        value = getattr(node, name)
        new = change(value) if named and type(value) is str else _mapped(value, what, change)
        if new is not value:
            changed[name] = new
    return replace(node, **changed) if changed else node


_MAPPED: dict[tuple[type[Any], Any], tuple[tuple[str, bool], ...]] = {}


def _mapped_fields(cls: type[Any], what: Any) -> tuple[tuple[str, bool], ...]:
    """Return the names of the fields of ``cls`` that may contain a ``what``, each with a flag.

    The flag is True if ``what`` is a ``Space`` and the field is text that names such an object.
    """
    if (cls, what) not in _MAPPED:
        named = isinstance(what, Space)
        found = declared(cls).items() if is_dataclass(cls) else ()
        _MAPPED[cls, what] = tuple(
            (name, named and holds(annotation, what))
            for name, annotation in found
            if Role.BODY in roles_of(annotation) or _may_hold(annotation, what, frozenset())
        )
    return _MAPPED[cls, what]


def _may_hold(annotation: Any, what: Any, seen: frozenset[type[Any]]) -> bool:
    """Return True if a field with this annotation may contain a ``what``, at any depth."""
    if holds(annotation, what):
        return True
    inner = (each for part in _parts(annotation) if part not in seen
             for each in declared(part).values())  # fmt: skip
    after = seen | {*_parts(annotation)}
    return any(Role.BODY in roles_of(each) or _may_hold(each, what, after) for each in inner)
