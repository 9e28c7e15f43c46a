"""The rules of programs: each is seen to refuse something, by a message that names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
from support.operations import operations
from sympy import Integer

from tilewright import targets
from tilewright.errors import PlanError
from tilewright.generate import plan_for, program_for, verified
from tilewright.ir.nest import (
    Beside,
    BlockLoop,
    Call,
    Configure,
    Name,
    NestNode,
    Pack,
    Program,
    SelectBatch,
    Selected,
    When,
    WhenSame,
)
from tilewright.ir.nodes import rewritten
from tilewright.ir.ops import (
    Advance,
    Apply,
    Broadcast,
    Copy,
    FillLanes,
    Hide,
    Interleave,
    Join,
    Keep,
    Load,
    LoadMatrix,
    LoadSeveral,
    Loop,
    MakeMask,
    MultiplyAdd,
    MultiplyBlock,
    MultiplyMatrices,
    Note,
    Op,
    Parameter,
    Pick,
    Point,
    PointBatch,
    Prefetch,
    ReadRows,
    Splat,
    StackBuffer,
    Store,
    StoreMatrix,
    SumLanes,
    Table,
    TakeLanes,
    TileProgram,
    Unpack,
    Unzip,
    WriteRow,
    Zero,
    ZeroMatrix,
)
from tilewright.ir.tile_rules import RULES
from tilewright.ir.values import Address, MaskRegister, MatrixRegister, Register
from tilewright.ir.verify import NEST_RULES, verify_tile
from tilewright.isa.vector import MulAdd
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Addresses, Packed, Strided
from tilewright.spec.schedule import Schedule
from tilewright.symbolic import ONE, ZERO, symbol

AVX2, AVX512, NEON, AMX = map(targets.load, ("avx2", "avx512", "neon", "amx"))
YMM, XMM, F32 = AVX2.of("f32")
F64, S32, S16 = AVX2.of("f64")[0], AVX2.of("s32")[0], AVX2.of("s16")[0]
BYTE = AVX2.of("u8")[0]
QUAD = NEON.of("f32")[0]
ZMM = AVX512.of("f32")[0]
UNIT = AMX.matrix
assert UNIT is not None

PARAMETERS = (
    Parameter("a", "in"),
    Parameter("c", "out"),
    Parameter("h", "in", "f16"),
    Parameter("q", "in", "s8"),
    Parameter("t", "table"),
    Parameter("t_at", "at"),
    Parameter("m", "size"),
    Parameter("alpha", "scalar"),
)
A, C, H, Q = (Address(name, ZERO) for name in ("a", "c", "h", "q"))
X, Y, W = (Register(name, YMM) for name in "xyw")
NARROW, DOUBLE, ONE_LANE = Register("n", XMM), Register("d", F64), Register("o", F32)
WHOLE, PAIRS = Register("i", S32), Register("p", S16)
SMALL = Register("z", QUAD)
ACC, LEFT, RIGHT = (
    MatrixRegister(name, UNIT, element, Integer(rows), columns)
    for name, element, rows, columns in (
        ("acc", "s32", 16, 16), ("x", "s8", 16, 64), ("y", "s8", 16, 64)
    )
)  # fmt: skip
MASK = MaskRegister("mask", YMM, Integer(5))
STACK_BUFFER = StackBuffer("r", "f32", 8)


def tile(*ops: Op, end: tuple[Op, ...] = (), element: str = "f32") -> TileProgram:
    return TileProgram("tile0", element, PARAMETERS, ops, end, "")


def muladd(vector: object, form: str, x: str = "") -> MulAdd:
    found: tuple[MulAdd, ...] = vector.muladd  # type: ignore[attr-defined]
    return next(op for op in found if op.form == form and op.x == x)


BY_BROADCAST = muladd(YMM, "broadcast")
BY_PAIRS = muladd(S32, "broadcast", "s16")
BY_LANE = muladd(QUAD, "lane")
PRODUCTS = UNIT.products["s32"]
BYTES = next(op for op in PRODUCTS if (op.x, op.y) == ("s8", "s8"))
KNOWN: tuple[Op, ...] = (
    Zero(X), Zero(Y), Zero(NARROW), Zero(DOUBLE), Zero(ONE_LANE), Zero(WHOLE),
)  # fmt: skip
MATRICES = ZeroMatrix(ACC), LoadMatrix(LEFT, Q, Integer(64)), LoadMatrix(RIGHT, Q, Integer(64))

#: Illegal operations: what stands before, the one that is refused, and what is said of it.
REFUSED: list[tuple[tuple[Op, ...], Op, str]] = [
    # What holds for all of them.
    ((), Apply(W, "add", (X, X)), "reads x undefined"),
    (KNOWN, Zero(X), "defines x twice"),
    (KNOWN, Zero(SMALL), "uses <q: 4 f32>"),
    (KNOWN, Apply(W, "add", (X, Register("n", YMM))), "reads n, which is <xmm: 4 f32>"),
    (KNOWN, Store(replace(C, offset=symbol("k")), X), "depends on k"),
    (KNOWN, Store(Address("nowhere", ZERO), X), "nowhere is no pointer"),
    (KNOWN, Store(C, X, MASK), "uses a mask never made"),
    # Comments.
    ((), Note("ends */ the comment"), "is no comment of one line"),
    # Pointers.
    ((), Point("p", "nowhere", ZERO, "f32"), "nowhere is no operand"),
    ((), Point("p", "a", ZERO, "f64"), "takes f32 of a for f64"),
    ((), Point("a", "a", ZERO, "f32"), "defines a twice"),
    ((), PointBatch("p", "a", "i", ZERO, "f32", "strided", ONE), "is of no loop over i"),
    ((), PointBatch("p", "c", "i", ZERO, "f32", "strided", ONE), "c is no operand"),
    ((), Advance("t", ONE), "t is no pointer"),
    ((), Hide("a"), "on avx2"),
    ((), Prefetch(Address("nowhere", ZERO)), "nowhere is no pointer"),
    ((), StackBuffer("r", "f32", 0), "of 0 f32"),
    ((STACK_BUFFER,), STACK_BUFFER, "defines r twice"),
    # Memory.
    ((), MakeMask(MaskRegister("mask", F32, ONE)), "masks <scalar: 1 f32>"),
    ((), MakeMask(replace(MASK, active=Integer(9))), "touches 9 of 8 elements"),
    ((), Load(X, A, 9), "touches 9 of 8 elements"),
    ((), Load(X, A, 3), "of 3 lanes of <ymm: 8 f32>"),
    (KNOWN, Store(C, X, Integer(3)), "of 3 lanes of <ymm: 8 f32>"),
    ((), LoadSeveral((X, Y), A), "of 2 vectors <ymm: 8 f32>"),
    ((), LoadSeveral((X, NARROW), A), "mixes <ymm: 8 f32> and <xmm: 4 f32>"),
    ((), Copy(C, A, "f64", ONE), "takes f32 of a for f64"),
    ((), Copy(A, A, "f32", ONE), "writes a, an input"),
    ((), Copy(C, A, "f32", Integer(-1)), "of -1 f32"),
    ((), Load(X, A, None, "s8"), "of <ymm: 8 f32> as s8"),
    ((), Load(DOUBLE, A), "takes f32 of a for f64"),
    ((), Load(WHOLE, Q, None, "s8", 3), "in groups of 3 s8"),
    ((MakeMask(MASK),), Load(NARROW, A, MASK), "by a mask of <ymm: 8 f32>"),
    ((STACK_BUFFER,), Load(X, Address("r", ONE)), "not inside of the 8 elements"),
    ((STACK_BUFFER,), Load(X, Address("r", symbol("m"))), "not inside of the 8 elements"),
    (KNOWN, Store(C, X, None, "f8_e4m3"), "of <ymm: 8 f32> as f8_e4m3"),
    (KNOWN, Store(A, X), "writes a, an input"),
    (KNOWN, Store(C, DOUBLE), "takes f32 of c for f64"),
    (KNOWN, Store(C, WHOLE, None, "s8", 3), "in groups of 3 s8"),
    ((), Broadcast(X, H, 3, None, "f16"), "of 3 f16 over <ymm: 8 f32>"),
    ((), Broadcast(PAIRS, Q, 2, None, "s8"), "of 2 s8 over <ymm: 16 s16>"),
    ((), Broadcast(X, A, 1, Integer(2)), "touches 2 of 1 elements"),
    # Registers.
    ((Zero(PAIRS),), Apply(PAIRS, "add", (PAIRS, PAIRS)), "of 'add'"),
    (KNOWN, Pick(W, X, 99, "f16"), "takes element 99 of f16"),
    (KNOWN, Pick(W, NARROW, 0, "f16"), "mixes <ymm: 8 f32> and <xmm: 4 f32>"),
    (KNOWN, Splat(W, "beta"), "beta is no number"),
    (KNOWN, Splat(Register("w", S32), "alpha"), "spreads f32 over s32"),
    (KNOWN, Splat(W, NARROW), "spreads <xmm: 4 f32>"),
    (KNOWN, Splat(Register("w", S32), 0.5), "of 0.5 over s32"),
    ((), Splat(PAIRS, 1.5, 2), "in groups of 2"),
        (KNOWN, Apply(W, "add", (X, DOUBLE)), "add on <ymm: 4 f64> with <ymm: 8 f32>"),
    (KNOWN, Apply(W, "mul", (X, WHOLE)), "mul on <ymm: 8 s32> with <ymm: 8 f32>"),
    (KNOWN, Interleave(W, X, Y, 3, odd=False), "of blocks of 3"),
    (KNOWN, Interleave(W, X, NARROW, 1, odd=False), "mixes <ymm: 8 f32> and <xmm: 4 f32>"),
    (KNOWN, FillLanes(W, X, Y, 9), "touches 9 of 8 elements"),
    (KNOWN, FillLanes(W, X, NARROW, 3), "mixes <ymm: 8 f32> and <xmm: 4 f32>"),
    (KNOWN, FillLanes(PAIRS, PAIRS, PAIRS, 3), "reads p undefined"),
    (KNOWN, FillLanes(W, X, Y, MASK), "uses a mask never made"),
    ((*KNOWN, MakeMask(MASK)), FillLanes(Register("w", XMM), NARROW, NARROW, MASK), "by a mask of"),
    (KNOWN, TakeLanes(W, X, 8), "from lane 8 on"),
    (KNOWN, TakeLanes(W, X, 3), "has no instruction"),
    (KNOWN, TakeLanes(Register("w", F32), X, 1), "from lane 1 on"),
    (KNOWN, TakeLanes(Register("w", AVX2.of("f64")[-1]), X), "into <scalar: 1 f64>"),
    (KNOWN, SumLanes(W, X), "into <ymm: 8 f32>"),
    (KNOWN, SumLanes(Register("w", AVX2.of("f64")[-1]), X), "into <scalar: 1 f64>"),
    (KNOWN, Apply(W, "cosine", (X,)), "of 'cosine'"),
    (KNOWN, Apply(W, "shl", (X, 3)), "of 'shl'"),
    (KNOWN, Apply(W, "add", (X,)), "add of 1 arguments"),
    (KNOWN, Apply(W, "add", (X, NARROW)), "add on <xmm: 4 f32> with <ymm: 8 f32>"),
    (KNOWN, Apply(W, "lt", (X, Y)), "lt on <ymm: 8 f32> with <ymm: 8 f32>"),
    (KNOWN, Apply(W, "select", (X, X, Y)), "select on <ymm: 8 f32> with <ymm: 8 f32>"),
    (KNOWN, Apply(Register("w", S32), "shl", (WHOLE, 32)), "shl by 32"),
    (KNOWN, Apply(Register("w", S32), "add", (WHOLE, 1)), "add by 1"),
    (KNOWN, Unzip(W, X, Y, 4, odd=False), "of blocks of 4"),
    (KNOWN, Unpack(W, X, "u4", 0), "of field 0 of u4"),
    (KNOWN, Join(W, X, Y), "has no instruction on <ymm: 8 f32>"),
    (KNOWN, Table(Register("new", F64), (1.0,) * 16), "has no instruction on <ymm: 4 f64>"),
    (KNOWN, Unpack(W, Y, "u4", 0, table=X), "by lanes of <ymm: 8 f32>"),
    (KNOWN, Unpack(W, NARROW, "f4_e2m1", 0), "by lanes of <xmm: 4 f32>"),
    (KNOWN, Unpack(Register("w", BYTE), WHOLE, "u4", 0), "and <ymm: 8 s32>"),
    # Products.
    (KNOWN, MultiplyAdd(BY_LANE, X, Y, Y, 0), "by <fmla v.4s by element by lane>"),
    (KNOWN, MultiplyAdd(BY_BROADCAST, X, Y, NARROW), "multiplies <xmm: 4 f32>"),
    (KNOWN, MultiplyAdd(BY_PAIRS, WHOLE, WHOLE, WHOLE), "multiplies <ymm: 8 s32>"),
    (KNOWN, MultiplyAdd(BY_BROADCAST, X, Y, A), "by broadcast reads memory"),
    (KNOWN, MultiplyAdd(BY_BROADCAST, X, Y, Y, 1), "by broadcast takes lane 1"),
    (KNOWN, MultiplyAdd(BY_BROADCAST, X, Y, Y, None, W), "has no products of their own"),
    (KNOWN, Keep(X, (Y, Y, Y, Y)), "of 4 operands on avx2"),
    # Constants.
    ((*KNOWN, Splat(W, 1.0)), MultiplyAdd(BY_BROADCAST, W, X, Y), "changes w"),
    ((*KNOWN, Broadcast(W, A)), MultiplyAdd(BY_BROADCAST, W, X, Y), "changes w"),
    ((*KNOWN, Apply(W, "max", (X, Y))), MultiplyAdd(BY_BROADCAST, W, X, Y), "changes w"),
    # Loops.
    ((), Loop("i", Integer(-1), ()), "has -1 trips"),
    ((), Loop("i", ONE, (Loop("i", ONE, ()),)), "counts i again"),
    ((), Loop("i", symbol("k"), ()), "depends on k"),
]  # fmt: skip
#: Those of matrices.
MATRICES_REFUSED: list[tuple[tuple[Op, ...], Op, str]] = [
    ((), ZeroMatrix(replace(ACC, rows=Integer(17))), "does not fit"),
    ((), ZeroMatrix(replace(ACC, columns=17)), "does not fit"),
    (MATRICES, ZeroMatrix(replace(ACC, rows=Integer(3))), "acc has two shapes"),
    ((), LoadMatrix(LEFT, A, Integer(64)), "takes f32 of a for s8"),
    ((), StoreMatrix(C, ACC, Integer(16)), "reads acc undefined"),
    (MATRICES, StoreMatrix(C, ACC, Integer(16)), "takes f32 of c for s32"),
    (MATRICES, MultiplyMatrices(BY_PAIRS, ACC, LEFT, RIGHT), "by <vpmaddwd"),
    (
        (*MATRICES, LoadMatrix(replace(LEFT, name="w", element="u8"), A, Integer(64)))[:3],
        MultiplyMatrices(next(op for op in PRODUCTS if op.x == "u8"), ACC, LEFT, RIGHT),
        "multiplies s8 by s8",
    ),
    (MATRICES, MultiplyMatrices(BYTES, ACC, LEFT, LEFT), "shapes do not match"),
]


def refusal(before: tuple[Op, ...], op: Op, target: object) -> str:
    with pytest.raises(PlanError) as refused:
        verify_tile(tile(*before, op), target)  # type: ignore[arg-type]
    return str(refused.value)


@pytest.mark.parametrize(("before", "op", "says"), REFUSED)
def test_an_operation_is_refused(before: tuple[Op, ...], op: Op, says: str) -> None:
    """By a message with the tile, the operation, the operation in words, and the rule."""
    if before:
        verify_tile(tile(*before), AVX2)
    said = refusal(before, op, AVX2)
    assert says in said
    assert re.match(rf"tile0: \w+ .*\n  got: {type(op).__name__}\(.*\n  expected: .", said)
    assert len(said) < 500


@pytest.mark.parametrize(("before", "op", "says"), MATRICES_REFUSED)
def test_an_operation_on_matrices_is_refused(before: tuple[Op, ...], op: Op, says: str) -> None:
    if before:
        verify_tile(tile(*before), AMX)
    said = refusal(before, op, AMX)
    assert says in said
    assert f"  got: {type(op).__name__}(" in said


def test_every_operation_has_a_rule_that_refuses_something() -> None:
    every = set(operations())
    assert every - set(RULES) == {Loop}, "a loop's rule is the walk's own"
    elsewhere = {MultiplyBlock, ReadRows, WriteRow}  # tests/targets/: test_power10.py, test_sme.py
    assert every - elsewhere == {type(op) for _, op, _ in REFUSED + MATRICES_REFUSED}


def test_every_node_of_the_nest_has_a_rule() -> None:
    assert set(get_args(NestNode)) == set(NEST_RULES)


# --- the end of a tile, and what tiles touch ---------------------------------------------------


def test_registers_alive_in_sums_have_a_limit() -> None:
    """The end has none: its values may be spilled."""
    many = [Register(f"r{index}", YMM) for index in range(60)]
    stores = tuple(Store(Address("c", 8 * index * ONE), r) for index, r in enumerate(many))
    loads = (Load(r, Address("a", 8 * index * ONE)) for index, r in enumerate(many))
    verify_tile(tile(end=(*loads, *stores)), AVX2)
    with pytest.raises(PlanError, match=r"alive on avx2\n  expected: 16 or fewer"):
        verify_tile(tile(*map(Zero, many[:17]), end=stores[:17]), AVX2)


def test_a_tile_reaches_as_far_as_its_loops_take_its_pointers() -> None:
    """Ten trips of 3 elements each, 8 elements read from 2 on: from 2 to 2 + 27 + 8."""
    body = (Load(X, Address("p", 2 * ONE)), Advance("p", 3 * ONE))
    ops = (Point("p", "a", ZERO, "f32"), Loop("k", Integer(10), body))
    assert verify_tile(tile(*ops), AVX2).reach == {("a", False): (2, 37)}
    behind = (*ops, Load(Y, Address("p", ZERO)))
    assert verify_tile(tile(*behind), AVX2).reach == {("a", False): (2, 38)}
    unknown = (ops[0], Loop("k", symbol("m"), body), Store(C, X))
    with pytest.raises(PlanError, match="reads x undefined"):
        verify_tile(tile(*unknown), AVX2)
    assert verify_tile(tile(*unknown[:2]), AVX2).reach == {}
    never = (ops[0], Loop("k", ZERO, body))
    assert verify_tile(tile(*never), AVX2).reach == {}


def test_what_a_tile_writes_is_known_stretch_by_stretch() -> None:
    """Rows of C, not what lies between them; nothing where no element is written."""
    rows = tuple(Store(Address("c", at * ONE), X) for at in (0, 100))
    assert verify_tile(tile(*KNOWN, end=rows), AVX2).written == {"c": {(0, 8), (100, 108)}}
    assert verify_tile(tile(Copy(C, A, "f32", ZERO)), AVX2).written == {}


# --- nests -------------------------------------------------------------------------------------

SPEC = Gemm(16, 24, 5, beta=1)
SCHEDULE = Schedule(tile=(4, 8), loops="nmk")


def program_of(spec: Gemm = SPEC, schedule: Schedule = SCHEDULE, name: str = "avx2") -> Program:
    return program_for(plan_for(spec, schedule, targets.load(name)))


def changed(
    nodes: tuple[NestNode, ...], change: Callable[[NestNode], NestNode]
) -> tuple[NestNode, ...]:
    """``change`` done to every node, the inner ones first."""
    return tuple(rewritten(nodes, change))


def passing(place: int, **other: object) -> Callable[[NestNode], NestNode]:
    """Another argument in that place of every call."""

    def change(node: NestNode) -> NestNode:
        if not isinstance(node, Call):
            return node
        given = list(node.arguments)
        given[place] = replace(given[place], **other)  # type: ignore[arg-type]
        return replace(node, arguments=tuple(given))

    return change


def calling(**other: object) -> Callable[[NestNode], NestNode]:
    """Other fields of every call."""
    return lambda node: replace(node, **other) if isinstance(node, Call) else node  # type: ignore[arg-type]


def counting(**other: object) -> Callable[[NestNode], NestNode]:
    """Other fields of every loop."""
    return lambda node: replace(node, **other) if isinstance(node, BlockLoop) else node  # type: ignore[arg-type]


def wrapped(node: NestNode) -> Callable[[NestNode], NestNode]:
    return lambda inner: replace(node, body=(inner,)) if isinstance(inner, Call) else inner  # type: ignore[arg-type]


BUFFER = Pack(Name("b_packed", 1), "f32", Integer(8), None, (), ())
BY_STRIDE = Selected(Name("a"), "f32", "strided", ONE)
NESTS: list[tuple[str, Callable[[NestNode], NestNode], str]] = [
    ("call", calling(program="tile9"), "calls what does not exist"),
    ("call", calling(arguments=()), "passes 0 arguments"),
    ("call", passing(0, operand=Name("b_packed")), "passes b_packed, which does not exist here"),
    ("call", passing(0, operand=None), "passes None, which does not exist here"),
    ("call", passing(2, operand=Name("a")), "writes a, an input"),
    ("call", passing(2, offset=200 * symbol("mt")), "touches bytes 0 to"),
    ("call", passing(2, offset=-ONE), "touches bytes -4 to"),
    ("call", passing(0, offset=symbol("ldx")), "depends on ldx"),
    ("block_loop", counting(counter="mt"), "counts mt again"),
    ("block_loop", counting(first=-1), "begins at -1"),
    ("block_loop", counting(trips=symbol("k")), "depends on k"),
    ("beside", wrapped(Beside(())), "contains a call"),
    ("select_batch", wrapped(SelectBatch(ZERO, (BY_STRIDE,), ())), "finds a by 'strided'"),
    ("pack", wrapped(replace(BUFFER, buffer=Name("a"))), "defines a twice"),
    ("pack", wrapped(replace(BUFFER, element="f4")), "of f4"),
    ("pack", wrapped(replace(BUFFER, elements=-ONE)), "of -1 elements"),
    ("pack", wrapped(replace(BUFFER, scratch=ZERO)), "lies at bytes 0 to 32"),
    ("pack", wrapped(replace(BUFFER, of_worker=True)), "takes a thread's scratch memory"),
    ("when", wrapped(When(symbol("k"), ())), "depends on k"),
    ("when_same", wrapped(WhenSame(Name("a"), Name("d"), (), ())), "compares d"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "says"), NESTS)
def test_a_nest_is_refused(kind: str, change: Callable[[NestNode], NestNode], says: str) -> None:
    """Calls are told by the tile that they call."""
    program = program_of()
    wrong = replace(program, nest=changed(program.nest, change))
    with pytest.raises(PlanError) as refused:
        verified(wrong, SPEC, AVX2)
    said = str(refused.value)
    assert says in said
    assert said.startswith(f"the nest: {kind} ")
    assert ("of tile" in said) == (kind == "call")
    assert "  got: " in said and "  expected: " in said


def test_a_configuration_that_is_not_the_programs_is_refused() -> None:
    spec = Gemm(16, 16, 64, a="s8")
    program = program_of(spec, Schedule(), "amx")
    (known,) = program.configurations
    other = replace(known, shapes=tuple((rows, 4) for rows, _ in known.shapes))
    for node, says in (
        (Configure(1, known), "loads configuration 1"),
        (Configure(0, other), "is not configuration 0"),
    ):
        with pytest.raises(PlanError, match=says):
            verified(replace(program, nest=(node, *program.nest)), spec, AMX)
    with pytest.raises(PlanError, match="as it is not configured"):
        verified(replace(program, configurations=(other,)), spec, AMX)


@pytest.mark.parametrize(
    ("spec", "matrix"),
    [
        (Gemm(4, 8, 4, batch=Strided(3)), 3),
        (Gemm(4, 8, 4, b=Packed("f32"), batch=Strided(3)), 3),
        (Gemm(4, 8, 4, batch=Addresses(2)), 2),
    ],
)
def test_matrices_of_a_batch_are_those_there_are(spec: Gemm, matrix: int) -> None:
    program = program_of(spec, Schedule(loops="bnmk"))

    def late(node: NestNode) -> NestNode:
        return replace(node, index=Integer(matrix)) if isinstance(node, SelectBatch) else node

    with pytest.raises(PlanError, match=f"takes matrix {matrix} of a"):
        verified(replace(program, nest=changed(program.nest, late)), spec, AVX2)


# --- programs that were once found to pass ----------------------------------------------------


def with_end(*ops: Op) -> Program:
    """A kernel whose tile does more at its end."""
    program = program_of(Gemm(4, 8, 5, beta=1))
    (found,) = program.tiles
    return replace(program, tiles=(replace(found, end=(*found.end, *ops)),))


FAR = Load(W, Address("c", Integer(100_000)))
ILLEGAL: dict[str, tuple[tuple[Op, ...], str]] = {
    "an addition of ymm and xmm": (
        (*KNOWN, Apply(W, "add", (X, NARROW))),
        "with <ymm: 8 f32>",
    ),
    "an addition of f32 and f64": ((*KNOWN, Apply(W, "add", (X, DOUBLE))), "on <ymm: 4 f64>"),
    "Interleave in blocks of 3": ((*KNOWN, Interleave(W, X, Y, 3, odd=True)), "of blocks of 3"),
    "a Store as f8_e4m3": ((*KNOWN, Store(C, X, None, "f8_e4m3")), "as f8_e4m3"),
    "Apply of an unknown function": ((*KNOWN, Apply(W, "sinh", (X,))), "of 'sinh'"),
    "Neon's instruction on avx2": ((*KNOWN, MultiplyAdd(BY_LANE, X, Y, Y, 0)), "on avx2"),
    "a Load 100,000 elements behind C": ((FAR,), "touches bytes 0 to 400032 of c"),
    "a Store to input A": ((*KNOWN, Store(A, X)), "writes a, an input"),
    "a register that was never written": ((Apply(W, "add", (X, X)),), "reads x undefined"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_program_is_refused(name: str) -> None:
    ops, says = ILLEGAL[name]
    spec = Gemm(4, 8, 5, beta=1)
    verified(with_end(), spec, AVX2)
    with pytest.raises(PlanError) as refused:
        verified(with_end(*ops), spec, AVX2)
    assert says in str(refused.value)
    assert "tile0_4x8" in str(refused.value)


def test_two_tiles_of_one_name_and_two_parameters_are_refused() -> None:
    program = program_of()
    with pytest.raises(PlanError, match="two tiles are called"):
        verified(replace(program, tiles=(program.tiles[0], *program.tiles)), SPEC, AVX2)
    found = program.tiles[0]
    double = replace(found, parameters=(found.parameters[0], *found.parameters))
    with pytest.raises(PlanError, match="two parameters of one name"):
        verify_tile(double, AVX2)
