"""Read, check and compare a kernel's C that a person edited.

In goes a file that ``kernel.edit`` wrote and a person changed. Out come its text, errors if its
function does not fit the spec, and a diff to the generated C.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tilewright.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    SpecError,
    ToolchainError,
)

if TYPE_CHECKING:
    from tilewright.emit.render import Source
    from tilewright.generate import Request

#: Pattern of the C function ``<name>_invoke``. A generated file has one such function for each
#: kernel.
_INVOKE = re.compile(r"^void (\w+)_invoke\([^;{]*\)\s*\{", re.MULTILINE)


#: File name of the generated C in a cache entry whose kernel was edited.
GENERATED = "generated.c"


class Edited(NamedTuple):
    """Hand-edited C: the file's path, its text, and the name of the kernel that it defines."""

    path: str
    text: str
    name: str


def read_edited(path: str | PathLike[str]) -> Edited:
    """Return the edited C in the file ``path``; ArgumentError unless it has exactly one kernel."""
    if not isinstance(path, (str, PathLike)):
        raise ArgumentTypeError(
            "source is a path", got=path, hint='kernel.edit("kernel.c") writes the file'
        )
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ArgumentValueError(
            "the edited C cannot be read",
            got=f"{file}: {said}",
            expected="a file of C text in UTF-8",
            hint='kernel.edit("kernel.c") writes one',
        ) from None
    names = [found[1] for found in _INVOKE.finditer(text)]
    if len(names) != 1:
        raise ArgumentValueError(
            "the edited C must define one kernel",
            got=f"{file}: {', '.join(names) or 'none'}",
            expected="a function <name>, with <name>_invoke and <name>_scratch_bytes",
            hint="kernel.edit writes all three: change what <name> does, not how it is called",
        )
    return Edited(str(file), text, names[0])


def check_edited(edited: Edited, generated: str) -> None:
    """Raise SpecError if edited and generated C declare the kernel's function differently."""
    wanted, found = (declaration(edited.name, text) for text in (generated, edited.text))
    if found != wanted:
        raise SpecError(
            f"{edited.path} does not declare {edited.name} as the spec's kernel is called",
            got=found or "no declaration",
            expected=wanted,
            hint="compile it with the spec that it was written for, and leave its parameters",
        )


def of_file(error: ToolchainError, edited: Edited) -> ToolchainError:
    """Return the compiler's error with the user's file name instead of the compiled copy's name."""
    said = re.sub(r"\bkernels(_0)?\.c:", f"{edited.path}:", error.got or "")
    hint = "the warnings of -Wall -Wextra are errors, as for the C that is generated"
    return ToolchainError(error.problem, got=said, expected=error.expected, hint=hint)


#: Pattern of C comments and attributes. They are removed before two declarations are compared. It
#: also matches strings, which are kept.
_BETWEEN = re.compile(
    r"""("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*|\[\[.*?\]\]|__\w+__\s*\(\(.*?\)\)""",
    re.DOTALL,
)


def declaration(name: str, text: str) -> str | None:
    """Return the declaration of the C function ``name`` in a text, on one line.

    The result is None if there is no such function.

    Comments, attributes and macros in front of the type are left out.
    """
    bare = _BETWEEN.sub(lambda found: found[1] or " ", text) if name in text else ""
    found = re.search(rf"^[ \t]*(\w[^\n}};]*\s[ \t*]*{name}\s*\([^;{{]*\))\s*;", bare, re.MULTILINE)
    if found is None:
        return None
    said = re.sub(r"\s*([*(),])\s*", r"\1", " ".join(found[1].split()))
    words = said.replace(",", ", ").replace("*", " *").replace("* *", "**")
    return f"{_without_macros(words)};"


def _without_macros(declared: str) -> str:
    """Remove macros in front of a declaration, for example ``API`` of ``API void f(int n)``."""
    return re.sub(r"^(?:[A-Z_][A-Z0-9_]*\s+)+", "", declared)


def own_file(requests: Sequence[Request]) -> Source:
    """Return the C of kernels as a file that a user compiles and calls without tilewright."""
    from tilewright.generate import generate
    from tilewright.runtime.build.toolchain import own_file_notes

    return generate(requests, own_file_notes(requests[0].target))


def write_new(path: str | PathLike[str], text: str) -> Path:
    """Write ``text`` to a new file and return its path.

    Raises ArgumentError if it exists or cannot be written.
    """
    file = Path(path)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ArgumentValueError(
            "there is a file of this name, and it may have been edited",
            got=str(file),
            hint="another name, or delete it first",
        ) from None
    except OSError as error:
        raise ArgumentValueError(
            "the C cannot be written",
            got=f"{file}: {error.strerror}",
            hint="another folder",
        ) from None
    return file


def difference(generated: str, edited: Edited) -> str:
    """Return a unified diff from the generated to the edited text; "" if they are equal."""
    from difflib import unified_diff

    before, after = generated.splitlines(), edited.text.splitlines()
    return "\n".join(unified_diff(before, after, "generated", edited.path, lineterm=""))
