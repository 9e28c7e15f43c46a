"""Store the results of tunings in a database: each measured variant, and the winner of each spec.

The sqlite3 file is in the user's data directory, or in ``TILEWRIGHT_DATA_DIR``. Several processes
may use it at the same time; each write is one transaction. A damaged file is renamed with a
message, and a new one is begun. A row that cannot be read is removed with a message. A file that
another user could have written is not used, with a message. A winner counts only for the CPU, the
target and the sources of tilewright with which it was found. ``sqlite3`` is imported only if there
is a database.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.errors import CacheError, TilewrightError
from tilewright.runtime.machine import host
from tilewright.runtime.store import cache
from tilewright.runtime.store.folders import (
    DATA,
    UNREADABLE,
    UnusableError,
    check_directory,
    check_owner,
    make_directory,
    say,
    tunings_file,
)
from tilewright.spec.network.stages import schedule_of
from tilewright.spec.schedule import Schedule

if TYPE_CHECKING:
    import sqlite3

    from tilewright.plan.loops import Decided

#: Maximum time in seconds that a process waits until another process has finished its write.
_PATIENCE = 30.0
#: Maximum number of measurements that are stored for each variant. The latest ones are kept.
KEPT = 64
#: Possible outcomes when a variant of a kernel is measured.
MEASURED, CRASHED, HUNG, WRONG, REFUSED = "measured", "crashed", "hung", "wrong", "refused"
STATUSES = (MEASURED, CRASHED, HUNG, WRONG, REFUSED)

#: First columns of both tables, with their SQL types. They identify the subject of a row.
_OF = {"spec": "TEXT", "target": "TEXT", "cpu": "TEXT", "sources": "TEXT"}
#: Last columns of both tables, with their SQL types: compiler, tilewright's version, Unix time.
_MADE = {"compiler": "TEXT", "version": "TEXT", "at": "REAL"}
_TABLES = {
    "results": {
        **_OF, "schedule": "TEXT", "code": "TEXT", "status": "TEXT", "said": "TEXT",
        "cycles": "REAL", "flops": "INTEGER", "hot": "TEXT", "cold": "TEXT", **_MADE,
    },
    "winners": {
        **_OF, "schedule": "TEXT", "code": "TEXT", "ratio": "REAL", "uncertainty": "REAL",
        "spread": "REAL", "gflops": "REAL", **_MADE,
    },
}  # fmt: skip
_KEYS = {"results": (*_OF, "schedule"), "winners": tuple(_OF)}
_MINE = " AND ".join(f"{name}=?" for name in _OF)


class Subject(NamedTuple):
    """The key of a stored result: the spec as text, target, CPU, and digest of the sources."""

    spec: str
    target: str
    cpu: str
    sources: str


@dataclass(frozen=True, slots=True)
class Result:
    """One variant of a kernel, and its measurements.

    ``status`` is the outcome, and ``said`` the reason if it was not measured. ``code`` is the spec
    as Python prints it. ``hot`` has pairs for data in cache: seconds of a call, and seconds of the
    same operations at the peak that was measured right after. ``cold`` has seconds of a call for
    data in memory. ``flops`` is the number of operations of a call. ``cycles`` is the cost model's
    estimate, or None. ``at`` is a Unix time.
    """

    subject: Subject
    schedule: Schedule
    code: str
    status: str
    said: str = ""
    compiler: str = ""
    version: str = ""
    cycles: float | None = None
    flops: int = 0
    hot: tuple[tuple[float, float], ...] = ()
    cold: tuple[float, ...] = ()
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Winner:
    """The schedule that a tuning chose.

    Attributes
    ----------
    subject : Subject
        The spec, target, CPU and sources that it counts for.
    schedule : Schedule
        The chosen schedule.
    code : str
        The spec as Python prints it.
    ratio : float
        How many times as fast as the cost model's own choice it is.
    uncertainty : float
        Standard error of ``ratio``.
    spread : float
        Interquartile range of a call's time, divided by the median, with data in cache.
    gflops : float
        Throughput with data in cache, in GFLOPS.
    compiler, version : str
        The C compiler, and tilewright's version.
    at : float
        Unix time of the tuning.
    """

    subject: Subject
    schedule: Schedule
    code: str
    ratio: float
    uncertainty: float
    spread: float
    gflops: float
    compiler: str
    version: str
    at: float

    @property
    def day(self) -> str:
        """Date of the tuning, such as 2026-11-22."""
        return time.strftime("%Y-%m-%d", time.localtime(self.at))

    @property
    def reason(self) -> str:
        """Text for ``explain``: when and where the schedule was tuned, and how much was gained."""
        gain = f"{self.ratio:.2f} times as fast as the default"
        if self.schedule == Schedule():
            gain = "nothing was faster than the default"
        return f"tuned on {self.day} on this CPU, {self.subject.cpu}, with {self.compiler}: {gain}"


def subject(described: Sequence[str], target: str) -> Subject:
    """Return the key of a spec's tunings on this CPU; ``described`` is the spec as texts."""
    return Subject("\n".join(described), target, cpu_name(), cache.sources_digest()[:16])


