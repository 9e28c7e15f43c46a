"""Packing: its spec and what it refuses, formats, and the interpreter on its programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.products.packed import convert, differing, draw, layout, stored

import tilewright as tw
from tilewright.errors import ScheduleError, SpecError
from tilewright.generate import explain_plan, interpret_kernel, plan_for, program_for
from tilewright.ir.ops import Load, Store
from tilewright.isa.target import Target
from tilewright.plan.formats.layout import PackedFormat, packed_format_named
from tilewright.plan.formats.lookup import format_of, plain_format
from tilewright.plan.plan import Plan
from tilewright.plan.routines.pack_b import PackPlan
from tilewright.runtime.machine.host import resolve
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.gemm import Gemm
from tilewright.spec.pack import Pack, PackQuantized
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.spec.types import ITEMSIZE

ALL = "neon+dotprod+i8mm+bf16+fp16fml"
#: What an element of B is stored as, and how many of K stand together, by target and types.
FORMATS: dict[tuple[str, str, str], tuple[str, int]] = {
    ("scalar", "u8", "s8"): ("s32", 1),
    ("scalar", "f32", "f8_e4m3"): ("f32", 1),
    ("avx2", "u8", "s8"): ("s16", 2),
    ("avx2", "u16", "s16"): ("s16", 2),
    ("avx2", "s16", "u16"): ("s16", 2),
    ("avx2", "bf16", "bf16"): ("f32", 1),
    ("avx2+vnni", "u8", "s8"): ("s8", 4),
    ("avx2+vnni", "s8", "s8"): ("s8", 4),
    ("avx2+vnni", "u8", "u8"): ("u8", 4),
    ("avx2+vnni", "s8", "u8"): ("u8", 4),
    ("avx512+bf16", "bf16", "bf16"): ("bf16", 2),
    ("avx512+bf16", "f32", "bf16"): ("f32", 1),
    ("neon", "s8", "s8"): ("s8", 2),
    ("neon+dotprod", "u8", "u8"): ("u8", 4),
    (ALL, "s8", "s8"): ("s8", 8),
    (ALL, "bf16", "bf16"): ("bf16", 4),
    (ALL, "f16", "f16"): ("f16", 1),
    (ALL, "f64", "f64"): ("f64", 1),
}


@pytest.mark.parametrize(("key", "expected"), FORMATS.items(), ids=str)
def test_formats(key: Any, expected: tuple[str, int]) -> None:
    name, a, b = key
    form = format_of(Pack(9, 7, b, a=a), resolve(name))
    assert (form.stored, form.group) == expected


@pytest.mark.parametrize(("type_", "large"), [("bf16", "bf16"), ("f8_e5m2", "bf16")])
def test_what_is_converted_is_stored_wider_only_where_it_stays_in_a_cache(
    type_: Any, large: Any
) -> None:
    target = resolve("avx2")
    assert format_of(Pack(256, 256, type_), target).stored == "f32"
    assert format_of(Pack(256, 257, type_), target).stored == large
    assert format_of(Pack(2560, 256, "bf16"), resolve("avx512+bf16")).stored == "bf16"


def test_a_format_depends_on_target_types_k_n_and_nb_alone() -> None:
    packed = tw.Packed("s8", 16)
    m, count = dim("m"), dim("count")
    family: list[tuple[Any, Schedule]] = [
        (Gemm(5, 40, 9, a="u8", b=packed), Schedule()),
        (Gemm(m, 40, 9, a="u8", b=packed, beta=1), Schedule(tile=(2, 8))),
        (Gemm(64, 40, 9, a=tw.Matrix("u8", "F"), b=packed, c=tw.Matrix("s32", "F")), Schedule()),
        (Gemm(5, 40, 9, a="u8", b=packed, d="u8", a_zero=3, b_scale="column"), Schedule()),
        (Gemm(5, 40, 9, a="u8", b=packed, batch=tw.Strided(3)), Schedule(loops="bnmk")),
        (Gemm(5, 40, 9, a="u8", b=packed, batch=tw.Addresses(count)), Schedule()),
    ]
    for name in ("avx2", "avx512+vnni", ALL):
        target = resolve(name)
        plans = [plan_for(spec, schedule, target) for spec, schedule in family]
        assert len({format_of(spec, target) for spec, _ in family}) == 1
        assert len({str(plan.staging.operands["b"].strides) for plan in plans}) == 1
        mine = format_of(family[0][0], target)
        assert format_of(Pack(9, 40, "s8", a="u8", nb=16), target) == mine
        for other in (
            Gemm(5, 41, 9, a="u8", b=packed),
            Gemm(5, 40, 8, a="u8", b=packed),
            Gemm(5, 40, 9, a="u8", b=tw.Packed("s8", 24)),
            Gemm(5, 40, 9, a="u8", b=tw.Packed("u8", 16)),
        ):
            assert format_of(other, target).text != mine.text


@pytest.mark.parametrize("name", ["avx2", "avx2+vnni", "avx512+vnni+bf16", "neon", ALL])
@pytest.mark.parametrize("types", [("u8", "s8"), ("s8", "s8"), ("bf16", "bf16"), ("f32", "f32")])
def test_a_column_alone_lies_along_k_and_so_do_the_vectors(
    name: str, types: tuple[Any, Any]
) -> None:
    target, (a, b) = resolve(name), types
    spec = Gemm(5, 1, 67, a=a, b=tw.Packed(b))
    form = plain_format(spec, target)
    assert form.column and "a column" in form.text
    assert [form.offset(k, 0) for k in range(67)] == list(range(67))
    plan = plan_for(spec, Schedule(), target)
    assert plan.problem.vectorize == "k" and plan.staging.product.rows == 1
    assert max(v.lanes for v in plan.staging.vectors) == target.of(spec.type)[0].lanes
    asked = plan_for(spec, Schedule(vectorize="n"), target)
    assert {v.lanes for v in asked.staging.vectors} == {1}
    turned = Gemm(5, 1, 67, a=tw.Matrix(a, "F"), b=tw.Packed(b))
    assert plan_for(turned, Schedule(), target).problem.vectorize == "n"
    wide = Gemm(5, 1, 67, a=a, b=tw.Packed(b, 16))
    assert not format_of(wide, target).column
    assert plan_for(wide, Schedule(), target).problem.vectorize == "n"


def test_a_matrix_unit_takes_a_column_as_it_takes_others() -> None:
    target = resolve("amx")
    assert format_of(Pack(67, 1, "s8", a="u8"), target).nb == 16


@pytest.mark.parametrize("name", ["avx2", "avx512+vnni+bf16", "neon", ALL])
@pytest.mark.parametrize("type_", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("blocks", [Schedule(), Schedule(loops="kmnk", block={"k": 20})], ids=str)
def test_what_stands_behind_a_row_does_not_reach_its_sum(
    name: str, type_: Any, blocks: Schedule, cases: Cases
) -> None:
    target, rng = resolve(name), np.random.default_rng(0)
    spec = Gemm(4, 1, 67, a=type_, b=tw.Packed(type_))
    plan = plan_for(spec, blocks, target)
    assert plan.problem.vectorize == "k"
    a, b = (convert(rng.integers(-4, 5, s).astype(np.float32), type_) for s in ((4, 67), (67, 1)))
    a[1::2] = np.inf
    a[2, 41:] = np.inf
    b[41:] = 1
    packed = layout(plain_format(spec, target), b)
    c = np.zeros((4, 1), np.float32)
    interpret_kernel(spec, blocks, target, [a, packed, c])
    with np.errstate(invalid="ignore"):
        right = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(c, right)
    cases.count(target.name, "interpreted")


def test_an_element_lies_where_the_format_says() -> None:
    form = PackedFormat("s8", "s8", itemsize=1, k=11, n=21, nb=8, group=4, sums=True)
    b = draw("s8", (11, 21), np.random.default_rng(0))
    data = stored(form, b)
    assert all(data[form.offset(*at)] == value for at, value in np.ndenumerate(b))
    assert (form.blocks, form.groups, form.block_elements) == (3, 3, 96)
    assert (form.sums_at, form.nbytes) == (320, 320 + 128)
    assert layout(form, b).size == form.nbytes
    assert form.text == (
        "s8 as s8, 11x21 in groups of 4 along k, blocks of 8 columns and their sums"
    )


@pytest.mark.parametrize(
    "name", ["scalar", "avx2", "avx2+vnni", "avx512+vnni+bf16", "amx", "neon", ALL]
)
@pytest.mark.parametrize(
    "spec",
    [
        Pack(11, 21, "s8", a="s8", nb=16),
        Pack(21, 11, "u8", a="u8", order="F"),
        Pack(9, 6, "s8", a="u8", source="f32", batch=tw.Strided(2)),
        Pack(13, 21, "s16", a="u16", order="F"),
        Pack(9, 6, "u16", a="s16", source="f32"),
        Pack(7, 10, "bf16", source="f32", nb=4),
        Pack(7, 10, "bf16", order="F"),
        Pack(5, 9, "f8_e4m3", a="f32", source="f32", order="F"),
        Pack(5, 9, "f64", nb=4),
        Pack(67, 1, "s8", a="u8"),
        Pack(67, 1, "u8", a="u8", order="F"),
        Pack(1, 1, "bf16", source="f32"),
    ],
    ids=str,
)
def test_the_interpreter_packs(name: str, spec: Pack, cases: Cases) -> None:
    target = resolve(name)
    form, count = format_of(spec, target), 1 if spec.batch is None else 2
    rng = np.random.default_rng(0)
    assert isinstance(spec.k, int) and isinstance(spec.n, int)
    bs = [draw(spec.source, (spec.k, spec.n), rng) for _ in range(count)]
    held = np.stack(bs) if spec.batch else np.array(bs[0], order=spec.order)
    out = np.full((count, form.nbytes), 0xA5, np.uint8)
    interpret_kernel(spec, Schedule(), target, [held, out])
    expected = np.concatenate([layout(form, convert(b, spec.type)) for b in bs])
    assert not differing(form, out.ravel(), expected).size
    cases.count(target.name, "interpreted")


#: What B is, what it is packed for, and how it is given: with and without shifts, groups and sums.
OPEN = [("f32", "f32", "f32", "C"), ("bf16", "bf16", "f32", "C"), ("s8", "s8", "s8", "F"),
        ("u8", "s8", "f32", "C"), ("s8", "u8", "u8", "C")]  # fmt: skip


#: Targets, and the rows in a panel if an A is packed: None for a B, "" if the target chooses.
LINES: Any = [(name, None) for name in ("scalar", "avx2", "avx512+vnni+bf16", ALL, "amx")]
LINES += [("amx", ""), ("scalar", 1), ("avx2+vnni", 1), ("avx512+vnni+bf16", 5)]


@pytest.mark.parametrize(("name", "rows"), LINES)
@pytest.mark.parametrize(("a", "type_", "source", "order"), OPEN)
def test_one_program_packs_a_matrix_of_any_size(
    name: str, rows: Any, a: Any, type_: Any, source: Any, order: Any, cases: Cases
) -> None:
    """Its bytes are those of the format with the sizes of the call."""
    target, rng = resolve(name), np.random.default_rng(0)
    of_a: Any = {} if rows is None else {"rows": True, "nb": rows or None}
    spec = Pack(K, dim("n"), type_, a=a, source=source, order=order, ldb=dim("ldb"), **of_a)
    family = format_of(spec, target)
    for k, n in ((1, 1), (21, 13), (37, 50), (70, 101), (0, 5), (7, 0)):
        b = draw(source, (k, n), rng)
        lines, line = (k, n) if order == "C" else (n, k)
        held = np.zeros((lines, line + 3), b.dtype)
        held[:, :line] = b if order == "C" else b.T
        form = family.of(k, n)
        out = np.full(form.nbytes, 0xA5, np.uint8)
        interpret_kernel(spec, Schedule(), target, [held.ravel(), out], [n, k, line + 3])
        assert not differing(form, out, layout(form, convert(b, type_))).size
        assert form.family == family == packed_format_named(family.text)
    cases.count(target.name, "interpreted")


def accessed(target: Target, spec: Pack) -> dict[str, dict[str, int]]:
    """The bytes that one call for contiguous columns reads of each, and writes of each row.

    All accesses must be of whole vectors.
    """
    plan = plan_for(spec, Schedule(), target)
    assert isinstance(plan, PackPlan)
    packed, k = plan.operands["out"], spec.k
    assert isinstance(k, int)
    (tile,) = (tile for tile in program_for(plan).tiles if tile.name.startswith("turn_"))
    found: dict[str, dict[str, int]] = {"in": {}, "out": {}}
    for op in tile.end:
        if isinstance(op, Load):
            assert op.active is None and op.dst.vector.lanes == plan.lanes
            line = f"column {int(op.address.offset) // k}"
            size = (op.group or 1) * ITEMSIZE[op.memory or op.dst.vector.element]
            found["in"][line] = found["in"].get(line, 0) + plan.lanes * size
        elif isinstance(op, Store):
            assert op.active is None and op.src.vector.lanes == plan.lanes
            row = f"row {int(op.address.offset) // int(packed.strides['k'])}"
            size = (op.group or 1) * ITEMSIZE[op.memory or op.src.vector.element]
            found["out"][row] = found["out"].get(row, 0) + plan.lanes * size
    return found


@pytest.mark.parametrize("name", ["avx2", "avx2+vnni", "avx512", "avx512+vnni+bf16", "neon", ALL])
@pytest.mark.parametrize(
    ("a", "b", "source"),
    [
        ("u8", "s8", "s8"),
        ("u8", "s8", "f32"),
        ("bf16", "bf16", "bf16"),
        ("bf16", "bf16", "f32"),
        ("f32", "f32", "f32"),
        ("f64", "f64", "f64"),
    ],
)
def test_contiguous_columns_are_read_and_written_by_lines_of_the_cache(
    name: str, a: Any, b: Any, source: Any
) -> None:
    target = resolve(name)
    found = accessed(target, Pack(512, 512, b, a=a, nb=512, source=source, order="F"))
    line = target.core.line
    assert set(found["in"].values()) == {line}
    assert all(written % line == 0 for written in found["out"].values())
    assert found["out"]


# -- blocks of columns in a product -------------------------------------------------------------


def tiles_of(target: Target, spec: Gemm, schedule: Schedule) -> set[int]:
    """The widths of tiles, in columns."""
    plan = plan_for(spec, schedule, target)
    assert isinstance(plan, Plan)
    return {int(tile.nr) for tile in program_for(plan).tiles if tile.nr is not None}


def test_no_tile_straddles_blocks_of_columns() -> None:
    target = resolve("avx2")
    spec = Gemm(6, 40, 9, b=tw.Packed("f32", 16))
    assert tiles_of(target, spec, Schedule()) == {16, 8}
    assert tiles_of(target, spec, Schedule(tile=(4, 24))) == {16, 8}
    assert tiles_of(target, spec, Schedule(loops="nmnk", block={"n": 32})) == {16, 8}
    assert tiles_of(target, spec, Schedule(loops="nmnk", block={"n": 8})) == {8}
    with pytest.raises(ScheduleError, match=r"would be cut[^~]*24[^~]*16 columns[^~]*multiple"):
        tiles_of(target, spec, Schedule(loops="nmnk", block={"n": 24}))


# -- what is refused ----------------------------------------------------------------------------

K, OFFSETS, PACKED = dim("k"), tw.Offsets(2, b=[0, 1]), tw.Packed("f32")
QUANTIZED = tw.Quantized("s4", scale="f32", block=32)
REFUSED: list[tuple[Any, str]] = [
    (
        lambda: PackQuantized(K, 4, QUANTIZED, a="f32"),  # type: ignore[arg-type]
        r"a packed low-bit B has fixed sizes.*dim\('k'\)",
    ),
    (lambda: Pack(4, 4, "s32"), "B cannot have this type.*s32"),
    (lambda: Pack(4, 4, "s8", a="f64"), "no product of these types"),
    (lambda: Pack(4, 4, "f32", source="f16"), "not converted.*f16 to f32.*expected: f32"),
    (lambda: Pack(4, 4, "f64", source="f32"), "not converted.*f32 to f64"),
    (lambda: Pack(4, 4, "bf16", source="f64"), "not converted.*expected: bf16 or f32"),
    (lambda: Pack(4, 4, ldb=3), "ldb is smaller.*got: 3.*4 or more"),
    (lambda: Pack(4, 5, ldb=4), "ldb is smaller"),
    (lambda: Pack(5, 4, ldb=4, order="F"), "ldb is smaller"),
    (lambda: Pack(4, 4, order="K"), "order must be"),  # type: ignore[arg-type]
    (lambda: Pack(4, 4, nb=0), "nb, the columns of a block"),
    (lambda: Pack(4, 4, batch=OFFSETS), "a batch to pack is"),  # type: ignore[arg-type]
    (lambda: Pack(4, 4, batch=tw.Strided(2, a=8)), "a batch to pack is"),
    (lambda: Pack(4, 4, batch=tw.Strided(2, b=0)), "a batch to pack is"),
    (
        lambda: Pack(4, 4, ldb=dim("x"), batch=tw.Strided(dim("x", max=3))),
        "dim 'x' is declared twice",
    ),
    (
        lambda: Gemm(4, dim("n"), 4, b=tw.Packed(QUANTIZED)),
        r"a packed low-bit B has fixed sizes.*n=dim\('n'\)",
    ),
    (lambda: Gemm(4, 4, 4, b=PACKED, ldb=8), "ldb is given, but b is packed"),
    (lambda: Gemm(4, 4, 4, b=PACKED, batch=tw.Strided(2, b=16)), "stride of their format.*b=16"),
    (lambda: Gemm(4, 4, 4, b=PACKED, batch=tw.Strided(2, b=K)), "stride of their format"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_makes_no_sense_is_refused(make: Any, says: str) -> None:
    with pytest.raises(SpecError, match=f"(?s){says}"):
        make()


def test_a_packing_has_no_schedule() -> None:
    with pytest.raises(ScheduleError, match=r"nothing to schedule[^~]*tile=\(4, 8\)"):
        plan_for(Pack(8, 8), Schedule(tile=(4, 8)), resolve("scalar"))


def test_explain_tells_the_format() -> None:
    spec = Pack(64, 48, "s8", source="f32", batch=tw.Strided(3))
    text = explain_plan(plan_for(spec, Schedule(), resolve("avx2+vnni")))
    assert (
        "pack      B 64 x 48 (rows 48 elements apart), f32 as s8, for A of s8: 3264 bytes" in text
    )
    assert "s8 as s8, 64x48 in groups of 4 along k, blocks of 48 columns and their sums" in text
    assert "+128" not in text


def unsigned_along() -> Target:
    """Multiply-adds of bytes that take only an unsigned factor along the vectors."""
    target = resolve("avx2+vnni")
    vectors = tuple(
        replace(v, muladd=tuple(op for op in v.muladd if op.x == "u8")) if v.element == "s32" else v
        for v in target.vectors
    )
    return replace(target, vectors=vectors)


def test_b_is_shifted_where_no_product_takes_it_as_it_is(cases: Cases) -> None:
    target, spec = unsigned_along(), Pack(11, 21, "s8", a="s8", nb=16)
    form = format_of(spec, target)
    assert (form.stored, form.group, form.sums) == ("u8", 4, True)
    assert "+128" in explain_plan(plan_for(spec, Schedule(), target))
    b = draw("s8", (11, 21), np.random.default_rng(0))
    out = np.full(form.nbytes, 0xA5, np.uint8)
    interpret_kernel(spec, Schedule(), target, [b, out])
    assert not differing(form, out, layout(form, b)).size
    cases.count(target.name, "interpreted")


@pytest.mark.parametrize(("name", "columns"), [("avx2", 48), ("avx512+vnni", 48), ("amx", 32)])
def test_a_large_b_is_packed_in_blocks_of_a_few_tiles(name: str, columns: int) -> None:
    """One that a cache holds is a block of its own; what is asked for stays."""
    large, small = Gemm(64, 1024, 1024, a="u8", b=tw.Packed("s8")), Gemm(64, 96, 64, b=PACKED)
    assert format_of(large, resolve(name)).nb == columns
    assert format_of(small, resolve(name)).nb == 96
    asked = Gemm(64, 1024, 1024, a="u8", b=tw.Packed("s8", 1024))
    assert format_of(asked, resolve(name)).nb == 1024
    rows = Gemm(64, 8, 100_000, a="bf16", b=tw.Packed("bf16"))
    assert format_of(rows, resolve(name)).nb in (8, 16)


@pytest.mark.parametrize("name", ["avx512", "avx512+bf16", "avx2", "neon"])
def test_a_column_of_nothing_is_nothing(name: str) -> None:
    for type_ in ("f16", "bf16", "s8"):
        spec, target = Pack(0, 1, type_), resolve(name)
        out = np.ones((1, format_of(spec, target).nbytes), np.uint8)
        interpret_kernel(spec, Schedule(), target, [np.empty((0, 1), DTYPES[type_]), out])
        assert not out.any()
