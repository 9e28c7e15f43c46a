"""The functions of a library: their declarations in the header, and each target's
implementation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple

from sympy import Expr

from tilewright.errors import SpecError
from tilewright.plan.formats.lookup import AnyFormat, formats_of
from tilewright.spec.gemm import Gemm
from tilewright.spec.network.value import Network
from tilewright.spec.pack import Pack, PackQuantized, QuantizeRows
from tilewright.spec.quantized import Quantized
from tilewright.spec.signature import ArrayParameter, Signature, has_formats, packs, signature
from tilewright.spec.sizes import Dim
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, size_expr

from .block import Block, Packer, block_of
from .choice import Choice
from .members import Contents, Family, Member, common_sizes
from .sources import Made
from .weights import Constants

#: Names that no kernel may have: the header declares them, or a target's table has such a field.
_RESERVED = (
    "version", "status", "target", "use", "has", "name", "status_text", "needs", "consent",
    "threads", "use_threads", "thread_task", "thread_runner", "run_parallel",
)  # fmt: skip
#: Such names of libraries that open files of weights.
_OF_WEIGHTS = ("weights", "close")


@dataclass(frozen=True, slots=True)
class Implementation:
    """One target's implementation of a kernel; ``label`` is a C name that no other one has.

    ``format`` is the packed format if the kernel packs a B, ``packed_bytes`` the size of a matrix
    if it depends on the sizes of the call. ``fixed`` has the C names of compiled-in weights by the
    names of their parameters.
    """

    symbol: str
    label: str
    signature: Signature
    scratch: bool
    configures: bool
    format: AnyFormat | None
    packed_bytes: Expr | None
    fixed: Mapping[str, str]


class Extent(NamedTuple):
    """The size of an array in bytes, as a function of the call's sizes."""

    name: str
    bytes: Expr


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel as the header declares it.

    ``field`` is the kernel's name in each target's table. ``scratch`` is True if the kernel of at
    least one target needs scratch memory, ``configures`` likewise. ``on`` has the implementations
    by the targets' ranks, ``about`` the lines of the comment. ``block`` has the weights of a
    network.
    """

    name: str
    field: str
    member: Member
    signature: Signature
    scratch: bool
    configures: bool
    about: tuple[str, ...]
    extents: tuple[Extent, ...]
    on: tuple[Implementation, ...]
    block: Block | None = None

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the run-time sizes that a call passes."""
        return tuple(p.slot for p in self.signature.sizes)

    @property
    def packs(self) -> bool:
        """True if the function writes a packed matrix, or moves one into another layout."""
        spec = self.member.spec
        return packs(spec) if isinstance(spec, Gemm) else has_formats(spec)

    @property
    def packed_sizes(self) -> tuple[str, ...]:
        """Names of the sizes on which the size of a packed matrix depends, n before k."""
        among = ("m", "n") if isinstance(self.member.spec, Gemm) else ("m", "n", "k")
        return tuple(slot for slot in self.sizes if slot in among) if self.packs else ()

    @property
    def packed_nbytes(self) -> tuple[int, ...]:
        """The size of the packed matrix by the targets' ranks, if it is of fixed size."""
        forms = [each.format for each in self.on]
        return tuple(form.nbytes for form in forms if form is not None and not form.is_open)

    def adapted(self, one: Implementation) -> bool:
        """Return True if a target's own function has other parameters than the header's."""
        own = any(a.stored for a in self.signature.arrays)
        return own or one.scratch != self.scratch or bool(one.fixed)

    def symbols(self) -> Iterator[str]:
        """Yield the names of all functions that the header declares for this kernel."""
        yield self.name
        if self.scratch:
            yield f"{self.name}_scratch_bytes"
        yield from (f"{self.name}_{extent.name}_bytes" for extent in self.extents)
        if self.packs:
            yield from (f"{self.name}_packed_bytes", f"{self.name}_format")
        if self.block is not None:
            ends = ("packed_bytes", "pack", "with", "open", "check")
            yield from (f"{self.name}_{end}" for end in ends)
            if self.block.files:
                yield f"{self.name}_file"
        if self.configures:
            yield from (f"{self.name}_{end}" for end in ("configure", "inner", "release"))


