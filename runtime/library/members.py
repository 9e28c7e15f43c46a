"""The contents of a library: kernels, what packs their operands, and families of sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tilewright.errors import SpecError, TargetError, TilewrightError
from tilewright.runtime.call.pack_source import a_packing
from tilewright.runtime.driver import checked
from tilewright.runtime.machine.host import resolve
from tilewright.spec.expression.products import Weight
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.names import check_function_name
from tilewright.spec.network.value import Network
from tilewright.spec.operands import Packed, Strided
from tilewright.spec.pack import Pack, PackQuantized
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import signature
from tilewright.spec.sizes import Dim, Size, canonical, dim

from .headers import HEADERS
from .weights import shipped

#: Fields of a spec in which the members of a family differ.
_SIZES = ("m", "n", "k")
_LOWER = re.compile(r"[a-z][a-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Member:
    """One kernel of a library; ``name`` is its C function's name without the library's prefix.

    ``schedules`` are the schedules of single targets, by their resolved names. ``packs`` names the
    kernel for which this member packs an operand, "" for other members. ``operand`` is the name of
    that A or B, or of the weight of a network.
    """

    name: str
    spec: Spec
    schedule: Schedule
    schedules: tuple[tuple[str, Schedule], ...] = ()
    packs: str = ""
    operand: str = "b"
    #: Weights that are compiled in, by the names of their parameters.
    weights: Mapping[str, Any] = field(default_factory=dict, compare=False)
    #: Weights that the library writes to files.
    filed: Mapping[Weight, Any] = field(default_factory=dict, compare=False)

    def schedule_on(self, target: str) -> Schedule:
        """Return the kernel's schedule for a target, given the target's name with its features."""
        return dict(self.schedules).get(target, self.schedule)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes m, n and k of the kernel's product."""
        return tuple(getattr(self.spec, name) for name in _SIZES)


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels that differ only in m, n and k; ``general`` takes its sizes at the call."""

    name: str
    fixed: tuple[Member, ...]
    general: Member | None

    @property
    def members(self) -> tuple[Member, ...]:
        """All kernels of the family, the general one last."""
        return self.fixed if self.general is None else (*self.fixed, self.general)


@dataclass(frozen=True, slots=True)
class Contents:
    """All kernels in the order given, each followed by what packs its operands, and the
    families.
    """

    members: tuple[Member, ...]
    families: tuple[Family, ...]

    def packers(self, member: Member) -> dict[str, Member]:
        """Return the members that pack operands of a kernel, by the names of these."""
        return {each.operand: each for each in self.members if each.packs == member.name}


def contents(
    library: str, kernels: object, targets: Sequence[str], weights: object = None
) -> Contents:
    """Return a library's contents from the arguments ``kernels`` and ``weights`` of ``tw.library``.

    Each of ``kernels`` is a spec, (spec, schedule), or a list of these as a family. A schedule may
    be a dict from names of ``targets`` to schedules. Raise SpecError, ScheduleError or TargetError,
    with the name of the kernel.
    """
    _check_library_name(library)
    if not isinstance(kernels, Mapping) or not kernels:
        raise SpecError(
            "a library holds one kernel or more",
            got=kernels,
            expected="a dict from names to specs",
            hint='{"gemm_small": tw.Gemm(16, 16, 16)}',
        )
    alone: list[Member] = []
    families: list[Family] = []
    for name, asked in kernels.items():
        check_function_name(name)
        if isinstance(asked, list):
            families.append(_family(name, asked, targets))
            alone += families[-1].members
        else:
            alone.append(_member(name, asked, targets))
    alone = list(_with_weights(alone, {} if weights is None else weights))
    members = tuple(each for member in alone for each in (member, *_packer(member)))
    return Contents(members, tuple(families))


def _with_weights(alone: Sequence[Member], weights: object) -> Iterator[Member]:
    """Yield the kernels, those that ``weights`` names with their weights."""
    names = [each.name for each in alone]
    if not isinstance(weights, Mapping) or not weights.keys() <= set(names):
        raise SpecError(
            "weights has the weights of kernels of the library by the kernels' names",
            got=", ".join(map(str, weights)) if isinstance(weights, Mapping) else weights,
            expected=", ".join(names),
            hint='tw.library("digits", {"net": network}, weights={"net": {"up": array}})',
        )
    for each in alone:
        if each.name in weights:
            inside, outside = shipped(each.name, each.spec, weights[each.name])
            each = replace(each, weights=inside, filed=outside)
        yield each


def _check_library_name(name: object) -> None:
    check_function_name(name, "a library")
    if not _LOWER.match(str(name)):
        raise SpecError(
            "the name of a library begins its files, functions and macros",
            got=name,
            expected="small letters, digits and underscores, a letter first",
        )
    if str(name) in HEADERS or str(name).endswith("intrin"):
        raise SpecError(
            f"a library called {name} would hide the system's header <{name}.h>",
            got=name,
            expected="a name that no header of C, of POSIX or of a compiler has",
            hint=f"{name}_kernels",
        )


def _member(name: str, asked: Any, targets: Sequence[str]) -> Member:
    parts = asked if isinstance(asked, tuple) else (asked,)
    if not 1 <= len(parts) <= 2:
        raise SpecError(
            f"kernel {name!r} is a spec, or (spec, schedule)", got=asked, hint="targets=[...]"
        )
    spec, schedule = (*parts, None)[:2]
    own = schedule if isinstance(schedule, Mapping) else {}
    try:
        spec, schedule = checked(spec, None if own else schedule)
        resolved = {resolve(target).name: checked(spec, one)[1] for target, one in own.items()}
    except TilewrightError as error:
        raise type(error)(
            f"kernel {name!r}: {error.problem}",
            got=error.got,
            expected=error.expected,
            hint=error.hint,
        ) from None
    for target in resolved.keys() - set(targets):
        raise TargetError(
            f"kernel {name!r} has a schedule for a target that the library is not for",
            got=target,
            expected=f"one of {', '.join(targets)}",
        )
    return Member(name, spec, schedule, tuple(resolved.items()))


def _packer(member: Member) -> Iterator[Member]:
    """Yield members that pack A and B of a kernel or the weights of a network, of any ``ldb``.

    A has contiguous rows, which are columns of its transpose. A low-bit B is given as elements,
    scales and zero points, with rows without padding.
    """
    spec = member.spec
    if isinstance(spec, Network) and not member.weights:
        for weight in spec.packed:
            pack = spec.packing(weight, dim("ldb"))
            name = f"{member.name}_pack_{weight.name}"
            yield Member(name, pack, Schedule(), packs=member.name, operand=weight.name)
    if isinstance(spec, Gemm) and isinstance(spec.a, Packed):
        packing = a_packing(spec)
        yield Member(f"{member.name}_pack_a", packing, Schedule(), packs=member.name, operand="a")
    if not isinstance(spec, Gemm) or not isinstance(spec.b, Packed):
        return
    name = f"{member.name}_pack_b"
    if spec.quantized is not None:
        assert isinstance(spec.k, int) and isinstance(spec.n, int)
        # A of u8 is made s8, and then meets the B that is packed for s8.
        of_a = spec.quantize or ("s8" if spec.sums_blocks else spec.a.type)
        zero = spec.quantize is None and spec.offsets_blocks
        parts = PackQuantized(spec.k, spec.n, spec.quantized, a=of_a, nb=spec.b.nb, a_zero=zero)
        yield Member(name, parts, Schedule(), packs=member.name)
        return
    batch = Strided(dim("count"), b=dim("stride_b")) if spec.packs_stack else None
    pack = Pack(
        *spec.sizes_of_b, spec.rounded[1], a=spec.rounded[0], nb=spec.b.nb, source=spec.b.type,
        ldb=dim("ldb"), batch=batch, sums=spec.sum_type,
    )  # fmt: skip
    yield Member(name, pack, Schedule(), packs=member.name)


# --- families ----------------------------------------------------------------------------------


def _family(name: str, asked: Sequence[Any], targets: Sequence[str]) -> Family:
    """Return the family of a list of kernels. The sizes are appended to each kernel's name."""
    if not asked:
        raise SpecError(f"family {name!r} is empty", expected="a spec or more")
    members = [_sized(_member(name, each, targets)) for each in asked]
    for member in members[1:]:
        _check_alike(name, members[0], member)
    general = [each for each in members if _is_general(each)]
    if len(general) > 1:
        raise SpecError(
            f"family {name!r} has several kernels with sizes of the call",
            got=", ".join(repr(each.spec) for each in general),
            expected="at most one: what is called where no fixed sizes fit",
        )
    seen: dict[tuple[Size, ...], Member] = {}
    for member in members:
        if seen.setdefault(member.sizes, member) is not member:
            raise SpecError(f"family {name!r} has the same sizes twice", got=member.spec)
    fixed = tuple(each for each in members if not _is_general(each))
    return Family(name, fixed, general[0] if general else None)


