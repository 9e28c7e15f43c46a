"""The manifest of a library: the origin of each file, and the command that makes each kernel
again.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from tilewright.generate import VERSION
from tilewright.runtime.build.compilers import Family as Compilers
from tilewright.runtime.build.toolchain import source_flags
from tilewright.runtime.call.packed_weights import PackedWeights
from tilewright.spec.schedule import Schedule

from .choice import Choice
from .files import Described
from .interface import Function
from .sources import Made

FORMAT = 1


def manifest(
    told: Described,
    made: Mapping[tuple[str, int], Made],
    files: Mapping[str, str],
    weights: Mapping[str, PackedWeights],
) -> str:
    """Return a library's manifest as JSON text: all files by path, each with its digest."""
    digests = {path: digest([text.encode()]) for path, text in files.items()}
    digests |= {path: digest(packed.pieces()) for path, packed in weights.items()}
    origins = dict(_origins(told, made))
    said = {
        "tool": f"tilewright {VERSION}",
        "format": FORMAT,
        "library": told.library.name,
        "version": told.library.version,
        "targets": [
            {
                "name": each.name,
                "folder": f"src/{each.label}",
                "title": each.target.title,
                "processor": each.machine or "any",
                "needs": list(each.target.cpu_flags),
            }
            for each in told.choices
        ],
        "kernels": [_kernel(each, told.choices) for each in told.functions],
        "families": {each.field: [one.field for one in each.members] for each in told.families},
        "command": _command(told),
        "files": {
            path: {"sha256": found, **origins.get(path, {})}
            for path, found in sorted(digests.items())
        },
    }
    return json.dumps(said, indent=1) + "\n"


def digest(pieces: Iterable[bytes | memoryview]) -> str:
    """Return the SHA-256 digest of a file's content, given in pieces."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def _command(told: Described) -> str:
    """Return the call of ``tw.library`` that generates the whole library again."""
    library = told.library
    families = {
        name: each for each in told.families for name in (one.field for one in each.members)
    }
    asked: dict[str, str] = {}
    for each in told.functions:
        if each.member.packs:
            continue
        one = _asked(each)
        family = families.get(each.field)
        if family is None:
            asked[each.field] = one
        else:
            asked.setdefault(
                family.field,
                f"[{', '.join(map(_asked, family.members))}]",
            )
    kernels = ", ".join(f"{name!r}: {text}" for name, text in asked.items())
    targets = [each.name for each in told.choices]
    weights = ", weights=weights" if told.constants or told.weights else ""
    return (
        f"library({library.name!r}, {{{kernels}}}, targets={targets!r}, "
        f"version={library.version!r}, description={library.description!r}{weights})"
    )


def _asked(function: Function) -> str:
    """Return the Python that asks ``tw.library`` for this function: a spec, and its schedules."""
    member = function.member
    schedule: object = dict(member.schedules) or member.schedule
    return f"({member.spec!r}, {schedule!r})" if schedule != Schedule() else repr(member.spec)


def _kernel(function: Function, choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the facts of a function; for a packing function also each target's format and
    bytes.
    """
    found = {
        "name": function.field,
        "function": function.name,
        "spec": repr(function.member.spec),
        "scratch": function.scratch,
    }
    packed = {choice.name: function.on[choice.rank].format for choice in choices}
    formats = {
        target: {"format": form.text} | ({} if form.is_open else {"bytes": form.nbytes})
        for target, form in packed.items()
        if form is not None
    }
    return {**found, "packed": formats} if formats else found


def _origins(
    told: Described, made: Mapping[tuple[str, int], Made]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield for each kernel's file the command that made it, and its compiler flags."""
    for choice in told.choices:
        flags = {
            family: list(source_flags(choice.target, family)) for family in get_args(Compilers)
        }
        for function in told.functions:
            one = made[function.field, choice.rank]
            yield (
                choice.source(function.field),
                {
                    "kernel": function.field,
                    "target": choice.name,
                    "spec": repr(function.member.spec),
                    "schedule": repr(function.member.schedule_on(choice.name)),
                    "resolved": one.resolved,
                    "flags": flags,
                    "command": _emit(function, choice),
                },
            )


def _emit(function: Function, choice: Choice) -> str:
    """Return the command line ``tilewright emit ...`` that writes a kernel's C file again."""
    words = ["tilewright", "emit", "--target", choice.name, "--name"]
    words += [function.on[choice.rank].symbol, "--schedule"]
    words.append(repr(function.member.schedule_on(choice.name)))
    return shlex.join([*words, "--spec", repr(function.member.spec)])
