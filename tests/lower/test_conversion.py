"""Where operands are converted: at each load, once beforehand, or a panel of rows at a time."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import Cases
from support.products.interpreted import Interpreted

from tilewright.generate import interpret_kernel, plan_for, program_for
from tilewright.interpret.run import interpret
from tilewright.ir.nest import BlockLoop, Call, NestNode, Pack
from tilewright.ir.nodes import walk
from tilewright.ir.ops import Broadcast, Load, Pick
from tilewright.plan.plan import Plan
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix, Packed, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim


def plan(spec: Gemm, schedule: Schedule | None = None, target: str = "avx512") -> Plan:
    found = plan_for(spec, schedule or Schedule(), resolve(target))
    assert isinstance(found, Plan)
    return found


def buffers(nodes: tuple[NestNode, ...], loops: str = "") -> dict[str, str]:
    """Each buffer and the counters of the loops around it."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, Pack):
            found |= {str(node.buffer): loops} | buffers(node.body, loops)
        elif isinstance(node, BlockLoop):
            found |= buffers(node.body, f"{loops}{node.counter} ")
    return found


def broadcasts(found: Plan) -> list[Broadcast]:
    tiles = program_for(found).tiles
    return [op for tile in tiles for op in walk(tile.body) if isinstance(op, Broadcast)]


def f16(m: Any = 20, n: Any = 48, k: Any = 31, a: Any = "f16", **more: Any) -> Gemm:
    return Gemm(m, n, k, a=a, b=Packed("f16"), **more)


def converting(nodes: tuple[NestNode, ...], loops: str = "") -> list[str]:
    """The counters of the loops around each call that converts, but for the first panel."""
    found: list[str] = []
    for node in nodes:
        if isinstance(node, Pack):
            found += converting(node.body, loops)
        elif isinstance(node, BlockLoop):
            found += converting(node.body, f"{loops}{node.counter} ")
        elif isinstance(node, Call) and "convert_a" in node.program:
            found.append(loops.strip())
    return found


def test_rows_of_a_are_converted_beside_the_tiles_before_them() -> None:
    found = plan(f16(k=64), Schedule(tile=(6, 16)))
    assert (found.nest.outer, found.by_panels) == ("mn", True)
    nest = program_for(found).nest
    assert buffers(nest) == {"a_packed": ""}
    assert converting(nest) == ["kp", "mt nt"], "two rows are the first panel, then three of 6"
    (pack,) = nest
    assert isinstance(pack, Pack)
    assert pack.elements == 2 * 6 * 64 + 16, "two panels, and what a vector reads beyond"


@pytest.mark.parametrize(
    ("k", "beside"),
    [(56, ["", "", ""]), (20, ["", ""]), (65, ["", "", ""]), (7, ["lp"]), (144, ["nt", "nt"])],
)
def test_k_is_converted_in_pieces_of_whole_vectors(k: int, beside: list[str]) -> None:
    """Beside three tiles 32 and 24; 20; 32 and 33; 7; 48 beside each. Vectors are of 16."""
    nest = program_for(plan(f16(m=12, k=k), Schedule(tile=(6, 16)))).nest
    assert converting(nest) == beside


def test_pieces_beside_some_tiles_leave_the_tile_as_it_is() -> None:
    """The last of three tiles of 5 columns would read a whole vector beyond B's 16."""
    found = plan(
        Gemm(64, 15, 2, a="bf16", b=Packed("bf16", 16)), Schedule(tile=(2, 5)), "avx2+vnni"
    )
    tiles = program_for(found).tiles
    loads = [op for tile in tiles for op in walk(tile.body) if isinstance(op, Load)]
    of_b = [op for op in loads if op.address.pointer == "pb"]
    assert found.by_panels
    assert of_b and all(op.active is not None for op in of_b)


def test_one_panel_has_room_for_itself() -> None:
    (pack,) = program_for(plan(f16(m=6, k=64), Schedule(tile=(6, 16)))).nest
    assert isinstance(pack, Pack)
    assert pack.elements == 6 * 64 + 16
    assert not converting((pack,))