def _sized(member: Member) -> Member:
    if not isinstance(member.spec, Gemm):
        raise SpecError(f"family {member.name!r} is of tw.Gemm alone", got=member.spec)
    sizes = "x".join(
        slot if isinstance(size, Dim) else str(size)
        for slot, size in zip(_SIZES, member.sizes, strict=True)
    )
    return replace(member, name=f"{member.name}_{sizes}")


def _is_general(member: Member) -> bool:
    return any(isinstance(size, Dim) for size in member.sizes)


def _check_alike(family: str, first: Member, other: Member) -> None:
    """Raise SpecError unless one call fits both kernels: they differ only in m, n and k."""
    for own in fields(Gemm):
        if own.name in _SIZES:
            continue
        one, two = (getattr(each.spec, own.name) for each in (first, other))
        if canonical(one) != canonical(two):
            raise SpecError(
                f"the kernels of family {family!r} differ in more than m, n and k",
                got=f"{own.name}={two!r} in {other.spec!r}",
                expected=f"{own.name}={one!r}, as in its first",
                hint=f"a family of its own for the other {own.name}",
            )


def common_sizes(family: Family) -> tuple[str, ...]:
    """Return the names of the run-time sizes that a call passes besides m, n and k, in order."""
    one = signature(family.members[0].spec)
    return tuple(p.slot for p in one.sizes if p.slot not in _SIZES)
