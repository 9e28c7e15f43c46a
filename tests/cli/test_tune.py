"""``tilewright tune``: specs from words and files, what it stores, shows, reports and ships."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

import tilewright as tw
from tilewright.cli import tune as command
from tilewright.runtime.driver import tuning_subject
from tilewright.runtime.machine import host
from tilewright.runtime.tuned import MEASURED, WRONG, Database, Winner
from tilewright.runtime.tuned import Result as Stored

Run = Callable[..., Result]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FASTER = tw.Schedule(tile=(4, 8), loops="nmk", vectorize="n")


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """The database in force, in which 8x8x8 was tuned."""
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    found, spec = Database(), tw.Gemm(8, 8, 8)
    subject = tuning_subject(spec, host.resolve("host").name)
    slow = Stored(
        subject, tw.Schedule(), repr(spec), MEASURED, compiler="cc", version="0", cycles=90.0,
        flops=1024, hot=((2e-7, 1e-8), (2.1e-7, 1e-8), (2e-7, 1e-8)), cold=(3e-7, 3e-7), at=1.0,
    )  # fmt: skip
    fast = replace(
        slow, schedule=FASTER, cycles=80.0, hot=((1e-7, 1e-8), (1.1e-7, 1e-8)), cold=(2e-7,)
    )
    wrong = tw.Schedule(tile=(2, 8))
    bad = replace(slow, schedule=wrong, status=WRONG, said="c[0] < 1 & <b>", hot=(), cold=())
    found.put([slow, fast, bad])
    found.crown(Winner(subject, FASTER, repr(spec), 1.7, 0.02, 0.1, 10.2, "cc 1", "0", 1e9))
    return found


def test_a_tuning_from_the_command_line(run: Run, tmp_path: Path, database: Database) -> None:
    """A short one, of real kernels, and what is stored already is not tuned again."""
    before = database.winners()
    listed, report, shipped = (tmp_path / name for name in ("list.txt", "r.html", "x.jsonl"))
    listed.write_text("# sizes\n8x8x8\nGemm(4, 4, 4, beta=1)   # as Python prints it\n\n")
    words = ("--file", str(listed), "--seconds", "0.1", "--search", "ranked")
    said = run("tune", *words, "--report", str(report), "--export", str(shipped)).stdout
    assert "1.700 +- 0.020" in said and "4x4x4" in said and "2 specs" in said
    assert len(database.winners()) == 2 and before[0] in database.winners()
    assert tw.compile(tw.Gemm(4, 4, 4, beta=1)).tuned is not None
    other = Database(tmp_path / "other.sqlite3")
    assert other.merge(shipped.read_text().splitlines())[1] == 2
    _check_report(report.read_text())


def _check_report(text: str) -> None:
    assert text.startswith("<!DOCTYPE html>") and text.count("<h2>") == 2
    page = ET.fromstring(text.partition("\n")[2])
    words = "".join(page.itertext())
    for part in ("the best of each register tile", "roofline", "model against measurement",
                 "twice the standard error", "1 failed", "c[0] < 1 & <b>", "4x8 nmk"):  # fmt: skip
        assert part in words
    assert "http" not in "".join(node.get("src", "") + node.get("href", "") for node in page.iter())
    assert len(page.findall(".//{http://www.w3.org/2000/svg}svg")) == 4


def test_networks_are_tuned_too(run: Run, tmp_path: Path, database: Database) -> None:
    """One that has a winner is not tuned again."""
    weights = {"a": tw.Tensor("f32", (8, 32)), "b": tw.Tensor("f32", (32, 4))}
    layers = tw.network(lambda x, w: tw.relu(x @ w.a) @ w.b)
    spec = layers.of(x=tw.Tensor("f32", (tw.dim("rows"), 8)), w=weights)
    blocks = tw.Stages(tw.Stage("a b", rows=8))
    subject = tuning_subject(spec, host.resolve("host").name)
    database.put([replace(one, subject=subject, code=repr(spec), schedule=schedule)
                  for one, schedule in zip(database.results(database.winners()[0].subject),
                                           (tw.Schedule(), blocks), strict=False)])  # fmt: skip
    database.crown(Winner(subject, blocks, repr(spec), 1.2, 0.02, 0.1, 10.2, "cc 1", "0", 1e9))
    (tmp_path / "list.txt").write_text(f"{spec!r}  # printed\n")
    report = tmp_path / "r.html"
    words = ("tune", "--file", str(tmp_path / "list.txt"), "--search", "ranked")
    said = " ".join(run(*words, "--report", str(report)).stdout.split())
    assert "network of x (rows, 8), 2 weights" in said and "Stages(Stage('a b', rows=8))" in said
    page = "".join(ET.fromstring(report.read_text().partition("\n")[2]).itertext())
    assert "blocks    8 rows at a time: stages 0 to 1" in page and "the ranking" in page
    (found,) = json.loads(run("tune", "--spec", repr(spec), "--search", "ranked", "--json").stdout)
    assert found["winner"]["schedule"]["stages"][0]["rows"] == 8


def test_a_row_program_has_bytes_per_second(run: Run, tmp_path: Path, database: Database) -> None:
    spec = tw.network(lambda x: x * 2).of(x=tw.Tensor("f32", (4, tw.dim("n"))))
    subject = tuning_subject(spec, host.resolve("host").name)
    stored = database.results(database.winners()[0].subject)
    of_spec = replace(stored[0], subject=subject, code=repr(spec), flops=0, hot=((1e-6, 1e-6),) * 5,
                      schedule=tw.Schedule())  # fmt: skip
    database.put([of_spec])
    database.crown(
        Winner(subject, tw.Schedule(), repr(spec), 1.0, 0.02, 0.1, 0.0, "cc 1", "0", 1e9)
    )
    report = tmp_path / "r.html"
    words = ("tune", "--spec", repr(spec), "--search", "ranked", "--report", str(report))
    moved = 2 * 4 * 64 * 4  # of 64 columns
    for text in (run(*words).stdout, report.read_text()):
        assert f"{moved / 1e-6 / 1e9:.1f} GB/s" in text and "0.0 GFLOPS" not in text


def test_a_winner_has_one_figure(run: Run, tmp_path: Path, database: Database) -> None:
    report = tmp_path / "r.html"
    run("tune", "8x8x8", "--search", "ranked", "--report", str(report))
    page = ET.fromstring(report.read_text().partition("\n")[2])
    first = [cell.text for cell in page.findall(".//table/tr")[1]]
    assert first[0] == "1.700 ± 0.020" and str(first[1]).startswith("10.2 GFLOPS")
    assert "the same command with --forget" in run("tune", "8x8x8", "--search", "ranked").stdout


def test_what_was_tuned_is_forgotten(run: Run, database: Database) -> None:
    assert "0 results and 0 winners removed" in run("tune", "4x4x4", "--forget").stdout
    assert "3 results and 1 winner removed" in run("tune", "8x8x8", "--forget").stdout
    assert database.winners() == [] and tw.compile(tw.Gemm(8, 8, 8)).tuned is None
    assert '"winners": 0' in run("tune", "--forget", "--json").stdout


def test_a_trial_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("tilewright.tuning.tune._ROUNDS", (1, 1))
    spec = tw.Gemm(3, 8, 5)
    kernel, ranking = tw.tune(spec, seconds=0.1, search="ranked", store=False)
    assert kernel.requested == ranking[0].schedule and tw.compile(spec).tuned is None
    assert not (tmp_path / "data").exists()


def test_results_are_merged(run: Run, tmp_path: Path, database: Database) -> None:
    shipped = tmp_path / "results.jsonl"
    assert "4 lines" in run("tune", "--export", str(shipped)).stdout
    lines = shipped.read_text()
    database.path.unlink()
    assert "3 results and 1 winner taken into" in run("tune", "--merge", str(shipped)).stdout
    assert len(database.winners()) == 1
    shipped.write_text(f"{lines}no line of ours\n")
    assert "line 5: no line of ours" in run("tune", "--merge", str(shipped), status=1).stderr


def test_explain_and_bench_take_the_winner(run: Run, database: Database) -> None:
    assert "1.70 times as fast as the default" in " ".join(run("explain", "8x8x8").stdout.split())
    assert "tuned" not in run("explain", "8x8x8", "--tile", "8x8").stdout
    assert "tuned" not in run("explain", "8x8x8", "--target", "avx2").stdout
    assert ", tuned, data in cache" in run("bench", "8x8x8", "--seconds", "0.01").stdout


def test_an_interrupt_says_what_is_kept(
    run: Run, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_tune", interrupted)
    said = run("tune", "4x4x4", "--search", "ranked", status=130).stderr
    assert "all rounds before are stored" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Missing argument"),
        (("transpose", "8x8"), "what is tuned is a Gemm"),
        (("8x8x8", "--seconds", "0"), "--seconds"),
        (("8x8x8", "--tile", "4x4"), "No such option"),
        (("--file", "list.txt"), "line 2: 8x8x"),
    ],
)
def test_wrong_words_are_refused(
    run: Run, words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("8x8x8\n8x8x\n")
    more = () if "--search" in words else ("--search", "ranked")
    status = 1 if said.startswith(("what", "line")) else 2
    assert said in run("tune", *words, *(more if words else ()), status=status).stderr


def test_a_report_needs_matplotlib(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    said = run("tune", "8x8x8", "--report", str(tmp_path / "r.html"), status=2).stderr
    assert "pip install 'matplotlib>=" in said


def test_the_list_of_layers_is_one_of_specs() -> None:
    lines = (EXAMPLES / "mobile_network.txt").read_text().splitlines()
    sizes = [line.split("x") for line in lines if not line.startswith("#")]
    assert len(sizes) > 10 and all(len(one) == 3 and all(map(str.isdecimal, one)) for one in sizes)


def test_a_plan_is_drawn(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    run("explain", "64x50x64", "--target", "avx2", "--svg", str(file))
    assert ET.fromstring(file.read_text()).tag.endswith("svg")
    said = run("explain", "transpose", "8x8", "--svg", str(file), status=1).stderr
    assert "a picture is of one product" in said
    assert "2 specs" in run("explain", "4x4x4", "5x5x5", "--svg", str(file), status=1).stderr
