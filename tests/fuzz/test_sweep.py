"""Random products of the whole space, and those that such products once found wrong."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.cases import Cases

from tilewright.cli.sweep import command
from tilewright.errors import PlanError, SpecError, TargetError, VerificationError
from tilewright.runtime.driver import compile_many
from tilewright.runtime.fuzz import drawing, sweep
from tilewright.runtime.fuzz.drawing import EVERY, draw, numbers
from tilewright.runtime.fuzz.sweep import Outcome, Tally
from tilewright.runtime.machine import host
from tilewright.spec.expression import Operand, acc
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix, Packed, Strided
from tilewright.spec.postops import abs as magnitude
from tilewright.spec.quantized import Quantize, Quantized
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim

FEATURES = "neon+dotprod+i8mm+bf16"
#: Of each target: how many tests, and the cases of each.
CHUNKS = {
    "avx2": (1, 24),
    FEATURES: (1, 28),
    "amx": (1, 28),
    "power10": (1, 26),
    "sme+f64": (2, 48),
    "sme+sme2+f64": (1, 12),
    "rvv256": (1, 52),
    "rvv128": (1, 6),
    "rvv512+zvfh": (1, 6),
    "rvv1024+zvfbfwma": (1, 6),
    "sve256+sve2+i8mm+bf16": (1, 40),
    "sve512+sve2+i8mm+bf16": (1, 12),
    "sve128": (1, 6),
    "sve1024+i8mm": (1, 4),
    "sve2048+bf16": (1, 4),
    "avx10.2": (1, 16),
}
#: What was once refused, or wrong.
FOUND: dict[str, tuple[Gemm, Schedule]] = {
    "f64 zero point of the call": (
        Gemm(9, 10, 4, a="f64", d="f64", d_zero="column", epilogue=acc * 0.5, order="F"),
        Schedule(),
    ),
    "a step that simplifying leaves unread": (
        Gemm(8, 8, 5, alpha=-1, epilogue=magnitude(acc) - Operand("x", "f32")),
        Schedule(),
    ),
    "sums whose last line ends with the buffer": (
        Gemm(
            dim("m"), 16, 5, a=Matrix("f32", "F"), b=Packed("f32", 64), d=Matrix("f32", "F"),
            d_scale=2, batch=Strided(3),
        ),
        Schedule(loops="bnmk"),
    ),
    "groups of columns that are no whole vectors, of 8 bits": (
        Gemm(7, 44, 21, a="u8", b=Packed("s8")),
        Schedule(tile=(2, 6)),
    ),
    "groups of columns that are no whole vectors, of 16 bits": (
        Gemm(7, 44, 21, a="bf16", b=Packed("bf16")),
        Schedule(tile=(1, 6)),
    ),
    "the sums of a column packed ahead, in fewer lanes than vectors have": (
        Gemm(16, 1, 5, a="s8", b=Packed("s8"), a_zero="row", b_zero="column", batch=Strided(3)),
        Schedule(),
    ),
    "a column packed ahead of no elements": (
        Gemm(64, 1, 0, a=Matrix("s8", "F"), b=Packed("u8"), a_zero="row", b_zero="scalar"),
        Schedule(),
    ),
    "panels of a stack, of whose tiles some there are not": (
        Gemm(
            dim("m"), 80, 33, a=Matrix("bf16", "F"), b=Packed("f32", 16),
            batch=Strided(1, c=None),
        ),
        Schedule(),
    ),
    "the same, whose sums are finished": (
        Gemm(64, 15, 2, a="bf16", b=Packed("bf16", 16), d="bf16"),
        Schedule(tile=(2, 5)),
    ),
    "a stack whose rows are cut in several sizes": (
        Gemm(
            dim("m"), 48, 31, a=Matrix("f32", "F"), b=Packed("f32", nb=16),
            batch=Strided(2, c=dim("stride_c")),
        ),
        Schedule(),
    ),
    "a stack of which threads share each product, as it needs scratch memory": (
        Gemm(dim("m"), 33, 34, a="bf16", b=Packed("bf16"), batch=Strided(3, c=None)),
        Schedule(threads=2),
    ),
    "a packed column of no elements": (
        Gemm(13, 1, 0, a=Matrix("f32", "F"), b=Packed("f8_e5m2"), batch=Strided(4)),
        Schedule(),
    ),
    "minima of blocks beside scales of A that the call gives": (
        Gemm(
            13, 16, 40, a="s8", b=Packed(Quantized("u4", scale="f16", zero="f16", block=32)),
            a_scale=("row", 32),
        ),
        Schedule(),
    ),
    "a lane of an operand by columns that no tail has": (
        Gemm(dim("m"), 5, 3, c=Matrix("f32", "F"), epilogue=acc + Operand("x", "f8_e5m2", "full")),
        Schedule(),
    ),
    "a block of K in several parts, unpacked into one buffer": (
        Gemm(
            40, 20, 256, a=Quantize("f32", per="row"),
            b=Packed(Quantized("u4", scale="f16", zero="u4", block=128)),
        ),
        Schedule(),
    ),
    "rows that are quantized in two ways, for vectors and for tiles": (
        Gemm(
            dim("m"), 5, 96, a=Quantize("f32", per=("row", 24)),
            b=Packed(Quantized("s4", scale="f32", zero="f16", block=24)),
        ),
        Schedule(),
    ),
    "a tile that ends within a block": (
        Gemm(48, 8, 48, a=Matrix("f32", "F"), b=Packed("f32")),
        Schedule(tile=(1, 7)),
    ),
}  # fmt: skip
CHUNK = [(target, i) for target, (chunks, _) in CHUNKS.items() for i in range(chunks)]


def runs(target: str) -> str:
    """By what ``target`` runs here, or the test is skipped."""
    try:
        return host.means(host.resolve(target))
    except TargetError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("target", "chunk"), CHUNK, ids=str)
def test_random_products_are_right(
    target: str, chunk: int, cases: Cases, pytestconfig: pytest.Config
) -> None:
    means, (_, count) = runs(target), CHUNKS[target]
    seed, first = pytestconfig.option.seed, chunk * count
    found = list(sweep.sweep(target, count, seed, first=first, flags=("-O0",)))
    wrong = [
        f"{outcome.verdict}: {outcome.reason}\n{case.python(target)}"
        for case, outcome in found
        if outcome.verdict != "passed"
    ]
    cases.count(target, means, len(found) - len(wrong))
    assert [case.index for case, _ in found] == list(range(first, first + count))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("target", ["scalar", "avx2+vnni", *list(CHUNKS)[:4]])
def test_what_was_found_stays_right(target: str, cases: Cases) -> None:
    means = runs(target)
    kernels = compile_many([(*found, target) for found in FOUND.values()])
    for kernel in kernels:
        kernel.verify(cases=10)
        cases.count(target, means, 10)


# -- what a sweep makes of failures ---------------------------------------------------------------


def test_the_same_seed_makes_the_same_cases() -> None:
    first, again, other = ([draw(seed, i).python("avx2") for i in range(30)] for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_cases_are_chosen_by_their_levels() -> None:
    wanted = {"quantized b": "u4 x f16 x 8 x 32", "order of a": "F"}
    chosen = list(islice(numbers(7, 100, wanted), 3))
    cases = [draw(7, i) for i in range(100, chosen[-1] + 1)]
    few = [case.index for case in cases if wanted.items() <= case.levels.items()]
    assert chosen == few
    form = Quantized("u4", scale="f16", zero=8, block=32)
    assert all(draw(7, i).arguments["b"].quantized == form for i in chosen)


@pytest.mark.parametrize(
    ("having", "said"),
    [
        ({"quantised b": "none"}, "no axis of the sweep"),
        ({"order of a": "G"}, "no level of 'order of a'"),
        ({"types": "f64 x f64", "outputs": "row_max"}, "of 50 cases has these levels together"),
    ],
    ids=str,
)
def test_levels_that_no_case_has(
    having: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "PATIENCE", 50)
    with pytest.raises(SpecError, match=said):
        next(numbers(0, 0, having))


def test_every_level_occurs() -> None:
    tally = Tally()
    for i in range(3400):
        tally.add(draw(0, i), Outcome(i, "passed"))
    assert tally.levels.keys() == EVERY.keys()
    few = {axis for axis, levels in EVERY.items() if len(tally.levels[axis]) < len(set(levels))}
    assert not few


def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    """In processes, a package whose ``fuzz.worker`` is ``text`` stands for tilewright."""
    for folder in ("tilewright", "tilewright/runtime", "tilewright/runtime/fuzz"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "tilewright" / "runtime" / "fuzz" / "worker.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


DIES = """
import json, os, signal, sys
for line in sys.stdin:
    for i in map(int, line.split()):
        print(json.dumps({"started": i}), flush=True)
        if i == 3:
            print("about to end", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        verdict = "refused" if i == 5 else "passed"
        print(json.dumps({"index": i, "verdict": verdict, "reason": "no"}), flush=True)
"""
DIES_WHILE_IT_MAKES = """
import json, sys
for line in sys.stdin:
    batch = list(map(int, line.split()))
    if 6 in batch:
        sys.exit("too large")
    for i in batch:
        print(json.dumps({"started": i}), flush=True)
        print(json.dumps({"index": i, "verdict": "passed", "reason": ""}), flush=True)
"""


def test_a_process_that_ends_is_its_cases_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, DIES)
    outcomes = [outcome for _, outcome in sweep.sweep("avx2", 40, 0, jobs=2)]
    assert [outcome.index for outcome in outcomes] == list(range(40))
    wrong = {o.index: (o.verdict, o.reason) for o in outcomes if o.verdict != "passed"}
    assert wrong == {
        3: ("failed", f"the process ended: {signal.SIGSEGV.name} about to end"),
        5: ("refused", "no"),
    }


def test_a_case_that_ends_the_compiler_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, DIES_WHILE_IT_MAKES)
    outcomes = [outcome for _, outcome in sweep.sweep("avx2", 20, 0)]
    assert [outcome.index for outcome in outcomes] == list(range(20))
    wrong = {o.index: o.reason for o in outcomes if o.verdict != "passed"}
    assert wrong == {6: "the process ended: status 1 too large"}


def test_what_cannot_be_made_is_found_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    drew = [draw(0, i) for i in range(7)]
    bad = {2: PlanError("no"), 5: VerificationError("no")}

    def build(requests: Sequence[tuple[Any, ...]], flags: Sequence[str] = ()) -> list[Any]:
        assert flags == ("-O0",) or not any(isinstance(spec, Gemm) for spec, _, _ in requests)
        for index, error in bad.items():
            if any(spec == drew[index].spec() for spec, _, _ in requests):
                raise error
        return list(requests)

    monkeypatch.setattr(sweep, "build_many", build)
    made = {case.index: kernel for case, kernel in sweep.made(drew, "avx2", ("-O0",))}
    verdicts = {i: one.verdict for i, one in made.items() if isinstance(one, Outcome)}
    assert verdicts == {2: "refused", 5: "failed"}
    assert made.keys() == set(range(7))


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_refused_case_fails_the_command(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*_: Any, **options: Any) -> Iterator[tuple[Any, Outcome]]:
        assert options["flags"] == ["-Og"]
        for i in range(3):
            yield draw(0, i), Outcome(i, "refused" if i == wrong - 1 else "passed", "no fit")

    monkeypatch.setattr("tilewright.cli.sweep.sweep", found)
    said = CliRunner().invoke(command, ["--cases=3", "--target=scalar", "--optimize=g"])
    assert said.exit_code == wrong
    assert said.output.splitlines()[-1] == f"scalar: {3 - wrong} passed, 0 failed, {wrong} refused"
    for text in ("case 0 refused", "no fit", draw(0, 0).python("scalar")):
        assert (text in said.output) == bool(wrong)
