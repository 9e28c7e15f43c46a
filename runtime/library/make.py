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
from tilewright.plan.formats.lookup import formats_of
from tilewright.runtime.call.packed_weights import PackedWeights
from tilewright.spec.network.value import Network

from . import folder as folders
from .choice import Choice, choices
from .files import Described, Identity, texts
from .interface import check_symbols, family_functions, functions, symbol
from .manifest import manifest
from .members import Contents, contents
from .selftest import selftest_files
from .sources import Made, Order
from .weights import Constants, packed_weights
from .workers import make_all

if TYPE_CHECKING:
    from .build import Built

_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)\Z")


@dataclass(frozen=True, slots=True)
class Library:
    """A library as texts; ``write`` and ``build`` make the folder.

    Attributes
    ----------
    name, version : str
        The library's name, and its version of three numbers.
    targets : tuple of str
        Targets, best first: a CPU uses the first that it supports.
    kernels : tuple of str
        Names of its functions, without the library's prefix.
    files : dict
        Texts of the files by path.
    weights : dict
        Weights that are written to files, by path.
    seconds : float
        Time that it took to generate the files.

    Examples
    --------
    >>> made = tw.library("tiny", {"gemm": tw.Gemm(2, 2, 2)}, targets=["scalar"], jobs=1)
    >>> made.kernels, made.targets, "include/tiny.h" in made.files
    (('gemm',), ('scalar',), True)
    """

    name: str
    version: str
    targets: tuple[str, ...]
    kernels: tuple[str, ...]
    files: Mapping[str, str]
    weights: Mapping[str, PackedWeights]
    told: Described
    seconds: float

    @property
    def manifest(self) -> dict[str, Any]:
        """The content of manifest.json: the kernels, and for each file the command that makes
        it.

        Examples
        --------
        >>> library = tw.library("small", {"square": tw.Gemm(4, 4, 4)}, targets=["scalar"])
        >>> [each["name"] for each in library.manifest["targets"]]
        ['scalar']
        """
        found: dict[str, Any] = json.loads(self.files["manifest.json"])
        return found

    def __repr__(self) -> str:
        return f"<Library {self.name} {self.version}: {len(self.kernels)} kernels, {self.targets}>"

    def write(self, folder: str | Path) -> Path:
        """Write the files into a folder, which is made if it is missing.

        Files of an earlier ``write`` are replaced, or removed if the library no longer has them.

        Parameters
        ----------
        folder : str or pathlib.Path
            The folder.

        Returns
        -------
        pathlib.Path
            The folder.

        Raises
        ------
        ArgumentError
            A file that would be overwritten is not this library's, or was edited. Nothing is
            written.

        Examples
        --------
        >>> library = tw.library("small", {"square": tw.Gemm(4, 4, 4)}, targets=["scalar"])
        >>> (library.write("small") / "include" / "small.h").exists()
        True
        """
        return folders.write(Path(folder), self.name, self.files, self.weights)

    def build(
        self,
        folder: str | Path,
        *,
        architectures: Sequence[str] | None = None,
        selftest: bool = True,
        jobs: int | None = None,
    ) -> tuple[Built, ...]:
        """Write the files into ``folder`` and compile them into ``folder/build``.

        Parameters
        ----------
        folder : str or pathlib.Path
            The folder.
        architectures : sequence of str, optional
            Architectures such as "x86_64"; by default all for which a compiler is installed.
        selftest : bool
            True to run the self-test, natively or in qemu.
        jobs : int, optional
            Files compiled at a time; by default one for each CPU.

        Returns
        -------
        tuple of Built
            For each architecture the static and the shared library, or the reason why they are
            missing.

        Raises
        ------
        ToolchainError
            A compiler fails, or there is none for this machine.
        ArgumentError
            As ``write``.
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
    weights: Mapping[str, Any] | None = None,
) -> Library:
    """Generate the C of kernels for several targets, with header, dispatch, build files and
    self-test.

    At its first call the generated library chooses the best target that the CPU supports. This
    function compiles nothing: see ``Library.build``.

    Parameters
    ----------
    name : str
        The library's name. C functions are called ``<name>_<kernel>``.
    kernels : mapping
        For each kernel's name a spec, ``(spec, schedule)``, or a list of these that differ only in
        m, n and k. A list is a family: its C function takes m, n and k and returns the kernel for
        them. At most one member of a family may have sizes known only at the call. A schedule may
        be a dict from targets to schedules; the cost model chooses for targets without one.
    targets : sequence of str
        Names of the targets.
    version : str
        Three numbers; the first is the version of the shared library.
    description : str, optional
        A sentence for the build files.
    jobs : int, optional
        Processes that generate C; by default one for each CPU.
    weights : mapping, optional
        For kernels that are networks, by the kernel's name: the arrays that ``pack`` takes. Up to
        1 MiB for each kernel is compiled into the library, and the C function does not take it.
        Low-bit weights count with the bits of their elements, their scales and zero points. Larger
        weights are files in the folder ``weights``, which the C function ``<name>_<kernel>_open``
        maps.

    Returns
    -------
    Library
        The files as texts.

    Raises
    ------
    SpecError, ScheduleError, PlanError, TargetError
        A kernel cannot be made; the message names it.

    Examples
    --------
    >>> sizes = [tw.Gemm(2, 2, 2), tw.Gemm(3, 3, 3)]
    >>> made = tw.library("tiny", {"gemm": sizes}, targets=["scalar"], jobs=1)
    >>> made.kernels, sorted(path.name for path in made.write("tiny").iterdir())[0]
    (('gemm_2x2x2', 'gemm_3x3x3'), 'CMakeLists.txt')
    """
    begun = time.perf_counter()
    found = choices(targets)
    held = contents(name, kernels, [each.name for each in found], weights)
    identity = _identity(name, version, description, held)
    made = _generated(name, held, found, jobs)
    told = _described(identity, held, found, made)
    filed = _filed(told)
    files = _files(told, made, filed)
    return Library(
        name=name,
        version=version,
        targets=tuple(each.name for each in found),
        kernels=tuple(each.name for each in held.members),
        files=files,
        weights=MappingProxyType(filed),
        told=told,
        seconds=time.perf_counter() - begun,
    )


def _files(
    told: Described,
    made: Mapping[tuple[str, int], Made],
    filed: Mapping[str, PackedWeights],
) -> Mapping[str, str]:
    """Return the texts of all files by path, sorted."""
    pairs = _pairs(told.held, told.choices)
    files = {choice.source(member): made[member, choice.rank].text for member, choice in pairs}
    checks = selftest_files(told)
    files |= texts(told, tuple(checks)) | checks
    files["manifest.json"] = manifest(told, made, files, filed)
    return MappingProxyType(dict(sorted(files.items())))


def _described(
    identity: Identity,
    held: Contents,
    found: tuple[Choice, ...],
    made: Mapping[tuple[str, int], Made],
) -> Described:
    name, constants = identity.name, Constants(identity.name)
    known = functions(name, held, found, made, constants)
    families = family_functions(name, held.families, known)
    return Described(
        identity,
        held,
        found,
        known,
        families,
        check_symbols(name, known, families),
        threaded=any(each.parallel for each in made.values()),
        constants=constants.all,
    )


def _filed(told: Described) -> dict[str, PackedWeights]:
    """Return the files of weights by path."""
    found: dict[str, PackedWeights] = {}
    for each in told.blocks:
        spec, arrays = each.member.spec, each.member.filed
        assert each.block is not None and isinstance(spec, Network)
        for choice, name in zip(told.choices, each.block.files, strict=bool(each.block.files)):
            path = f"weights/{name}"
            if path not in found:
                found[path] = packed_weights(spec, arrays, formats_of(spec, choice.target))
    return found


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
    """Return the C of each kernel for each target, by its name and the target's rank."""
    orders = {
        (member.name, choice.rank): Order(
            name,
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
