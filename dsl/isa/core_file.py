"""Read and write the JSON file that describes a processor core for the cost model.

A file lists the processors that have the core, the core's numbers for each target, and who
measured these numbers.
``tilewright calibrate`` writes such files; ``targets/cores/`` holds the ones that are shipped. The
numbers are grouped by target because, for example, the rates for vectors of 512 and 256 bits
differ. A file must have every field that ``Core`` requires, and no unknown fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from tilewright.errors import TargetError

from .machine import Cache, Core, Speed, Width

#: Version of the file format. A file with another version is refused.
SCHEMA = 1
#: Prefix of the names of cores that ``tilewright calibrate`` measured. Shipped cores may not use
#: it.
MEASURED = "core"
#: Fields of ``Core`` that are lists, and the class of their elements.
_LISTS: Mapping[str, type] = {"widths": Width, "speeds": Speed, "caches": Cache}
_KEYS = ("schema", "name", "title", "source", "processors", "cores")
#: Fields of ``Core`` whose value may be 0. All other numbers in a core file must be positive.
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
    """The content of one core file.

    - ``name``: the text after the ``+`` of a target's name, for example ``zen3`` in ``avx2+zen3``.
    - ``title``: the name shown to people.
    - ``source``: who measured the numbers, where and when.
    - ``processors``: each is vendor, family and models as in ``/proc/cpuinfo``, for example
      ``AuthenticAMD 25 16-31 97``, or one name as archspec has it.
    - ``cores``: the numbers by target name.
    """

    name: str
    title: str
    source: str
    processors: tuple[str, ...]
    cores: Mapping[str, Core]

    def text(self) -> str:
        """Return the file's text, which is JSON."""
        return json.dumps(self.raw(), indent=1, ensure_ascii=False) + "\n"

    def raw(self) -> dict[str, Any]:
        """Return the content as JSON values."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "processors": list(self.processors),
            "cores": {target: numbers_of(core) for target, core in self.cores.items()},
        }

    def described(self) -> Iterator[str]:
        """Yield a text for each processor, for example ``AuthenticAMD 25 33``, without ranges."""
        for line in self.processors:
            yield from written_out(line)


def written_out(line: str) -> Iterator[str]:
    """Yield each processor that an entry of a core file names, with ranges of models expanded.

    ``AuthenticAMD 25 1 3-4`` gives three processors: models 1, 3 and 4. A single name is yielded
    unchanged.
    """
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
    """Return a core's numbers as JSON values; ``core_of`` reads them back.

    Whole numbers become integers, so that equal cores have equal text.
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
    """Return the core file with this text; TargetError if the text describes no core.

    ``where`` is the file's name, for the message.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TargetError(f"{where} is no JSON", got=str(error)) from None
    return core_file_of(raw, where)


def core_file_of(raw: Any, where: str) -> CoreFile:
    """Return the core file that JSON values describe; TargetError for any other value.

    ``where`` is the file's name, for the message.
    """
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
    """Return the core that ``numbers_of`` wrote; TargetError if a number is missing or illegal."""
    made: Core = _record(Core, raw, where)
    return made


def _record(kind: type, raw: Any, where: str) -> Any:
    """Return an object of dataclass ``kind`` from JSON values; TargetError for wrong values."""
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
