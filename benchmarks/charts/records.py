"""Records of the benchmarks: rows by section, the processor, and the vectors that each peer ran."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "records"
#: Tables of processors that are not at hand, as their runs printed them.
PRINTED = "printed.json"
#: Vectors of the core that OpenBLAS chose, by the core's name.
OPENBLAS = {"Haswell": "AVX2", "Zen": "AVX2", "SkylakeX": "AVX-512", "Cooperlake": "AVX-512",
            "SapphireRapids": "AVX-512"}  # fmt: skip
#: Vectors of LIBXSMM's kernels, by the least number of its instruction set (its ``cpuid.h``).
LIBXSMM = {1020: "AVX-512", 1006: "AVX2"}
#: Short names of processors, by a part of what a record says of its CPU.
NAMES = {
    "family 26": "Zen 5",
    "Zen 4": "Zen 4",
    "family 25, model 17": "Zen 4",
    "family 25": "Zen 3",
    "Granite": "Granite Rapids",
    "Emerald": "Emerald Rapids",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One run: where, when and how it was made, and the rows of each section."""

    cpu: str
    date: str
    command: str
    versions: dict[str, str]
    sections: dict[str, list[dict[str, Any]]]

    @property
    def processor(self) -> str:
        """The processor's short name."""
        return short_name(self.cpu)

    @property
    def caption(self) -> str:
        """Processor, date and command, the text below a chart."""
        command = re.sub(r" --json \S+", "", self.command)
        return f"{self.processor}, {self.date}: {command}"

    def vectors(self, peer: str) -> str:
        """Return the vectors that a peer ran, ``""`` if the record does not say."""
        if peer in ("OpenBLAS", "numpy"):
            core = re.search(r"\((\w+)\)", self.versions.get("OpenBLAS", ""))
            return OPENBLAS.get(core[1], "") if core else ""
        if peer == "LIBXSMM":
            isa = re.search(r"ISA (\d+)", self.versions.get(peer, ""))
            number = int(isa[1]) if isa else 0
            return next((name for least, name in LIBXSMM.items() if number >= least), "")
        return self.versions.get(f"{peer} vectors", "")

    def label(self, peer: str) -> str:
        """Return a peer's name with the vectors it ran: ``numpy (AVX2)``."""
        found = self.vectors(peer)
        return f"{peer} ({found})" if found else peer


def short_name(cpu: str) -> str:
    """Return a processor's short name, or what its record says."""
    return next((name for part, name in NAMES.items() if part in cpu), cpu)


def records() -> Iterator[Record]:
    """Records of all processors, the newest first."""
    paths = (path for path in FOLDER.glob("*.json") if path.name != PRINTED)
    read = [_record(json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    yield from sorted(read, key=lambda one: (one.date, one.cpu), reverse=True)


def newest(section: str, **wanted: object) -> Record:
    """Return the newest record with rows of a section that have these values."""
    for record in records():
        rows = record.sections.get(section, [])
        if any(all(row.get(k) == v for k, v in wanted.items()) for row in rows):
            return record
    raise LookupError(f"no record has rows of {section} with {wanted}")


def printed(section: str) -> list[dict[str, Any]]:
    """Return the printed tables of a section."""
    held = json.loads((FOLDER / PRINTED).read_text(encoding="utf-8"))
    return [table for table in held["tables"] if table["section"] == section]


def _record(held: dict[str, Any]) -> Record:
    sections = {section["name"]: section["rows"] for section in held["sections"]}
    return Record(held["cpu"], held["date"], held["command"], held["versions"], sections)