class Condition(NamedTuple):
    """A condition on a size that a family's general kernel has.

    ``slot`` is m, n or k. ``value`` is a number, or the name of another of these sizes.
    """

    kind: Literal["multiple", "most", "least", "equal"]
    slot: str
    value: int | str


#: Tables that find a kernel of a family: for each m, then each n, then each k, the kernel's index.
_ByK = tuple[tuple[int, int], ...]
_ByN = tuple[tuple[int, _ByK], ...]


@dataclass(frozen=True, slots=True)
class FamilyFunction:
    """A family of kernels as the header declares it: members in order, the general one last.

    ``fixed`` finds a kernel's index by m, n and k. ``conditions`` are those of the general kernel,
    None without a general kernel.
    """

    name: str
    field: str
    members: tuple[Function, ...]
    signature: Signature
    scratch: bool
    sizes: tuple[str, ...]
    fixed: tuple[tuple[int, _ByN], ...]
    conditions: tuple[Condition, ...] | None

    @property
    def title(self) -> str:
        """The family in words, for example ``smallmm_sgemm: m x n x k of 8x8x8, mxnxk.``"""
        sizes = ", ".join("x".join(map(_shown, each.member.sizes)) for each in self.members)
        return f"{self.name}: m x n x k of {sizes}."

    @property
    def type(self) -> str:
        """Name of the C type of the family's kernels, for example ``smallmm_sgemm_kernel``."""
        return f"{self.name}_kernel"

    def symbols(self) -> Iterator[str]:
        """Yield the names of all functions that the header declares for this family."""
        yield self.name
        if self.scratch:
            yield f"{self.name}_scratch_bytes"


def _shown(size: int | Dim) -> str:
    return size.name if isinstance(size, Dim) else str(size)


def symbol(library: str, member: Member, choice: Choice) -> str:
    """Return the C name of a kernel for one target, for example ``smallmm_layer_avx2``."""
    return f"{library}_{member.name}_{choice.label}"


# --- kernels -----------------------------------------------------------------------------------


def functions(
    library: str,
    held: Contents,
    found: Sequence[Choice],
    made: Mapping[tuple[str, int], Made],
    constants: Constants,
) -> tuple[Function, ...]:
    """Return a library's functions; ``made`` has the generated C by kernel and target's rank.

    Compiled-in weights are added to ``constants``.
    """
    known = {
        one.name: _function(library, held, one, found, made, constants) for one in held.members
    }
    return tuple(replace(each, block=_block(held, each, known)) for each in known.values())


def _block(held: Contents, function: Function, known: Mapping[str, Function]) -> Block | None:
    packers = {
        name: Packer(made.name, made.signature.arrays, bool(made.sizes), made.packed_nbytes)
        for name, one in held.packers(function.member).items()
        for made in (known[one.name],)
    }
    member, on = function.member, function.on
    found = block_of(member.spec, function.signature, packers, [each.signature for each in on])
    if found is None or not member.filed:
        return found
    # Targets with equal headers share the file of the first of them.
    first = [on[found.headers.index(each)].label for each in found.headers]
    return replace(found, files=tuple(f"{label}.weights" for label in first))


def _function(
    library: str,
    held: Contents,
    member: Member,
    found: Sequence[Choice],
    made: Mapping[tuple[str, int], Made],
    constants: Constants,
) -> Function:
    on = tuple(
        _on(library, member, choice, made[member.name, choice.rank], constants) for choice in found
    )
    whole = on[0].signature
    passed = tuple(each for each in whole.arrays if each.name not in member.weights)
    parameters = replace(whole, arrays=passed)
    name = f"{library}_{member.name}"
    packers = {name: f"{library}_{one.name}" for name, one in held.packers(member).items()}
    about = _about(member, parameters, made[member.name, 0], packers)
    stack = max(made[member.name, choice.rank].stack for choice in found)
    return Function(
        name=name,
        field=member.name,
        member=member,
        signature=parameters,
        scratch=any(each.scratch for each in on),
        configures=any(each.configures for each in on),
        about=(*about, f"A call needs up to {stack // 1024} KiB of stack."),
        extents=tuple(_extents(parameters)),
        on=on,
    )


