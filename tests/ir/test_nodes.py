"""What nodes declare of their fields, and that the walk and the map reach all of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from support.operations import operations
from sympy import Expr

from tilewright import targets
from tilewright.generate import plan_for, program_for
from tilewright.ir.dataflow import addresses, matrices_of, reads, writes
from tilewright.ir.nest import (
    Argument,
    Bound,
    Call,
    Configuration,
    Name,
    NestNode,
    Program,
    SelectBatch,
    Selected,
    of_batch,
    operands_of,
    renamed,
)
from tilewright.ir.nodes import (
    Node,
    Role,
    Space,
    declared,
    holds,
    mapped,
    rewritten,
    roles_of,
    walk,
)
from tilewright.ir.ops import (
    Keep,
    Loop,
    MultiplyAdd,
    Store,
)
from tilewright.ir.tile_rules import RULES
from tilewright.ir.values import Address, MaskRegister, MatrixRegister, Register
from tilewright.ir.verify import NEST_RULES
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.vector import MulAdd, Vector
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.symbolic import ZERO, symbol

OPERATIONS: tuple[Any, ...] = operations()
NODES: tuple[Any, ...] = (*OPERATIONS, *get_args(NestNode))
PARTS: tuple[Any, ...] = (Address, MaskRegister, Argument, Bound, Selected, Configuration)
#: Values of which a node says what it does with them.
VALUES = (Register, MatrixRegister, MaskRegister, Address, Name, Expr, Space.POINTER, Space.COUNTER)
#: Text that names nothing which a program defines: types, instructions, ways, tiles, and words.
PLAIN_TEXT = {
    "type",
    "by",
    "element",
    "memory",
    "fn",
    "batch",
    "note",
    "text",
    "label",
    "part",
    "program",
    "source",
    "name",
}
YMM = targets.load("avx2").of("f32")[0]
UNIT = targets.load("amx").matrix
every_class = pytest.mark.parametrize("cls", NODES, ids=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", [*NODES, *PARTS], ids=lambda cls: cls.__name__)
def test_every_field_that_holds_a_value_says_what_is_done_with_it(cls: type[Any]) -> None:
    for name, annotation in declared(cls).items():
        if any(holds(annotation, value) for value in VALUES):
            assert roles_of(annotation), f"{cls.__name__}.{name} needs a role: see ir/nodes.py"
        elif holds(annotation, str):
            assert name in PLAIN_TEXT, f"{cls.__name__}.{name}: of what space is this name?"
        else:
            assert "Op" not in str(annotation) or Role.BODY in roles_of(annotation)


@every_class
def test_an_undeclared_class_has_no_rule_either(cls: type[Any]) -> None:
    assert issubclass(cls, Node)
    assert cls is Loop or cls in RULES or cls in NEST_RULES


# --- examples of every class, made from what it declares ---------------------------------------


def example(annotation: Any, numbers: count[int]) -> Any:
    """A value for a field: each name and each size in it begins with ``old``."""
    if Role.BODY in roles_of(annotation):
        return ()
    here = f"old{next(numbers)}"
    made: dict[Any, Any] = {
        Register: Register(here, YMM),
        MatrixRegister: MatrixRegister(here, UNIT, "f32", symbol(here), 16),  # type: ignore[arg-type]
        MaskRegister: MaskRegister(here, YMM, symbol(here)),
        Address: Address(here, symbol(here)),
        Name: Name(here),
        Expr: symbol(here),
        Argument: Argument(Name(here), symbol(here)),
        Bound: Bound(here, symbol(here)),
        Selected: Selected(Name(here), "f32", "strided", symbol(here)),
        Configuration: Configuration(UNIT, ((symbol(here), 64),)),  # type: ignore[arg-type]
        MulAdd: YMM.muladd[0],
        Vector: YMM,
        MatrixUnit: UNIT,
        int: 1,
        float: 1.0,
        bool: True,
        str: "f32",
    }
    if any(space in getattr(annotation, "__metadata__", ()) for space in Space):
        return here
    if hasattr(annotation, "__metadata__"):
        return example(get_args(annotation)[0], numbers)
    if get_origin(annotation) is tuple:
        return (example(get_args(annotation)[0], numbers),)
    if get_origin(annotation) in (Union, UnionType):
        known = [each for each in get_args(annotation) if each in VALUES] or get_args(annotation)
        return example(known[0], numbers)
    return made[annotation]


def examples(cls: type[Any]) -> Any:
    numbers = count()
    return cls(**{name: example(each, numbers) for name, each in declared(cls).items()})


def new(found: Any) -> Any:
    """The same with another name."""
    match found:
        case Register() | MatrixRegister() | MaskRegister():
            return type(found)(
                **{n: getattr(found, n) for n in declared(type(found))}
                | {"name": f"new{found.name[3:]}"}
            )
        case Name():
            return Name(f"new{found.text[3:]}")
        case str():
            return f"new{found[3:]}"
        case _:
            return found.xreplace({s: symbol(f"new{s.name[3:]}") for s in found.free_symbols})


@every_class
def test_the_map_reaches_everything_and_changes_nothing_by_itself(cls: type[Any]) -> None:
    node = examples(cls)
    after = node
    for what in VALUES:
        assert mapped(node, what, lambda found: found) is node
        if what is not Address:
            after = mapped(after, what, new)
    assert "old" not in repr(after)
    assert ("new" in repr(after)) == ("old" in repr(node))


def held(node: Any, what: type[Any]) -> list[Any]:
    """All that the map reaches."""
    found: list[Any] = []

    def seen(each: Any) -> Any:
        found.append(each)
        return each

    mapped(node, what, seen)
    return found


@every_class
def test_the_declarations_find_everything(cls: type[Any]) -> None:
    """What a class declares, and nothing else, is read, written or addressed."""
    node = examples(cls)
    assert {*reads(node), *writes(node)} == {*held(node, Register)}
    assert addresses(node) == tuple(held(node, Address))


@pytest.mark.parametrize("cls", OPERATIONS, ids=lambda cls: cls.__name__)
def test_an_operation_counts_an_access_for_each_address_that_it_reads_or_writes(
    cls: type[Any],
) -> None:
    node, roles = examples(cls), declared(cls).values()
    hints = sum(holds(each, Address) and Role.HINTS in roles_of(each) for each in roles)
    if cls is MultiplyAdd:
        node = MultiplyAdd(node.op, node.acc, node.x, Address("a", ZERO))
    assert len(list(node.accesses())) == len(addresses(node)) - hints


def test_what_is_updated_is_read_and_written() -> None:
    x, y, total = (Register(name, YMM) for name in ("x", "y", "total"))
    op = MultiplyAdd(YMM.muladd[0], total, x, y, product=Register("p", YMM))
    assert reads(op) == (total, x, y)
    assert writes(op) == (total, Register("p", YMM))
    assert reads(Keep(total, (x, y))) == (total, x, y)
    assert matrices_of(op) == ()


# --- programs ----------------------------------------------------------------------------------


def program(spec: Gemm, target: str = "avx2", **schedule: Any) -> Program:
    return program_for(plan_for(spec, Schedule(**schedule), targets.load(target)))


PROGRAMS = [
    lambda: program(Gemm(13, 21, 18), loops="nkmnk", block={"k": 6, "n": 16}, pack="ab"),
    lambda: program(Gemm(dim("m"), 20, dim("k"), batch=Strided(dim("count")))),
    lambda: program(Gemm(40, 20, 70, a="u8", b="s8", a_zero=3), "amx"),
]


@pytest.mark.parametrize("make", PROGRAMS)
def test_walk_and_map_go_through_whole_programs(make: Callable[[], Program]) -> None:
    found = make()
    for what in VALUES:
        assert mapped(found, what, lambda each: each) is found
    assert tuple(rewritten(found.nest, lambda node: node)) == found.nest
    assert not tuple(rewritten(found.nest, lambda node: None))
    other = mapped(found, Name, lambda name: Name(f"x_{name.text}"))
    assert operands_of(other.nest) == {Name(f"x_{n.text}") for n in operands_of(found.nest)}
    assert other.tiles == found.tiles
    for tile in found.tiles:
        every = [*walk(tile.body), *walk(tile.end)]
        again = mapped(tile, Register, lambda r: Register(f"{r.name}_", r.vector))
        for op, same in zip(every, [*walk(again.body), *walk(again.end)], strict=True):
            assert [r.name for r in reads(same)] == [f"{r.name}_" for r in reads(op)]
            assert isinstance(same, Store) == isinstance(op, Store)


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (Name("b"), "b"),
        (Name("b", 1), "b2"),
        (Name("b_packed", 1), "b2_packed"),
        (Name("b_tail_packed", 1), "b2_tail_packed"),
        (Name("sums", 2), "sums3"),
        (Name("a", matrix=True), "a_i"),
        (Name("b", 1, matrix=True), "b2_i"),
    ],
)
def test_what_c_calls_an_operand_of_a_product(name: Name, text: str) -> None:
    assert str(name) == text


def test_calls_within_a_batch_take_the_matrix_that_was_chosen() -> None:
    a, c = Name("a"), Name("c")
    call = Call("tile0", (Argument(a, ZERO), Argument(c, ZERO), Argument(None, ZERO)))
    node = of_batch(symbol("i"), (Selected(a, "f32", "strided", ZERO),), (call,))
    assert [name.symbol for name in call.arguments] == ["a", "c", ""]
    (inner,) = node.body
    assert isinstance(inner, Call)
    assert [each.symbol for each in inner.arguments] == ["a_i", "c", ""]
    (second,) = renamed(
        (node,), lambda name: Name("b", 1, name.matrix) if name.text == "a" else name
    )
    assert isinstance(second, SelectBatch)
    assert [each.offsets for each in second.selected] == ["b_offsets"]
    assert operands_of((second,)) == {Name("b", 1), Name("b", 1, True), c}
