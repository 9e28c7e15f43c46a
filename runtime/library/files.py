"""Write the texts of a library's header, dispatch and build files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from tilewright.emit.layout import folded
from tilewright.generate import VERSION
from tilewright.runtime.build.compilers import Family as Compilers
from tilewright.runtime.build.toolchain import exact_flags, flags_notes, source_flags
from tilewright.runtime.store.compiled import render
from tilewright.runtime.threads.build import PATIENCE
from tilewright.targets import load

from .choice import Choice, machines
from .interface import FamilyFunction, Function
from .members import Contents
from .weights import Constant

#: Name of the target for which C files that belong to no target are compiled.
_ANY = "scalar"


@dataclass(frozen=True, slots=True)
class Identity:
    """The library's name, version (three numbers) and description."""

    name: str
    version: str
    description: str

    @property
    def macro(self) -> str:
        """Prefix of the names of the library's C macros, for example ``SMALLMM``."""
        return self.name.upper()

    @property
    def major(self) -> str:
        """First part of the version. When it changes, programs must be compiled again."""
        return self.version.partition(".")[0]

    @property
    def numbers(self) -> tuple[tuple[str, str], ...]:
        """The parts of the version, each with the end of its macro's name."""
        return tuple(zip(("MAJOR", "MINOR", "PATCH"), self.version.split("."), strict=True))


@dataclass(frozen=True, slots=True)
class Described:
    """All data from which a library's files are made.

    ``threaded`` is True if a kernel has parallel loops. ``constants`` are the compiled-in weights.
    """

    library: Identity
    held: Contents
    choices: tuple[Choice, ...]
    functions: tuple[Function, ...]
    families: tuple[FamilyFunction, ...]
    symbols: tuple[str, ...]
    threaded: bool
    constants: tuple[Constant, ...] = ()

    @property
    def blocks(self) -> tuple[Function, ...]:
        """The networks whose weights are passed as one block."""
        return tuple(each for each in self.functions if each.block is not None)

    @property
    def weights(self) -> tuple[str, ...]:
        """The paths of files of weights."""
        blocks = [each.block for each in self.functions if each.block is not None]
        return tuple(dict.fromkeys(f"weights/{name}" for each in blocks for name in each.files))

    @property
    def sources(self) -> tuple[str, ...]:
        """The C files that are compiled for any target."""
        name = self.library.name
        return (f"src/{name}.c", *([f"src/{name}_threads.c"] if self.threaded else []))


def texts(told: Described, selftests: Sequence[str]) -> dict[str, str]:
    """Return the files' texts by path; ``selftests`` has the paths of the self-test's files."""
    name = told.library.name
    context = {
        "tool": VERSION,
        "library": told.library,
        "choices": told.choices,
        "machines": tuple(machines(told.choices)),
        "functions": told.functions,
        "families": told.families,
        "members": told.held.members,
        "threaded": told.threaded,
        "constants": told.constants,
        "blocks": told.blocks,
        "weights": told.weights,
        "patience": PATIENCE,
        "sources": told.sources,
        "symbols": (*_own_symbols(told), *told.symbols),
        "notes": flags_notes(load(_ANY)),
        "anywhere": tuple(each for each in told.choices if not each.machine),
        "selftests": [path for path in selftests if path.endswith(".c")],
        **_flags(told.choices),
    }
    found = {
        f"include/{name}.h": folded(render("library/header.h.j2", **context)),
        **_sources(told, context),
        "CMakeLists.txt": render("project/CMakeLists.txt.j2", **context),
        f"cmake/{name}-config.cmake.in": render("project/config.cmake.in.j2", **context),
        "meson.build": render("project/meson.build.j2", **context),
        f"{name}.pc.in": render("project/pc.in.j2", **context),
        f"{name}.map": render("project/symbols.map.j2", **context),
        "README.md": render("project/readme.md.j2", **context),
    }
    if told.constants:
        found[f"src/{name}_weights.h"] = render("library/weights.h.j2", **context)
    if told.threaded:
        found["meson_options.txt"] = render("project/meson_options.txt.j2", **context)
    for choice in told.choices:
        own = [each.on[choice.rank] for each in told.functions]
        text = render("library/kernels.h.j2", implementations=own, choice=choice, **context)
        found[f"src/{choice.label}/kernels.h"] = folded(text)
    return found


def _sources(told: Described, context: Mapping[str, object]) -> dict[str, str]:
    """Return the C files that are compiled for any target."""
    templates = ("library/dispatch.c.j2", "library/threads.c.j2")
    return {
        path: folded(render(template, **context))
        for path, template in zip(told.sources, templates, strict=False)
    }


def _own_symbols(told: Described) -> list[str]:
    ends = ["version", "status", "target", "use", "has", "name", "status_text"]
    ends += ["use_threads", "threads"] if told.threaded else []
    ends += ["close"] if told.blocks else []
    return [f"{told.library.name}_{end}" for end in ends]


def _flags(choices: Sequence[Choice]) -> Mapping[str, Mapping[str, object]]:
    """Return the compiler flags that the build files need, by use and compiler family.

    The uses are: all files, each target, any CPU, and undoing fast math. Each list begins with
    optimisation and language flags; the target's own flags follow.
    """
    families = get_args(Compilers)
    of_any = {family: source_flags(load(_ANY), family) for family in families}
    own: dict[str, dict[str, tuple[str, ...]]] = {}
    neutral = {family: tuple(load(_ANY).zig_flags) * (family == "zig") for family in families}
    common = {
        family: tuple(flag for flag in flags if flag not in neutral[family])
        for family, flags in of_any.items()
    }
    for choice in choices:
        own[choice.label] = {
            family: tuple(
                flag for flag in source_flags(choice.target, family) if flag not in common[family]
            )
            for family in families
        }
    exact = {family: exact_flags(family) for family in families}
    return {"common": common, "own": own, "neutral": neutral, "exact": exact}
