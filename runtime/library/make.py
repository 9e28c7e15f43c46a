"""``tw.library``: kernels for several targets as a folder of C."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tilewright.errors import ArgumentTypeError, SpecError
from tilewright.keywords import spelled

from . import folder as folders
from .choice import Choice, choices
from .files import Described, Identity, texts
from .interface import check_symbols, family_functions, functions, symbol
from .manifest import manifest
from .members import Contents, contents
from .selftest import selftest_files
from .sources import Made, Order
from .workers import make_all

if TYPE_CHECKING:
    from .build import Built

_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)\Z")


@dataclass(frozen=True, slots=True)
class Library:
    """A library as texts: ``files`` by their paths, written by ``write``.

    ``kernels`` are the names of its functions without the library's, ``targets`` in the order in
    which a CPU chooses. ``seconds`` is how long it took to generate.

    >>> made = tw.library("tiny", {"gemm": tw.Gemm(2, 2, 2)}, targets=["scalar"], jobs=1)
    >>> made.kernels, made.targets, "include/tiny.h" in made.files
    (('gemm',), ('scalar',), True)
    """

    name: str
    version: str
    targets: tuple[str, ...]
    kernels: tuple[str, ...]
    files: Mapping[str, str]
    told: Described
    seconds: float

    @property
    def manifest(self) -> dict[str, Any]:
        """What the file manifest.json says: the kernels, and of each file what made it."""
        found: dict[str, Any] = json.loads(self.files["manifest.json"])
        return found

    def __repr__(self) -> str:
        return f"<Library {self.name} {self.version}: {len(self.kernels)} kernels, {self.targets}>"

    def write(self, folder: str | Path) -> Path:
        """Write the files into ``folder``, which is made where it is missing.

        What an earlier ``write`` left there is replaced, and removed where it is no longer a part.
        ArgumentError before anything is written, if that would overwrite a file that is not this
        library's, or one that was edited since.
        """
        return folders.write(Path(folder), self.name, self.files)

    def build(
        self,
        folder: str | Path,
        *,
        architectures: Sequence[str] | None = None,
        selftest: bool = True,
        jobs: int | None = None,
    ) -> tuple[Built, ...]:
        """Write the files into ``folder``, and compile them into ``folder/build``.

        For each architecture that has a compiler here, or those named, as "x86_64": the static and
        the shared library, and the self-test, run where the CPU or qemu can. ``jobs`` files
        are compiled at a time, by default one for each CPU. ToolchainError if a compiler fails, or
        if there is none for this machine; of others the result says that they are missing.
        """
        from .build import build

        place = self.write(folder)
        return build(self.told, place, architectures=architectures, selftest=selftest, jobs=jobs)


@spelled(ArgumentTypeError)
def library(
    name: str,
    kernels: Mapping[str, Any],
    *,
    targets: Sequence[str],
    version: str = "1.0.0",
    description: str | None = None,
    jobs: int | None = None,
) -> Library:
    """The C of ``kernels`` for each of ``targets``, with all that makes a library of it.

    ``kernels`` has by name a spec, ``(spec, schedule)``, or a list of these that differ in m, n and
    k alone: a family, whose function takes m, n and k and returns the kernel for them. At most one
    of a family has sizes of the call. A schedule may be a dict from targets to schedules; the cost
    model chooses for the others. C's functions are called ``<name>_<kernel>``. At its first
    call the library chooses the best target that the CPU has; ``write`` makes the folder, with a
    header, build files and a self-test. Nothing is compiled here. ``version`` is three numbers, of
    which the first is the shared library's. ``jobs`` processes generate, by default one for each
    CPU. Raises SpecError, ScheduleError, PlanError or TargetError.

    >>> sizes = [tw.Gemm(2, 2, 2), tw.Gemm(3, 3, 3)]
    >>> made = tw.library("tiny", {"gemm": sizes}, targets=["scalar"], jobs=1)
    >>> made.kernels, sorted(path.name for path in made.write("tiny").iterdir())[0]
    (('gemm_2x2x2', 'gemm_3x3x3'), 'CMakeLists.txt')
    """
    begun = time.perf_counter()
    found = choices(targets)
    held = contents(name, kernels, [each.name for each in found])
    identity = _identity(name, version, description, held)
    made = _generated(name, held, found, jobs)
    known = functions(name, held, found, made)
    families = family_functions(name, held.families, known)
    told = Described(identity, held, found, known, families, check_symbols(name, known, families))
    files = {
        choice.source(member): made[member, choice.rank].text
        for member, choice in _pairs(held, found)
    }
    checks = selftest_files(told)
    files |= texts(told, tuple(checks)) | checks
    files["manifest.json"] = manifest(told, made, files)
    return Library(
        name=name,
        version=version,
        targets=tuple(each.name for each in found),
        kernels=tuple(each.name for each in held.members),
        files=MappingProxyType(dict(sorted(files.items()))),
        told=told,
        seconds=time.perf_counter() - begun,
    )


def _identity(name: str, version: object, description: object, held: Contents) -> Identity:
    if not isinstance(version, str) or not _VERSION.match(version):
        raise SpecError("a library's version is three numbers", got=version, expected="1.0.0")
    said = (
        f"{sum(not each.packs for each in held.members)} matrix kernels"
        if description is None
        else description
    )
    if not isinstance(said, str) or not said.isprintable() or set(said) & set("'\"\\@$"):
        raise SpecError(
            "a library's description is one line of text",
            got=description,
            expected="no quotation marks, and none of @, $ and \\",
        )
    return Identity(name, version, said)


def _pairs(held: Contents, found: Sequence[Choice]) -> list[tuple[str, Choice]]:
    return [(member.name, choice) for choice in found for member in held.members]


def _generated(
    name: str, held: Contents, found: Sequence[Choice], jobs: int | None
) -> dict[tuple[str, int], Made]:
    """The C of each kernel for each target, by its name and the target's rank."""
    orders = {
        (member.name, choice.rank): Order(
            member.name,
            symbol(name, member, choice),
            member.spec,
            member.schedule_on(choice.name),
            choice.name,
            f"{name}_{member.name} of src/{name}.c, where the CPU has {choice.name}",
        )
        for choice in found
        for member in held.members
    }
    return dict(zip(orders, make_all(list(orders.values()), jobs), strict=True))
