"""The file that describes a core: which processors have it, its numbers, and who measured them.

This module is the schema: ``tilewright calibrate`` writes such files, ``targets/cores/`` holds
those that are shipped. The numbers stand by the name of a target, since what a core does with
vectors of 512 bits is not what it does with those of 256. Nothing may be missing that ``Core``
demands, and nothing else may stand in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from tilewright.errors import TargetError

from .machine import Cache, Core, Speed, Width

#: The version of this schema.
SCHEMA = 1
#: What a core's name begins with where its numbers were measured on a machine, and not shipped.
MEASURED = "core"
#: The lists among the numbers, and what their elements are.
_LISTS: Mapping[str, type] = {"widths": Width, "speeds": Speed, "caches": Cache}
_KEYS = ("schema", "name", "title", "source", "processors", "cores")
#: Numbers that may be 0; all others are positive.
_MAYBE_ZERO = frozenset(
    {
        "overlap",
        "idle",
        "strain",
        "hidden",
        "late",
        "beside",
        "crossing",
        "contention",
        "spread",
        "shared",
    }
)


@dataclass(frozen=True, slots=True)
class CoreFile:
    """What a file says: ``name`` stands behind the ``+`` of a target, ``title`` is for people.

    ``processors`` are vendor, family and model as ``/proc/cpuinfo`` has them, models as numbers and
    ranges (``AuthenticAMD 25 16-31 97``), or a name as archspec has it. ``source`` says who
    measured the numbers, where and when. ``cores`` are the numbers by target.
    """

    name: str
    title: str
    source: str
    processors: tuple[str, ...]
    cores: Mapping[str, Core]

    def text(self) -> str:
        """The file's text."""
        return json.dumps(self.raw(), indent=1, ensure_ascii=False) + "\n"

    def raw(self) -> dict[str, Any]:
        """What JSON holds of it."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "processors": list(self.processors),
            "cores": {target: numbers_of(core) for target, core in self.cores.items()},
        }

    def described(self) -> Iterator[str]:
        """Each processor by itself, ranges written out."""
        for line in self.processors:
            yield from written_out(line)


def written_out(line: str) -> Iterator[str]:
    """The processors of a line: ``AuthenticAMD 25 1 3-4`` are three; a name is one."""
    vendor, *numbers = line.split()
    if len(numbers) < 2:
        yield line
        return
    family, *models = numbers
    for model in models:
        first, _, last = model.partition("-")
        for each in range(int(first), int(last or first) + 1):
            yield f"{vendor} {family} {each}"


def numbers_of(core: Core) -> dict[str, Any]:
    """A core's numbers as JSON holds them: whole ones are integers, so that one core has one text.

    ``core_of`` reads them.
    """
    said = {name: getattr(core, name) for name in _numbers(Core)}
    for name in _LISTS:
        said[name] = [asdict(each) for each in said[name]]
    tidied: dict[str, Any] = _tidied(said)
    return tidied


def _tidied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tidied(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tidied(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# --- reading -----------------------------------------------------------------------------------


def parse(text: str | bytes, where: str) -> CoreFile:
    """What the text of the file ``where`` says; TargetError where that is no core."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TargetError(f"{where} is no JSON", got=str(error)) from None
    return core_file_of(raw, where)


def core_file_of(raw: Any, where: str) -> CoreFile:
    """What JSON holds as a core; TargetError, with the place in ``where``, for all else."""
    if not isinstance(raw, dict):
        raise TargetError(f"{where} describes no core", got=raw, expected="an object")
    if raw.get("schema") != SCHEMA:
        raise TargetError(
            f"{where} was written by another version of tilewright",
            got=f"schema {raw.get('schema')!r}",
            expected=f"schema {SCHEMA}",
            hint="tilewright calibrate writes it anew",
        )
    _check_keys(raw, _KEYS, (), where)
    words = [raw[key] for key in ("name", "title", "source")]
    if not all(isinstance(word, str) and word for word in words):
        raise TargetError(f"{where}: name, title and source are words", got=words)
    if not raw["name"].isidentifier() or raw["name"].startswith(MEASURED):
        raise TargetError(
            f"{where}: a core is called as it stands behind the + of a target",
            got=raw["name"],
            expected=f"letters and digits, not {MEASURED}..., as measured cores are called",
        )
    cores = raw["cores"]
    if not isinstance(cores, dict) or not cores:
        raise TargetError(f"{where}: cores are numbers by target", got=cores)
    read = {target: core_of(numbers, f"{where}: {target}") for target, numbers in cores.items()}
    name, title, source = words
    return CoreFile(name, title, source, _processors(raw["processors"], where), read)


def _processors(raw: Any, where: str) -> tuple[str, ...]:
    try:
        if not isinstance(raw, list) or not all(len(line.split()) != 2 for line in raw):
            raise ValueError
        for line in raw:
            if not list(written_out(line)):
                raise ValueError
    except (ValueError, AttributeError):
        raise TargetError(
            f"{where}: processors are names, or vendor, family and models",
            got=raw,
            expected='such as ["zen3", "AuthenticAMD 25 0-15 33"]',
        ) from None
    return tuple(raw)


def core_of(raw: Any, where: str) -> Core:
    """The core that ``numbers_of`` wrote; TargetError where a number is missing or is none."""
    made: Core = _record(Core, raw, where)
    return made


def _record(kind: type, raw: Any, where: str) -> Any:
    """A dataclass of numbers, words and lists of such."""
    if not isinstance(raw, dict):
        raise TargetError(f"{where} are no numbers by name", got=raw, expected="an object")
    needed = [f.name for f in fields(kind) if f.init and f.default is MISSING]
    _check_keys(raw, needed, [n for n in _numbers(kind) if n not in needed], where)
    return kind(**{name: _value(name, value, where) for name, value in raw.items()})


def _value(name: str, value: Any, where: str) -> Any:
    if name in _LISTS:
        if not isinstance(value, list):
            raise TargetError(f"{where}: {name} is a list", got=value)
        return tuple(_record(_LISTS[name], each, f"{where}: {name}") for each in value)
    if name == "mnemonic":
        legal: Callable[[Any], bool] = lambda word: isinstance(word, str) and word != ""  # noqa: E731
    else:
        legal = _is_number if name in _MAYBE_ZERO else _is_positive
    if not legal(value):
        expected = "0 or more" if name in _MAYBE_ZERO else "more than 0"
        raise TargetError(
            f"{where}: {name} is no number of a core",
            got=value,
            expected="an instruction" if name == "mnemonic" else expected,
        )
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _numbers(kind: type) -> list[str]:
    return [field.name for field in fields(kind) if field.init]


def _check_keys(raw: Mapping[str, Any], needed: Any, others: Any, where: str) -> None:
    missing = [key for key in needed if key not in raw]
    unknown = [key for key in raw if key not in (*needed, *others)]
    if missing:
        raise TargetError(f"{where}: {', '.join(missing)} missing")
    if unknown:
        raise TargetError(
            f"{where}: {', '.join(unknown)} unknown",
            expected=f"of {', '.join((*needed, *others))}",
        )
