"""The database of tunings: shared, damaged, of another machine, exported and merged."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.errors import CacheError
from tilewright.runtime import tuned
from tilewright.runtime.driver import tuning_subject
from tilewright.runtime.machine import host
from tilewright.runtime.store import folders
from tilewright.runtime.tuned import MEASURED, Database, Result, Subject, Winner

SPEC = tw.Gemm(16, 16, 16)
HERE = Subject("a spec", "scalar", "a cpu", "sources")
SCHEDULE = tw.Schedule(tile=(4, 16), loops="nkmk", block={"k": 8}, vectorize="n")


def result(subject: Subject = HERE, rounds: int = 3, **more: object) -> Result:
    made = Result(
        subject, SCHEDULE, "Gemm(1, 1, 1)", MEASURED, compiler="cc 1", version="0",
        cycles=12.5, hot=((2e-6, 1e-6),) * rounds, cold=(3e-6,), at=1.5,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def winner(subject: Subject = HERE, ratio: float = 1.25) -> Winner:
    return Winner(subject, SCHEDULE, "Gemm(1, 1, 1)", ratio, 0.01, 0.02, 99.5, "cc 1", "0", 1.5)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(folders, "_said", set())
    return Database()


def test_what_is_stored_comes_back(database: Database) -> None:
    assert database.results() == [] == database.winners() and database.winner(HERE) is None
    assert not database.path.parent.exists(), "nothing is made by reading"
    database.put([result(), result(schedule=tw.Schedule(), cycles=None)])
    database.crown(winner())
    assert database.results(HERE) == [result(), result(schedule=tw.Schedule(), cycles=None)]
    assert database.winner(HERE) == winner()
    database.put([result(rounds=5)])
    database.crown(winner(ratio=1.5))
    assert len(database.results()) == 2 and database.winners() == [winner(ratio=1.5)]
    assert len(result(rounds=5).hot) in {len(one.hot) for one in database.results()}
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("field", Subject._fields)
def test_another_cpu_target_spec_or_version_is_not_used(database: Database, field: str) -> None:
    other = HERE._replace(**{field: "another"})
    database.put([result(other)])
    database.crown(winner(other))
    assert database.winner(HERE) is None and database.results(HERE) == []
    began_elsewhere = [SCHEDULE] if field in ("cpu", "sources") else []
    assert database.earlier(HERE) == began_elsewhere


def test_a_winner_of_a_foreign_cpu_is_not_compiled(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tuning_subject(SPEC, host.resolve("host").name)
    legal = tw.Schedule(tile=(2, 16), vectorize="n")
    database.crown(replace(winner(mine._replace(cpu="GenuineIntel 6 1")), schedule=legal))
    assert tw.compile(SPEC).tuned is None
    database.crown(replace(winner(mine), schedule=legal))
    assert tw.compile(SPEC).requested == legal
    monkeypatch.setattr(tuned, "cpu_name", lambda: "another")
    assert tw.compile(SPEC).tuned is None


@pytest.mark.parametrize("damage", ["text", "cut", "table"])
def test_a_damaged_database_is_set_aside_and_begun_anew(database: Database, damage: str) -> None:
    database.put([result()])
    database.crown(winner())
    if damage == "text":
        database.path.write_text("no database, but a text that is long enough to be one " * 99)
    elif damage == "cut":
        database.path.write_bytes(database.path.read_bytes()[:6000])
    else:
        with sqlite3.connect(database.path) as connection:
            connection.execute("DROP TABLE winners")
        connection.close()
    with pytest.warns(RuntimeWarning, match=r"are set aside as tuned-1.sqlite3.damaged-"):
        assert database.winner(HERE) is None
    (aside,) = database.path.parent.glob("*.damaged-*")
    assert aside.stat().st_size > 0 and not database.path.exists()
    database.crown(winner())
    assert database.winner(HERE) == winner()


@pytest.mark.parametrize("table", ["winners", "results"])
def test_a_damaged_row_is_removed_and_all_others_stay(database: Database, table: str) -> None:
    other = HERE._replace(spec="another")
    database.put([result(), result(other)])
    database.crown(winner())
    database.crown(winner(other))
    with sqlite3.connect(database.path) as connection:
        wrong = "'{\"tile\": [0, -1]}'"
        connection.execute(f"UPDATE {table} SET schedule={wrong} WHERE spec='another'")
    connection.close()
    with pytest.warns(RuntimeWarning, match=f"1 of the {table} cannot be read and are removed"):
        left = len(database.winners()), len(database.results())
    assert left == ((1, 2) if table == "winners" else (2, 1))
    assert database.winner(HERE) == winner() and database.results(HERE) == [result()]
    assert not [*database.path.parent.glob("*.damaged-*")]


@pytest.mark.parametrize("value", ["[" * 50_000, "1e999", "7"])
def test_a_winner_that_is_no_schedule_stops_no_compilation(database: Database, value: str) -> None:
    database.crown(winner(tuning_subject(SPEC, host.resolve("host").name)))
    with sqlite3.connect(database.path) as connection:
        connection.execute("UPDATE winners SET schedule=?", (value,))
    connection.close()
    with pytest.warns(
        RuntimeWarning, match="1 of the winners .* tilewright tune measures anew"
    ) as said:
        assert tw.compile(SPEC, target="host").tuned is None
    assert str(database.path) in str(said[0].message)
    with pytest.raises(CacheError, match="line 1"):
        database.merge([json.dumps({"winner": {"schedule": value}})])


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_database_that_others_can_write_is_not_used(database: Database, place: str) -> None:
    database.crown(winner(tuning_subject(SPEC, host.resolve("host").name)))
    open_to_all = database.path if place == "file" else database.path.parent
    before = stat.S_IMODE(open_to_all.stat().st_mode)
    open_to_all.chmod(before | 0o022)
    with pytest.warns(RuntimeWarning, match=f"are not used: .* chmod go-w {open_to_all}") as said:
        assert tw.compile(SPEC).tuned is None
    assert str(database.path) in str(said[0].message)
    with pytest.raises(CacheError, match="TILEWRIGHT_DATA_DIR"):
        database.put([result()])
    open_to_all.chmod(before)
    assert database.winners() and not database.results()


def test_a_database_of_another_user_is_not_used(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.crown(winner())
    monkeypatch.setattr(os, "geteuid", lambda: database.path.stat().st_uid + 1)
    with pytest.warns(RuntimeWarning, match="belongs to another user; set TILEWRIGHT_DATA_DIR"):
        assert database.winner(HERE) is None


def test_what_is_stored_is_forgotten(database: Database) -> None:
    assert database.forget() == (0, 0) and not database.path.exists()
    other = HERE._replace(spec="another spec")
    earlier = HERE._replace(sources="earlier sources")
    for each in (HERE, other, earlier):
        database.put([result(each)])
        database.crown(winner(each))
    assert database.forget([HERE]) == (2, 2)
    assert [one.subject for one in database.winners()] == [other]
    assert [one.subject for one in database.results()] == [other]
    assert database.forget() == (1, 1) and database.winners() == []


def test_writing_into_a_damaged_database_begins_it_anew(database: Database) -> None:
    folders.make_directory(database.path.parent)
    database.path.write_text("no database " * 99)
    with pytest.warns(RuntimeWarning, match="set aside"):
        database.put([result()])
    assert database.results() == [result()]


def test_a_directory_that_cannot_be_used_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "file" / "data"))
    with pytest.raises(CacheError, match="TILEWRIGHT_DATA_DIR"):
        Database().put([result()])
    assert tw.compile(SPEC).tuned is None


WRITER = """
import sys
from dataclasses import replace
from tilewright.runtime.tuned import Database, Result, Subject
from tilewright.spec.schedule import Schedule
number = int(sys.argv[1])
for i in range(40):
    schedule = Schedule(tile=(number, 1 + i))
    Database().put([Result(Subject(*"abcd"), schedule, "", "measured", hot=((1.0, 1.0),))])
