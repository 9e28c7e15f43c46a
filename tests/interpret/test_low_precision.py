"""The interpreter on products of narrow types: numbers against numpy, counts against formulas."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import Cases
from support.products.interpreted import Interpreted, small_cases

from tilewright import targets
from tilewright.elementwise.operations import OPERATIONS
from tilewright.errors import ArgumentTypeError, PlanError
from tilewright.generate import interpret_kernel, plan_for, program_for
from tilewright.interpret.memory import fresh_buffer
from tilewright.interpret.run import interpret
from tilewright.ir.count import formulas
from tilewright.ir.nest import Pack as Buffered
from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.isa.vector import MulAdd, Vector
from tilewright.plan.plan import ByRows
from tilewright.spec.expression import Operand, acc
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Addresses, Matrix, Offsets, Packed, Strided
from tilewright.spec.postops import relu
from tilewright.spec.schedule import Schedule
from tilewright.symbolic import evaluate

DTYPES: dict[str, Any] = {
    "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "s32": np.int32,
    "s8": np.int8, "u8": np.uint8,
    "f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
NAMES = (
    "scalar", "avx2", "avx2+vnni", "avx512+vnni+bf16", "amx", "neon", "neon+dotprod",
    "neon+dotprod+i8mm+bf16+fp16fml",
)  # fmt: skip
every_target = pytest.mark.parametrize("name", [*NAMES, "invented"])
INTEGERS = list(product(("s8", "u8"), repeat=2))


# -- a target that does not exist -----------------------------------------------------------------


def vector(element: str, lanes: int, *muladd: MulAdd, **more: Any) -> Vector:
    """Spellings are empty: nobody prints them."""
    operations = [name for name, op in OPERATIONS.items() if element in op.elements]
    return Vector(
        name=f"v{lanes}", element=element, lanes=lanes, ctype="", load="", muladd=muladd,
        ops=dict.fromkeys(operations, ""), **more,
    )  # fmt: skip


def multiply(lanes: int, depth: int = 1, x: str = "", y: str = "", rows: int = 1) -> MulAdd:
    return MulAdd(
        form="broadcast", mnemonic=f"sum{depth}", spelling="", cols=lanes // rows, rows=rows,
        depth=depth, x=x, y=y,
    )  # fmt: skip


def sums(element: str, lanes: int) -> Vector:
    """f32 takes pairs of bf16, s32 pairs of s16, s64 four of them."""
    deep: dict[str, tuple[MulAdd, ...]] = {
        "f32": (multiply(lanes, 2, "bf16", "bf16"),),
        "s32": (multiply(lanes, 2, "s16", "s16"),),
        "s64": (multiply(lanes, 4, "s16", "s16"),),
        "f64": (),
    }
    narrow = ("s8", "u8", "s16", "u16")
    loads = {"s32": narrow, "s64": narrow, "f32": ("f16",), "f64": ()}[element]
    stores = {"s32": (*narrow, "s64"), "s64": (), "f32": ("f16",), "f64": ()}[element]
    halves = {block: ("", "") for block in (1, 2) if block < lanes}
    return vector(
        element, lanes, *deep[element], multiply(lanes), loads=dict.fromkeys(loads, ""),
        stores=dict.fromkeys(stores, ""), transpose=halves,
    )  # fmt: skip


FIELDS = {
    "u2": ("",) * 4, "u4": ("",) * 2, "f4_e2m1": ("",) * 2, "u2<<4": ("",) * 4,
    **{f"u1<<{up}": ("",) * 8 for up in (2, 4, 6)},
}  # fmt: skip
INVENTED = Target(
    name="invented",
    title="a machine that does not exist",
    machine="",
    cpu_flags=(),
    compiler_flags=(),
    zig_flags=(),
    headers=(),
    registers=14,
    vectors=(
        *(sums(element, lanes) for element in ("f32", "f64", "s32", "s64") for lanes in (4, 1)),
        *(vector("bf16", lanes) for lanes in (8, 2)),
        *(
            vector("s16", lanes, loads=dict.fromkeys(("s8", "u8"), ""), fields=FIELDS, join="{x}")
            for lanes in (16, 8, 4, 2)
        ),
    ),
    core=Core(fma_latency=3, fma_units=1, loads=1, stores=1, issue=2),
)


def target_of(name: str) -> Target:
    base, *features = name.split("+")
    return INVENTED if base == "invented" else targets.load(base).having(features)


# -- numbers and counts ---------------------------------------------------------------------------


@every_target
@pytest.mark.parametrize("seed", range(4))
def test_random_products_agree_with_numpy_and_with_their_formulas(
    name: str, seed: int, cases: Cases
) -> None:
    for index, (spec, schedule) in enumerate(small_cases(seed, 5)):
        if name == "invented":  # fourteen registers do not hold every tile that is drawn
            schedule = replace(schedule, tile=None)
        kernel = Interpreted(spec, schedule, target_of(name))
        if isinstance(kernel.plan, ByRows):
            continue  # the call computes how large its blocks are, which no formula has
        found = formulas(kernel.program)
        for whole in (True, False):
            held = kernel.sample(index, whole=whole)
            counts = kernel.run(held)
            for field in fields(found):
                formula = getattr(found, field.name)
                told = evaluate(formula, kernel.sizes(held))
                assert told == getattr(counts, field.name), f"{field.name} of {spec}: {formula}"
            cases.count(name.partition("+")[0], "interpreted")


def extremes(type_: str, shape: tuple[int, int], rng: np.random.Generator) -> Any:
    """Integers of the whole range, its ends more often."""
    info = np.iinfo(DTYPES[type_])
    values = rng.integers(info.min, info.max + 1, shape)
    ends = rng.choice([info.min, info.max], shape)
    return np.where(rng.random(shape) < 0.5, ends, values).astype(DTYPES[type_])


@every_target
@pytest.mark.parametrize(("a", "b"), INTEGERS)
def test_integers_of_the_whole_range_are_exact(name: str, a: Any, b: Any) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in ((3, 5, 1), (7, 9, 13), (2, 18, 66)):
        x, y = extremes(a, (m, k), rng), extremes(b, (k, n), rng)
        out = np.empty((m, n), np.int32)
        spec = Gemm(m, n, k, a=a, b=b)
        interpret_kernel(spec, Schedule(), target_of(name), [x, y, out])
        np.testing.assert_array_equal(out, x.astype(np.int64) @ y.astype(np.int64))


@every_target
def test_sums_of_integers_wrap(name: str) -> None:
    k = 66_100
    x, y = np.full((1, k), 255, np.uint8), np.full((k, 2), 255, np.uint8)
    out = np.empty((1, 2), np.int32)
    spec = Gemm(1, 2, k, a="u8")
    interpret_kernel(spec, Schedule(), target_of(name), [x, y, out])
    total = (255 * 255 * k + 2**31) % 2**32 - 2**31
    assert total != 255 * 255 * k and (out == total).all()


@every_target
@pytest.mark.parametrize("type_", ["bf16", "f16", "f8_e4m3", "f8_e5m2"])
def test_narrow_floating_point_and_its_bits(name: str, type_: Any) -> None:
    """The same from arrays of ml_dtypes' types and of bits, within the bound of f32 sums."""
    rng = np.random.default_rng(1)
    m, n, k = 5, 9, 21
    x, y = (rng.normal(size=s).astype("f4").astype(DTYPES[type_]) for s in ((m, k), (k, n)))
    exact = x.astype(float) @ y.astype(float)
    bound = (k + 4) * 2.0**-23 * (abs(x.astype(float)) @ abs(y.astype(float)))
    outs = []
    for bits in (False, True):
        given = [v.view(f"u{v.itemsize}") if bits else v for v in (x, y)]
        outs.append(np.empty((m, n), np.float32))
        interpret_kernel(Gemm(m, n, k, a=type_), Schedule(), target_of(name), [*given, outs[-1]])
    assert (abs(outs[0] - exact) <= bound).all()
    np.testing.assert_array_equal(outs[0], outs[1])


