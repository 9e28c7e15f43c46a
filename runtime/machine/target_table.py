"""Keep a table of all targets in the cache: their names, and the CPU features that each needs.

The full descriptions in ``targets/`` take long to import. So the table is an entry of the cache.
Its key depends on the sources, so another description makes another entry.
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
    """A feature: the CPU flags that it adds, and the processors that it describes (none means
    any).
    """

    cpu_flags: tuple[str, ...]
    processors: tuple[str, ...]


class Identity(NamedTuple):
    """The facts about a target that are needed to look up a kernel in the cache and load it.

    ``unit`` names the registers of a matrix unit, and ``consent`` is the system call that asks for
    their use. Both are empty without a matrix unit.
    """

    name: str
    machine: str
    cpu_flags: tuple[str, ...]
    features: Mapping[str, Extension]
    unit: str
    consent: tuple[int, ...]

    def having(self, names: Iterable[str]) -> Identity:
        """Return this target with the features ``names``; TargetError if one is unknown."""
        asked = set(names)
        if not asked <= self.features.keys():
            # This call raises TargetError, which names the unknown features.
            load(self.name).having(asked)
        added = [name for name in self.features if name in asked]
        flags = [flag for name in added for flag in self.features[name].cpu_flags]
        return self._replace(
            name="+".join([self.name, *added]), cpu_flags=(*self.cpu_flags, *flags)
        )

    def scheduled(self, name: str) -> Identity:
        """Return this target with measured performance numbers of a core, called ``name``."""
        return self._replace(name=f"{self.name}+{name}")

    @property
    def description(self) -> Target:
        """The full target; TargetError if it names measured numbers that this machine lacks."""
        base, *features = self.name.split("+")
        found = load(base).having(name for name in features if not calibrations.is_measured(name))
        for name in filter(calibrations.is_measured, features):
            found = calibrations.scheduled(found, name)
        return found

    @property
    def title(self) -> str:
        """The target's title in messages, for example ``AVX2, FMA, F16C``."""
        return self.description.title

    @property
    def emulation(self) -> Emulation:
        """The emulator of kernels for the target, used on a CPU that lacks its instructions."""
        return self.description.emulation


def identities() -> Callable[[str], Identity]:
    """Return a function that returns the Identity of a target by its name, without features."""
    known = _identities(cache_directory())
    return lambda name: known[name] if name in known else _identity(load(name))


@cache
def _identities(root: Path) -> dict[str, Identity]:
    """Return the identities of all targets by name, from the cache directory ``root``."""
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
