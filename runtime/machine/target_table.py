"""What a warm start knows of targets: their names, and what they need of a machine.

The descriptions in ``targets/`` say it, and take long to import. So it is kept as an entry of the
cache, whose key follows every source: another description is another entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.runtime.store import cache as store
from tilewright.runtime.store.folders import cache_directory
from tilewright.targets import NAMES, load

from . import calibrations

if TYPE_CHECKING:
    from tilewright.isa.machine import Emulation
    from tilewright.isa.target import Target

_TABLE = "targets.json"


class Extension(NamedTuple):
    """A feature: the CPU flags that it adds, and the processors that it describes (none: any)."""

    cpu_flags: tuple[str, ...]
    processors: tuple[str, ...]


class Identity(NamedTuple):
    """A target as far as a kernel's key and its loading go; it stands for the ``description``.

    ``unit`` names the registers of a matrix unit, ``consent`` is the system call that asks for
    their use; both are empty without one.
    """

    name: str
    machine: str
    cpu_flags: tuple[str, ...]
    features: Mapping[str, Extension]
    unit: str
    consent: tuple[int, ...]

    def having(self, names: Iterable[str]) -> Identity:
        """This target and the features called ``names``; TargetError if one is unknown."""
        asked = set(names)
        if not asked <= self.features.keys():
            load(self.name).having(asked)  # says which
        added = [name for name in self.features if name in asked]
        flags = [flag for name in added for flag in self.features[name].cpu_flags]
        return self._replace(
            name="+".join([self.name, *added]), cpu_flags=(*self.cpu_flags, *flags)
        )

    def scheduled(self, name: str) -> Identity:
        """This target with measured numbers of a core."""
        return self._replace(name=f"{self.name}+{name}")

    @property
    def description(self) -> Target:
        """All that is known of the target; TargetError if nobody here has its core's numbers."""
        base, *features = self.name.split("+")
        found = load(base).having(name for name in features if not calibrations.is_measured(name))
        for name in filter(calibrations.is_measured, features):
            found = calibrations.scheduled(found, name)
        return found

    @property
    def title(self) -> str:
        """What the target is, for people."""
        return self.description.title

    @property
    def emulation(self) -> Emulation:
        """How a CPU without the target runs it."""
        return self.description.emulation


def identities() -> Callable[[str], Identity]:
    """What finds a target without features by its name; TargetError if there is none."""
    known = _identities(cache_directory())
    return lambda name: known[name] if name in known else _identity(load(name))


@cache
def _identities(root: Path) -> dict[str, Identity]:
    """Those of all targets by name, as the cache directory ``root`` has them."""
    key = store.key("targets", *Identity._fields, *Extension._fields)
    entry = store.lookup(key) or store.publish(key, _write)
    rows = json.loads(entry.library.read_bytes())
    return {row["name"]: _read(row) for row in rows}


def _identity(target: Target) -> Identity:
    features = {n: Extension(f.cpu_flags, f.processors) for n, f in target.features.items()}
    unit = target.matrix
    words = ("", ()) if unit is None else (unit.name, unit.consent)
    return Identity(target.name, target.machine, target.cpu_flags, features, *words)


def _write(folder: Path) -> Mapping[str, Any]:
    rows = [_identity(load(name))._asdict() for name in NAMES]
    (folder / _TABLE).write_text(json.dumps(rows), encoding="utf-8")
    return {"library": _TABLE, "source": _TABLE}


def _read(row: dict[str, Any]) -> Identity:
    parts = row.pop("features").items()
    features = {name: Extension(*map(tuple, feature)) for name, feature in parts}
    flags, consent = (tuple(row.pop(name)) for name in ("cpu_flags", "consent"))
    return Identity(**row, cpu_flags=flags, consent=consent, features=features)