@pytest.mark.parametrize(
    ("spec", "schedule"),
    [
        (f16(), Schedule(loops="nmk")),
        (f16(batch=Strided(2)), Schedule()),
        (Gemm(20, 48, 32, a=Matrix("u8", "F"), b="s8"), Schedule()),
        (Gemm(20, 300, 300, a="f16", b=Packed("f16")), Schedule()),
        (Gemm(20, 48, 31, a="f16", b=Packed("f16", 16)), Schedule(loops="mnk")),
        (Gemm(dim("m"), 48, 65, a=Matrix("u8", "F"), b="s8"), Schedule(loops="mnk")),
    ],
    ids=["nmk", "batch", "groups", "large B", "blocks of columns", "matrices"],
)
def test_elsewhere_all_of_a_is_converted_first(spec: Gemm, schedule: Schedule) -> None:
    found = plan(spec, schedule, "amx" if "m" in dict(spec.runtime_sizes()) else "avx512")
    assert not found.by_panels
    assert buffers(program_for(found).nest)["a_packed"] == ""


def test_groups_of_one_line_are_no_rows() -> None:
    """Of a row whose elements lie apart, an element after the other: their step is 1 as well."""
    spec = Gemm(1, 5, 448, a=Matrix("u8", "F"), b=Packed("s8"), lda=96)
    found = plan(spec, Schedule(), "scalar")
    assert not found.by_panels
    assert buffers(program_for(found).nest)["a_packed"] == ""


@pytest.mark.parametrize("name", ["scalar", "avx2", "avx512", "neon"])
@pytest.mark.parametrize("m", [13, dim("m")], ids=str)
@pytest.mark.parametrize(("n", "k"), [(11, 7), (40, 33), (dim("n"), 33), (40, dim("k"))], ids=str)
def test_panels_hold_what_they_should(name: str, m: Any, n: Any, k: Any, cases: Cases) -> None:
    """Of every number of rows that leaves another rest, none among them."""
    spec, rng = Gemm(m, n, k, a="f8_e5m2", b="f32", beta=1), np.random.default_rng(0)
    schedule = Schedule(loops="mnk")
    made = plan(spec, schedule, target=name)
    program = program_for(made)
    assert made.by_panels
    columns, depth = 40 if n == dim("n") else n, 33 if k == dim("k") else k
    for rows in [13] if m == 13 else [0, 1, 2, 5, 6, 7, 12, 13, 19, 27]:
        a, b, c = (
            rng.integers(-3, 4, size).astype(np.float32)
            for size in ((rows, depth), (depth, columns), (rows, columns))
        )
        expected = c + a @ b
        given = [a.astype(ml_dtypes.float8_e5m2), b, c]
        sizes = {"m": rows, "n": columns, "k": depth}
        known = [sizes[slot] for slot, _ in spec.runtime_sizes()]
        interpret(made, program, given, known)
        np.testing.assert_array_equal(c, expected)
        cases.count(name, "interpreted")


@pytest.mark.parametrize("type_", ["f16", "bf16"])
@pytest.mark.parametrize("target", ["avx2", "avx512", "neon"])
def test_few_lines_are_converted_when_loaded(target: str, type_: Any) -> None:
    """Those along the vectors; where many lines meet them, once beforehand."""
    few, many, unknown = (
        plan(Gemm(m, 33, 9, a="f32", b=type_), target=target) for m in (12, 13, dim("m"))
    )
    assert "b" not in few.staging.sources
    assert "b" in many.staging.sources
    assert "b" in unknown.staging.sources