def cpu_name() -> str:
    """Return the text that identifies this CPU, for example ``AuthenticAMD 26 2 AMD EPYC``."""
    found = host.cpu()
    return " ".join(dict.fromkeys((found.processor, found.name)))


class Database:
    """The database of tunings in the file at ``path``. The first write creates the file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = tunings_file() if path is None else path

    def winner(self, wanted: Subject) -> Winner | None:
        """Return the winner that is stored for the key ``wanted``, or None."""
        found = self._read("winners", _MINE, wanted)
        return next((_winner(row) for row in found), None)

    def winners(self) -> list[Winner]:
        """Return all winners in the database, one for each spec, target, CPU and version."""
        return [_winner(row) for row in self._read("winners", "1", ())]

    def results(self, wanted: Subject | None = None) -> list[Result]:
        """Return all results in the database, or only those for the key ``wanted``."""
        if wanted is None:
            return [_result(row) for row in self._read("results", "1", ())]
        return [_result(row) for row in self._read("results", _MINE, wanted)]

    def earlier(self, wanted: Subject) -> list[Schedule]:
        """Return schedules of this spec and target that won on other CPUs or with other sources."""
        found = self._read("winners", "spec=? AND target=?", wanted[:2])
        return [winner.schedule for winner in map(_winner, found) if winner.subject != wanted]

    def forget(self, wanted: Iterable[Subject] | None = None) -> tuple[int, int]:
        """Remove the results and winners of the subjects ``wanted``, or all of them if it is None.

        Returns the numbers of results and winners.

        Entries of other versions of tilewright's sources are removed too.
        """
        if not self.path.exists():
            return 0, 0
        of = " AND ".join(f"{name}=?" for name in ("spec", "target", "cpu"))
        rows = [("1", ())] if wanted is None else [(of, each[:3]) for each in wanted]
        counts = [
            sum(
                self._changed(f"DELETE FROM {table} WHERE {where}", [values])
                for where, values in rows
            )
            for table in ("results", "winners")
        ]
        return counts[0], counts[1]

    def put(self, results: Iterable[Result]) -> None:
        """Store results in one transaction.

        A result replaces an older one of the same subject and schedule.
        """
        self._write("results", [_result_row(result) for result in results])

    def crown(self, winner: Winner) -> None:
        """Store a winner. It replaces the older winner of the same subject."""
        self._write("winners", [_winner_row(winner)])

    # --- shipping ------------------------------------------------------------------------------

    def export(self) -> Iterator[str]:
        """Yield every result and winner as a line of JSON."""
        for result in self.results():
            yield json.dumps({"result": _result_row(result)})
        for winner in self.winners():
            yield json.dumps({"winner": _winner_row(winner)})

    def merge(self, lines: Iterable[str]) -> tuple[int, int]:
        """Add results and winners that ``export`` wrote, for example on another machine.

        Returns the numbers of results and winners taken.

        Of two results of the same variant, the one with more measurements is kept. Of two winners,
        the one with the larger ratio is kept. If a line has another form, CacheError is raised and
        nothing is added.
        """
        results, winners = [], []
        for number, line in enumerate(filter(str.strip, lines), 1):
            try:
                row = dict(json.loads(line))
                if "result" in row:
                    results.append(_result(row["result"]))
                else:
                    winners.append(_winner(row["winner"]))
            except (*UNREADABLE, TilewrightError):
                raise CacheError(
                    "a line of the file is no result of a tuning",
                    got=f"line {number}: {line.strip()[:60]}",
                    expected="a file that tilewright tune --export wrote",
                ) from None
        mine = {(r.subject, r.schedule): len(r.hot) for r in self.results()}
        best = {w.subject: w.ratio for w in self.winners()}
        results = [r for r in results if len(r.hot) >= mine.get((r.subject, r.schedule), 0)]
        winners = [w for w in winners if w.ratio > best.get(w.subject, 0.0)]
        self.put(results)
        for winner in winners:
            self.crown(winner)
        return len(results), len(winners)

    # --- the file ------------------------------------------------------------------------------

    def _read(self, table: str, where: str, values: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows that can be read. Others are removed, if the file can be written."""
        if not self.path.exists():
            return []
        import sqlite3

        if (refusal := self._refusal()) is not None:
            say(f"tilewright's tunings {self.path} are not used: {refusal}")
            return []
        with self._damage_is_set_aside(), closing(self._open()) as connection:
            found = connection.execute(f"SELECT rowid, * FROM {table} WHERE {where}", tuple(values))
            rows = [dict(row) for row in found]
            damaged = [(row["rowid"],) for row in rows if not _is_readable(table, row)]
            if damaged:
                say(
                    f"tilewright's tunings {self.path}: {len(damaged)} of the {table} cannot be "
                    "read and are removed; tilewright tune measures anew"
                )
                with suppress(sqlite3.OperationalError), connection:
                    connection.executemany(f"DELETE FROM {table} WHERE rowid=?", damaged)
            return [row for row in rows if (row["rowid"],) not in damaged]
        return []

    def _refusal(self) -> str | None:
        """Return why the file must not be used, and what the user can do; None if it can be."""
        try:
            check_directory(self.path.parent, DATA)
            check_owner(str(self.path), str(self.path))
        except FileNotFoundError:
            # Another process found the file damaged, and has renamed it.
            return None
        except CacheError as error:
            return f"{error.problem}; {error.hint}"
        except UnusableError as error:
            return f"{error}; chmod go-w {self.path}, or set {DATA.variable}"
        return None

    def _write(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if not rows:
            return
        names = list(rows[0])
        marks = ",".join("?" * len(names))
        statement = f"INSERT OR REPLACE INTO {table} ({','.join(names)}) VALUES ({marks})"
        values = [tuple(row[name] for name in names) for row in rows]
        self._changed(statement, values)

    def _changed(self, statement: str, values: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement for each of the values, and return the number of rows that it changed."""
        # The second attempt is made if the first found the file damaged and renamed it.
        for _ in range(2):
            changed = self._ran(statement, values)
            if changed is not None:
                return changed
        raise CacheError("the database of tunings cannot be written", got=str(self.path))

    def _ran(self, statement: str, values: Sequence[tuple[Any, ...]]) -> int | None:
        """Run the statement once. Return None if the database was damaged and is now renamed."""
        self._make_folder()
        if (refusal := self._refusal()) is not None:
            raise self._unusable(refusal)
        with self._damage_is_set_aside(), closing(self._open()) as connection, connection:
            return connection.executemany(statement, values).rowcount
        return None

    def _make_folder(self) -> None:
        try:
            make_directory(self.path.parent)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None

    def _unusable(self, why: str) -> CacheError:
        return CacheError(
            f"the database of tunings cannot be used: {why}",
            got=str(self.path),
            hint="set TILEWRIGHT_DATA_DIR to a directory of your own",
        )

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        connection = sqlite3.connect(self.path, timeout=_PATIENCE)
        try:
            connection.row_factory = sqlite3.Row
            known = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not known:
                with connection:
                    for name in _TABLES:
                        connection.execute(_made(name))
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _damage_is_set_aside(self) -> Iterator[None]:
        """Rename the file if the code in the ``with`` block finds it damaged."""
        import sqlite3

        try:
            yield
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error) and "no such column" not in str(error):
                raise self._unusable(str(error)) from None
            self._set_aside(str(error))
        except sqlite3.DatabaseError as error:
            self._set_aside(str(error))

    def _set_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            # Another process has already renamed the damaged file.
            return
        except OSError as error:
            raise self._unusable(f"{why}; {error.strerror}") from None
        say(
            f"tilewright's tunings {self.path} are set aside as {aside.name}: {why}; "
            "tilewright tune measures anew"
        )


def _made(table: str) -> str:
    """Return the SQL statement that creates a table."""
    columns = ", ".join(f"{name} {kind}" for name, kind in _TABLES[table].items())
    key = ", ".join(_KEYS[table])
    return f"CREATE TABLE IF NOT EXISTS {table} ({columns}, PRIMARY KEY ({key}))"


def _is_readable(table: str, row: Mapping[str, Any]) -> bool:
    """Return True unless a row has content that tilewright never writes."""
    try:
        _result(row) if table == "results" else _winner(row)
    except (*UNREADABLE, TilewrightError):
        return False
    return True


def _subject(row: Mapping[str, Any]) -> Subject:
    return Subject(*(_text(row[name]) for name in Subject._fields))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    return value


def _result(row: Mapping[str, Any]) -> Result:
    if row["status"] not in STATUSES:
        raise ValueError(row["status"])
    return Result(
        subject=_subject(row),
        schedule=schedule_of(json.loads(row["schedule"])),
        status=row["status"],
        **{name: _text(row[name]) for name in ("code", "said", "compiler", "version")},
        cycles=None if row["cycles"] is None else float(row["cycles"]),
        flops=int(row["flops"]),
        hot=tuple((float(call), float(loop)) for call, loop in json.loads(row["hot"])),
        cold=tuple(map(float, json.loads(row["cold"]))),
        at=float(row["at"]),
    )


def _result_row(result: Result) -> dict[str, Any]:
    return {
        **result.subject._asdict(),
        "schedule": schedule_text(result.schedule),
        **{name: getattr(result, name) for name in ("code", "status", "said", "compiler")},
        **{name: getattr(result, name) for name in ("version", "cycles", "flops", "at")},
        "hot": json.dumps(result.hot[-KEPT:]),
        "cold": json.dumps(result.cold[-KEPT:]),
    }


_NUMBERS = ("ratio", "uncertainty", "spread", "gflops", "at")


def _winner(row: Mapping[str, Any]) -> Winner:
    words = {name: _text(row[name]) for name in ("code", "compiler", "version")}
    numbers = {name: float(row[name]) for name in _NUMBERS}
    said: dict[str, Any] = {**words, **numbers}
    return Winner(subject=_subject(row), schedule=schedule_of(json.loads(row["schedule"])), **said)


def _winner_row(winner: Winner) -> dict[str, Any]:
    names = ("code", "compiler", "version", *_NUMBERS)
    own = {name: getattr(winner, name) for name in names}
    return {**winner.subject._asdict(), "schedule": schedule_text(winner.schedule), **own}


def schedule_text(schedule: Schedule) -> str:
    """Return a schedule as JSON. Equal schedules give equal texts."""
    return json.dumps(asdict(schedule), sort_keys=True)


def with_tuning(plan: Decided, tuned: Winner | None) -> Decided:
    """Return the plan with one more decision: the schedule is the winner ``tuned``.

    If ``tuned`` is None, the result is ``plan``.
    """
    if tuned is None:
        return plan
    from dataclasses import replace

    from tilewright.plan.loops import Decision

    given: Any = plan
    said = Decision("schedule", "tuned", tuned.reason)
    made: Decided = replace(given, decisions=(said, *plan.decisions))
    return made