@every_target
@pytest.mark.parametrize("batch", [Strided(3), Addresses(3), Offsets(3)], ids=repr)
def test_quantised_products_from_zero_points_to_bytes(name: str, batch: Any) -> None:
    rng = np.random.default_rng(2)
    m, n, k = 6, 11, 10
    a, b = (extremes(t, (3 * r, c), rng).reshape(3, r, c) for t, r, c in
            (("u8", m, k), ("s8", k, n)))  # fmt: skip
    bias, scale = rng.normal(size=n).astype("f4"), rng.uniform(0.001, 0.01, n).astype("f4")
    zero = rng.integers(-9, 9, n).astype(np.int32)
    spec = Gemm(
        m, n, k, a="u8", b="s8", d="u8", batch=batch, a_zero=128, b_zero="column",
        b_scale="column", d_scale=0.05, d_zero=3,
        epilogue=relu(acc + Operand("bias", "f32", per="column")),
    )  # fmt: skip
    given: list[Any] = {
        Strided: [a, b],
        Addresses: [list(a), list(b)],
        Offsets: [a.ravel(), b.ravel()],
    }[type(batch)]
    at = [np.arange(3) * m * k, np.arange(3) * k * n] if isinstance(batch, Offsets) else []
    out = np.empty((m, n), np.uint8)
    arrays = [*given, out, *at, scale, zero, bias]
    interpret_kernel(spec, Schedule(), target_of(name), arrays)
    sums_ = sum((x.astype(int) - 128) @ (y.astype(int) - zero) for x, y in zip(a, b, strict=True))
    value = np.maximum(sums_ * scale.astype(float) + bias, 0) / 0.05 + 3
    near = abs(value % 1 - 0.5) < 1e-3  # a sum so near to a half may be rounded either way
    off = abs(out - np.clip(np.rint(value), 0, 255))
    assert (off <= near).all()