def _on(
    library: str, member: Member, choice: Choice, made: Made, constants: Constants
) -> Implementation:
    spec, formats = member.spec, formats_of(member.spec, choice.target)
    names = ("d",) if isinstance(spec, Gemm) else ("out", "d", "a")
    form, packed = next((formats[name] for name in names if name in formats), None), None
    if form is not None and form.is_open:
        assert isinstance(spec, Pack | QuantizeRows | Gemm)
        along = ("n", spec.n) if isinstance(spec, Gemm) else ("k", spec.k)
        lines = ("n", spec.n) if isinstance(spec, Pack) else ("m", spec.m)
        whole: Any = form.of(size_expr(*along), size_expr(*lines))
        packed = whole.nbytes
    return Implementation(
        symbol=symbol(library, member, choice),
        label=f"{choice.label}_{member.name}",
        signature=signature(member.spec, formats),
        scratch=made.scratch,
        configures=made.configures,
        format=form,
        packed_bytes=packed,
        fixed={
            name: constants.place(array, formats.get(name), choice.rank)
            for name, array in member.weights.items()
        },
    )


def _about(
    member: Member, parameters: Signature, made: Made, packers: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of the comment that describes a kernel in the header."""
    packing = isinstance(member.spec, Pack | PackQuantized | QuantizeRows)
    yield made.formula.rpartition(":")[0] if packing else made.formula
    yield repr(member.spec)
    found = member.spec.constants if isinstance(member.spec, Network) else {}
    constants = {weight.name: repr(constant) for weight, constant in found.items()}
    for p in parameters.arrays:
        which = f" of {constants[p.name]}" if p.name in constants else ""
        yield f"{p.symbol}: {_described(p)}{which}{_contents(p, packers)}"
    if member.weights:
        yield f"The weights are compiled in: {', '.join(member.weights)}."
    for number, inputs in parameters.shared().items():
        output, given = parameters.arrays[number], [parameters.arrays[each] for each in inputs]
        if others := " or ".join(each.symbol for each in given if each.leading == output.leading):
            yield f"{output.symbol} may be {others} itself."


def _described(p: ArrayParameter) -> str:
    """Describe an array's shape, type and order in words."""
    shape = " x ".join(map(_shown, p.shape))
    if p.kind in ("vector", "offsets", "tensor"):
        return f"{shape} {p.type}"
    if p.stored:
        many = ", matrices that offsets count" if p.kind == "flat" else ""
        return f"bytes in a format of its own{many}"
    if p.quantized is not None:
        return f"{shape} {p.type}, {_part(p, p.quantized)}"
    lines = "rows contiguous" if p.order == "C" else "columns contiguous"
    apart = "" if p.leading is None else f", {_shown(p.leading)} elements apart"
    kinds = {"sequence": "pointers to matrices of ", "flat": "matrices at offsets, each "}
    many = "" if p.kind != "strided" else ", one for each of the batch"
    return f"{kinds.get(p.kind, '')}{shape} {p.type}, {lines}{apart}{many}"


def _part(p: ArrayParameter, form: Quantized) -> str:
    """Describe in words which part of a low-bit matrix an array holds, for example its scales."""
    lines = f"{'rows' if p.order == 'C' else 'columns'} contiguous"
    if p.name == "q":
        return f"{lines}; {'codes' if form.stored.floating else 'numbers'} of {form.type}"
    along = "for all of K" if form.along is None else f"for each {form.along} of K"
    across = "and column" if form.columns == 1 else f"and {form.columns} columns"
    held = f", as bytes of {form.scale}" if p.name == "scales" and form.scale != p.type else ""
    kind = "" if p.name == "scales" else f" {'minimum' if form.zeros == 'minima' else 'zero point'}"
    return f"{lines}; one{kind} {along} {across}{held}"


def _contents(p: ArrayParameter, packers: Mapping[str, str]) -> str:
    """Describe whether an array is read or written, and which function fills it."""
    if p.packed:
        return f", made by {packers.get(p.name) or packers['b']}"
    return {"in": "", "out": "; written", "inout": "; read and written"}[p.role]


def _extents(parameters: Signature) -> Iterator[Extent]:
    """Yield the size of each array in bytes, as a formula of the sizes that a call passes.

    For an operand passed as pointers or offsets, it is the size of one matrix. Arrays in a packed
    format are left out.
    """
    for p in parameters.arrays:
        if p.stored:
            continue
        elements = _elements(p)
        if elements is not None:
            yield Extent(p.name, elements * ITEMSIZE[p.element])


def _elements(p: ArrayParameter) -> Expr | None:
    """Return how many elements an array's memory has, from its first to its last, as a formula."""
    sizes = [size_expr(slot, size) for slot, size in zip(p.slots, p.shape, strict=False)]
    if p.kind in ("vector", "offsets", "tensor"):
        return math.prod(sizes, start=ONE)
    rows, cols = sizes
    line, lines = (cols, rows) if p.order == "C" else (rows, cols)
    if ZERO in (line, lines):
        return ZERO
    leading = line if p.leading is None else size_expr(p.leading_symbol, p.leading)
    one = (lines - 1) * leading + line
    if p.kind != "strided" or p.batch_stride == 0 or p.count is None:
        return one
    stride = lines * leading
    if p.batch_stride is not None:
        stride = size_expr(p.stride_slot, p.batch_stride)
    return (size_expr("count", p.count) - 1) * stride + one


# --- families ----------------------------------------------------------------------------------


def family_functions(
    library: str, families: Sequence[Family], known: Sequence[Function]
) -> tuple[FamilyFunction, ...]:
    """Return the functions that find the kernels of families; ``known`` has all kernels."""
    by_member = {each.member.name: each for each in known}
    return tuple(_family_function(library, family, by_member) for family in families)


def _family_function(
    library: str, family: Family, by_member: Mapping[str, Function]
) -> FamilyFunction:
    members = tuple(by_member[each.name] for each in family.members)
    general = family.general
    return FamilyFunction(
        name=f"{library}_{family.name}",
        field=family.name,
        members=members,
        signature=members[0].signature,
        scratch=any(each.scratch for each in members),
        sizes=("m", "n", "k", *common_sizes(family)),
        fixed=_by_sizes(family.fixed),
        conditions=None if general is None else tuple(_conditions(general)),
    )


def _by_sizes(fixed: Sequence[Member]) -> tuple[tuple[int, _ByN], ...]:
    """Return nested tables of the kernels' indices, by m, then by n, then by k."""
    rows = sorted((*_numbers(each), place) for place, each in enumerate(fixed))
    return tuple(
        (m, tuple((n, tuple((k, place) for *_, k, place in by_k)) for n, by_k in _grouped(of_m, 1)))
        for m, of_m in _grouped(rows, 0)
    )


def _numbers(member: Member) -> tuple[int, int, int]:
    m, n, k = (size for size in member.sizes if isinstance(size, int))
    return m, n, k


_Row = tuple[int, int, int, int]


def _grouped(rows: Sequence[_Row], column: int) -> Iterator[tuple[int, list[_Row]]]:
    for value, group in groupby(rows, key=lambda row: row[column]):
        yield value, list(group)


def _conditions(general: Member) -> Iterator[Condition]:
    """Yield the conditions on m, n and k under which a family's general kernel may be called."""
    first: dict[str, str] = {}
    for slot, size in zip("mnk", general.sizes, strict=True):
        if isinstance(size, int):
            yield Condition("equal", slot, size)
            continue
        if first.setdefault(size.name, slot) != slot:
            yield Condition("equal", slot, first[size.name])
            continue
        yield Condition("least", slot, 0)
        if size.multiple_of > 1:
            yield Condition("multiple", slot, size.multiple_of)
        if size.max is not None:
            yield Condition("most", slot, size.max)


# --- names -------------------------------------------------------------------------------------


def check_symbols(
    library: str, known: Sequence[Function], families: Sequence[FamilyFunction]
) -> tuple[str, ...]:
    """Return the functions that the header declares for kernels; SpecError if two have one name."""
    own_names = _RESERVED + _OF_WEIGHTS * any(each.block for each in known)
    owners = {f"{library}_{name}": "the library itself" for name in own_names}
    declared: list[Function | FamilyFunction] = [*known, *families]
    for each in declared:
        own = [(name, f"what {each.field!r} declares") for name in each.symbols()]
        if isinstance(each, Function):
            own += [(one.symbol, f"a target's kernel of {each.field!r}") for one in each.on]
        else:
            own.append((each.type, f"the type of the kernels of {each.field!r}"))
        for name, owner in own:
            if name in owners:
                raise SpecError(
                    f"two things of the library would be called {name} in C",
                    got=f"{owners[name]}, and {owner}",
                    hint="another name for the kernel or its operand",
                )
            owners[name] = owner
    return tuple(name for each in declared for name in each.symbols())