@pytest.mark.parametrize("type_", ["f16", "bf16"])
def test_a_core_that_converts_beside_multiplying_converts_each_element_as_it_is_spread(
    type_: Any,
) -> None:
    spec = Gemm(64, 48, 64, a=type_, b=Packed(type_))
    beside, before = (plan(spec, target=name) for name in ("avx512+zen5", "avx512"))
    assert (set(beside.staging.sources), set(before.staging.sources)) == (set(), {"a"})
    assert any(op.memory == type_ for op in broadcasts(beside))
    assert not any(op.memory == type_ for op in broadcasts(before))
    narrow = plan(spec, Schedule(tile=(16, 16)), target="avx512+zen5")
    assert bool(narrow.staging.sources) == (type_ == "f16"), "16 elements for 16 multiply-adds"
    wide = plan(Gemm(64, 32, 64, a=type_, b=Packed(type_)), target="avx512+zen5")
    assert not wide.staging.sources
    rows = Gemm(dim("m"), 48, 64, a=type_, b=Packed(type_))
    assert not plan(rows, target="avx512+zen5").staging.sources
    assert plan(rows, target="avx512").staging.sources
    (decision,) = (d for d in beside.decisions if d.what == "vectorize")
    assert "with A converted first" in decision.reason


@pytest.mark.parametrize("k", [3, 4, 5, 8, 64, 67, dim("k")], ids=str)
def test_a_few_elements_of_a_row_are_converted_together(k: Any) -> None:
    """Four serve as many steps; what is left of K is spread one by one."""
    found = plan(Gemm(4, 48, k, a="f16", b="f32"), target="avx512+zen5")
    tiles = program_for(found).tiles
    repeated = [op for op in broadcasts(found) if op.group > 1]
    picks = [op for tile in tiles for op in walk(tile.body) if isinstance(op, Pick)]
    assert not found.staging.sources
    assert {op.group for op in repeated} == ({4} if k != 3 else set())
    assert len(picks) == 4 * len(repeated)
    alone = [op for op in broadcasts(found) if op.group == 1]
    assert bool(alone) == (k not in (4, 8, 64))


@pytest.mark.parametrize("type_", ["f16", "bf16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_is_spread_is_converted_exactly(type_: Any, order: Any, cases: Cases) -> None:
    """Subnormals, infinities and NaN among them, in every width of vectors, alone and in fours."""
    for n, k in itertools.product((48, 24, 8, 4, 1), (2, 6)):
        spec = Gemm(5, n, k, a=Matrix(type_, order), b="f32")
        found = plan(spec, target="avx512+zen5")
        bits = np.zeros((5, k), np.uint16)
        bits[:, k - 2] = 0x0001, 0x8001, 0x3C01, 0x7F80, 0xFFFF
        bits[:, 0] = 0x03FF, 0x8400, 0x7C00, 0x0080, 0xFF80
        a = np.asarray(bits.view(np.float16 if type_ == "f16" else ml_dtypes.bfloat16), order=order)
        b, c = np.ones((k, n), np.float32), np.full((5, n), 3, np.float32)
        interpret_kernel(spec, Schedule(), found.target, [a, b, c], [])
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b)
        cases.count("avx512", "interpreted")


@pytest.mark.parametrize("target", ["avx2+vnni+zen5", "avx512+vnni+zen5"])
@pytest.mark.parametrize(("type_", "orders"), [("s8", "CCC"), ("u8", "CFC"), ("s8", "FFF")])
def test_of_many_lines_groups_are_shifted_as_they_are_spread(
    target: str, type_: str, orders: str
) -> None:
    """They lie where they are, and are not summed; few lines are."""
    across, lines = ("a", "m") if orders[2] == "C" else ("b", "n")
    a, b, c = (Matrix(t, o) for t, o in zip((type_, type_, "s32"), orders, strict=True))  # type: ignore[arg-type]
    more: dict[str, Any] = {name: dim(name) for name in ("m", "n", "k", "lda", "ldb")}
    many = Gemm(**more, a=a, b=b, c=c)
    one = Interpreted(many, Schedule(), resolve(target))
    found = plan(many, target=target)
    assert across not in found.staging.sources
    assert found.staging.product.shifts[across] in (128, -128)
    for seed in range(3):
        one.run(one.sample(seed, whole=True))
    few = Gemm(**{**more, lines: dim(lines, max=100)}, a=a, b=b, c=c)
    assert plan(few, target=target).staging.product.shifts[across] == 0