"""


def test_two_processes_share_a_database(database: Database) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(number)], stderr=subprocess.PIPE)
        for number in (1, 2)
    ]
    for one in writers:
        _, said = one.communicate(timeout=120)
        assert one.returncode == 0, said.decode()
    assert len(database.results(Subject(*"abcd"))) == 80


def test_the_data_directory_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    import platformdirs

    assert str(folders.data_directory()) == platformdirs.user_data_dir("tilewright", False)
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", "~/mine")
    assert folders.data_directory() == Path("~/mine").expanduser()


# -- shipping -----------------------------------------------------------------------------------


def test_results_travel(database: Database, tmp_path: Path) -> None:
    database.put([result(), result(schedule=tw.Schedule())])
    database.crown(winner())
    lines = list(database.export())
    assert all(set(json.loads(line)) <= {"result", "winner"} for line in lines)
    other = Database(tmp_path / "other" / "tuned.sqlite3")
    assert other.merge(lines) == (2, 1)
    assert other.results() == database.results() and other.winners() == database.winners()


def test_merging_keeps_what_was_measured_more_and_what_gains_more(
    database: Database, tmp_path: Path
) -> None:
    other = Database(tmp_path / "other" / "tuned.sqlite3")
    database.put([result(rounds=5)])
    database.crown(winner(ratio=1.5))
    other.put([result(rounds=3)])
    other.crown(winner(ratio=1.2))
    assert database.merge(other.export()) == (0, 0)
    assert other.merge(database.export()) == (1, 1)
    assert other.winners() == database.winners() == [winner(ratio=1.5)]


@pytest.mark.parametrize("line", ["{", '{"result": {}}', "[1]", '{"winner": {"spec": "x"}}'])
def test_a_file_that_is_none_of_ours_is_refused_whole(database: Database, line: str) -> None:
    database.put([result()])
    good = next(iter(database.export())).replace('"a spec"', '"another spec"')
    with pytest.raises(CacheError, match="line 2"):
        database.merge([good, line])
    assert database.results() == [result()]