@every_target
@pytest.mark.parametrize("type_", ["s8", "u8", "bf16", "f32"])
def test_b_that_was_packed_before(name: str, type_: Any) -> None:
    """Packed by the interpreter, in blocks, and with the sums of its columns."""
    target = target_of(name)
    zeros: dict[str, Any] = {"a_zero": 7, "b_zero": -3} if type_[1:] == "8" else {}
    for nb in (None, 16):
        spec = Gemm(5, 19, 11, a=type_, b=Packed(type_, nb), **zeros)
        kernel = Interpreted(spec, Schedule(), target)
        kernel.run(kernel.sample(3, whole=True))


@every_target
@pytest.mark.parametrize("loops", ["bnmk", "knmk", "knm", "nbmk"])
def test_partial_sums_stand_in_a_buffer(name: str, loops: str) -> None:
    blocks = {"k": 8} if loops == "knmk" else {}
    batch = Strided(2) if "b" in loops else None
    spec = Gemm(7, 6, 21, a="bf16", c=Matrix("bf16", "F"), beta=1, alpha=2, batch=batch)
    kernel = Interpreted(spec, Schedule(loops=loops, block=blocks), target_of(name))
    kernel.run(kernel.sample(4, whole=True))


# -- one rounding ---------------------------------------------------------------------------------


def test_a_group_of_products_is_added_one_after_the_other() -> None:
    """Of a pair the last product first: 2**-24 is lost beside 1, but not beside another one."""
    small = 2.0**-12
    x = np.array([[1, small]], np.float32).astype(DTYPES["bf16"])
    y = np.array([[1], [small]], np.float32).astype(DTYPES["bf16"])
    c = np.full((1, 1), 2.0**-24, np.float32)
    spec = Gemm(1, 1, 2, a="bf16", beta=1)
    interpret_kernel(spec, Schedule(), target_of("avx512+bf16"), [x, y, c])
    assert c[0, 0] == np.float32(1 + 2.0**-24) + np.float32(2.0**-24) == 1


def test_plain_c_rounds_products_before_their_sum() -> None:
    one = np.float32(1 + 2.0**-12)
    a, b = np.array([[-1, one]], "f4"), np.array([[one * one], [one]], "f4")
    results = {}
    for name in ("avx2", "scalar"):
        c = np.empty((1, 1), "f4")
        interpret_kernel(Gemm(1, 1, 2), Schedule(k_split=1), targets.load(name), [a, b, c])
        results[name] = c[0, 0]
    assert results["avx2"] == 2.0**-24 and results["scalar"] == 0


# -- what is refused ------------------------------------------------------------------------------


def test_blocks_of_k_keep_groups_whole() -> None:
    spec, schedule = Gemm(8, 8, 24, a="s8"), Schedule(loops="knmk", block={"k": 6})
    sizes = {"avx2": 6, "neon+dotprod": 8, "amx": 24}
    for name, size in sizes.items():
        plan = plan_for(spec, schedule, target_of(name))
        program_for(plan)
        assert plan.nest.blocks["k"] == size
        told = [d for d in plan.decisions if d.what == "block k"]
        assert [d.choice for d in told] == ([] if size == 6 else [str(size)])


def test_buffers_of_another_type() -> None:
    out = np.empty((2, 2), np.int32)
    a, b = np.zeros((2, 2), np.int8), np.zeros((2, 2), np.uint8)
    spec = Gemm(2, 2, 2, a="s8", b="u8")
    interpret_kernel(spec, Schedule(), targets.load("scalar"), [a, b, out])
    wrongs: list[list[Any]] = [[b, b, out], [a, a, out], [a, b, out.astype("f4")]]
    for wrong in wrongs:
        with pytest.raises(ArgumentTypeError, match="must be a flat buffer of"):
            interpret_kernel(spec, Schedule(), targets.load("scalar"), wrong)


def test_a_buffer_that_nobody_filled_is_not_read() -> None:
    spec = Gemm(4, 5, 6, a="s8")
    plan = plan_for(spec, Schedule(), targets.load("avx2"))
    program = program_for(plan)
    (buffer,) = (node for node in program.nest if isinstance(node, Buffered))
    empty = replace(program, nest=(replace(buffer, fill=()),))
    arrays: list[Any] = [np.zeros(shape, np.int8) for shape in ((4, 6), (6, 5))]
    arrays.append(np.empty((4, 5), np.int32))
    with pytest.raises(PlanError, match="b_packed before it was written"):
        interpret(plan, empty, arrays)
    interpret(plan, program, arrays)


def test_what_a_buffer_may_be_taken_for() -> None:
    buffer = fresh_buffer("buffer", "s8", 24)
    with pytest.raises(PlanError, match="takes elements of buffer for s32"):
        buffer.write(0, np.zeros(4, np.int32), "s32", "somebody")
    words, at = buffer.cast(8, "s32")
    words.write(at, np.array([-1, 2], np.int32), "s32", "somebody")
    assert buffer.read(8, 8, "u8", "somebody").tolist() == [255] * 4 + [2, 0, 0, 0]
    with pytest.raises(PlanError, match="before it was written"):
        buffer.read(7, 2, "s8", "somebody")
    with pytest.raises(PlanError, match="no buffer of s32"):
        buffer.cast(6, "s32")
    with pytest.raises(PlanError, match="no buffer of s64"):
        fresh_buffer("buffer", "s8", 20).cast(8, "s64")
