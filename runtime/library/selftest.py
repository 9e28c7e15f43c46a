"""The self-test of a library: calls of each kernel through the library, with the right results.

Arguments and error bounds are made as in ``runtime/harness.py``. To keep the files small, a long
array repeats a few numbers in an order that looks random. Of a large result some elements are
checked: the corners, and others that are drawn for each kernel.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tilewright.emit.layout import folded
from tilewright.generate import VERSION
from tilewright.runtime.arrays.elements import encode
from tilewright.runtime.call.bound_sizes import Array, strided
from tilewright.runtime.harness import Argument, Block, Output, Run, block_of, output_of
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.runtime.reference.arguments import Sample, gain, matrices_in, sample
from tilewright.runtime.reference.verify import right_results
from tilewright.runtime.store.compiled import render
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.quantized import Quantized
from tilewright.spec.signature import ArrayParameter, Signature, parts_of
from tilewright.spec.sizes import Dim
from tilewright.spec.types import FORMATS, is_integer

from .block import Block as Weights
from .choice import Choice
from .files import Described
from .interface import FamilyFunction, Function
from .weights import placed

#: A long array repeats this many numbers. It is a prime, so that rows of usual lengths differ.
_NUMBERS = 251
#: Maximum number of elements of an array that is written out in full.
_SHORT = 512
#: Values of the first and the last element of A or B in one of the calls.
_ODD = np.nan, np.inf
#: Number of elements of a large result that are checked.
_CHECKED = 256
#: Factor and shift that map an index of an array to one of the repeated numbers. The template of
#: the C code uses the same values.
_MIXED, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(40)


@dataclass(frozen=True, slots=True)
class Check:
    """Calls of a kernel; they run on ``target`` only, or on all targets if it is ""."""

    target: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """An operand that the self-test packs before a call: ``count`` matrices, or one if None.

    ``sizes`` are C expressions for those sizes that the packing function takes, ``n`` and ``each``
    for the elements of a row and of a matrix. ``count`` is the name of a size if the call passes
    it. ``table`` is True if the matrices are passed as pointers. ``parts`` is the number of arrays
    of each matrix, 0 if it has only elements. ``packer`` is the C function
    that packs it.
    """

    name: str
    packer: str
    index: int
    element: str
    sizes: tuple[str, ...]
    n: str
    each: str
    count: int | str | None
    table: bool
    parts: int


class Test(NamedTuple):
    """The name of the C function that calls one kernel, and the path of its file."""

    name: str
    file: str


def selftest_files(told: Described) -> dict[str, str]:
    """Return the files of the self-test by path: two, and one for each kernel."""
    tests = [
        Test(f"test_{each.field}", f"selftest/{each.field}_calls.c") for each in told.functions
    ]
    context = {"tool": VERSION, "library": told.library, "tests": tests}
    found = {
        "selftest/selftest.h": folded(render("selftest/selftest.h.j2", **context)),
        "selftest/selftest.c": folded(render("selftest/selftest.c.j2", **context)),
    }
    for function, test in zip(told.functions, tests, strict=True):
        found[test.file] = _calls(told, function, test)
    return found


def _calls(told: Described, function: Function, test: Test) -> str:
    checks = tuple(_checks(function, told.choices))
    outputs = [output for check in checks for run in check.runs for output in run.outputs]
    text = render(
        "selftest/calls.c.j2",
        tool=VERSION,
        library=told.library,
        f=_Called(
            function,
            next((each for each in told.families if function in each.members), None),
        ),
        test=test.name,
        checks=checks,
        packings=tuple(_packings(told, function)),
        types={output.element: FORMATS.get(output.element) for output in outputs},
    )
    return folded(text)


class _Called(NamedTuple):
    """A function as the self-test calls it; ``family`` contains it."""

    function: Function
    family: FamilyFunction | None

    @property
    def passed(self) -> list[str]:
        """The sizes that a call passes, as C expressions such as ``sizes[0]``."""
        return [f"sizes[{place}]" for place in range(len(self.sizes))]

    @property
    def family_sizes(self) -> list[str]:
        """The sizes that a call through the family passes, as C expressions or numbers."""
        assert self.family is not None
        fixed = dict(zip("mnk", self.function.member.sizes, strict=True))
        known = dict(zip(self.sizes, self.passed, strict=True))
        return [known.get(slot) or str(fixed[slot]) for slot in self.family.sizes]

    @property
    def name(self) -> str:
        """The C function's name."""
        return self.function.name

    @property
    def signature(self) -> Signature:
        """The C function's parameters."""
        return self.function.signature

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the run-time sizes that a call passes."""
        return self.function.sizes

    @property
    def block(self) -> Weights | None:
        """The weights of a network in one block."""
        return self.function.block

    @property
    def scratch(self) -> bool:
        """True if the C function takes scratch memory."""
        return self.function.scratch


def _packings(told: Described, function: Function) -> Iterator[Packing]:
    """Yield the operands that the self-test packs before a call."""
    spec, packers = function.member.spec, told.held.packers(function.member)
    for index, p in enumerate(function.signature.arrays):
        if not p.packed:
            continue
        table = p.kind == "sequence"
        count = None
        if isinstance(spec, Gemm) and spec.batch is not None and (table or spec.packs_stack):
            size = matrices_in(p, {}) if p.kind == "flat" else spec.batch.count
            count = "count" if isinstance(size, Dim) else size
        parts = 0 if p.quantized is None else 3 if p.quantized.zeros else 2
        packer = packers[p.name if p.name in packers else "b"].name
        packer = f"{told.library.name}_{packer}"
        # Rows of A are packed as columns of B are, so m takes the place of n.
        slots, order = ("mk", "mk") if p.name == "a" else ("kn", "nk")
        shape = dict(zip(slots, p.shape, strict=True))
        open_ = [slot for slot in order if isinstance(shape[slot], Dim)]
        sizes = {slot: f"sizes[{function.sizes.index(slot)}]" for slot in open_}
        n, k = (sizes.get(slot, str(shape[slot])) for slot in slots[::-1])
        each = f"{k} * {n}" if sizes else str(int(k) * int(n))
        yield Packing(
            p.name, packer, index, p.type, tuple(sizes.values()), n, each, count, table, parts
        )  # fmt: skip


# --- calls -------------------------------------------------------------------------------------


def _checks(function: Function, choices: Sequence[Choice]) -> Iterator[Check]:
    """Yield a kernel's calls: for all targets, or one set for each target if the kernel packs."""
    if not function.packs:
        yield Check("", tuple(_runs(function, choices[0], "")))
        return
    for choice in choices:
        yield Check(choice.name, tuple(_runs(function, choice, f"{choice.label}_")))


def _runs(function: Function, choice: Choice, prefix: str) -> Iterator[Run]:
    """Yield a call whose results are exact, and one with arbitrary numbers, NaN and Inf among
    them.
    """
    spec = function.member.spec
    parameters = function.on[choice.rank].signature
    rng = np.random.default_rng(zlib.crc32(function.field.encode()))
    packed = isinstance(spec, Gemm) and function.packs  # NaN, at one place, makes sums of D unsure
    for index, whole in enumerate((True,) if packed else (True, False)):
        held = sample(parameters, rng, varied=True, whole=whole, gain=gain(spec))
        fixed = function.member.weights
        names = [p.name for p in parameters.arrays]
        held = held._replace(arrays=tuple(placed(fixed, names, held.arrays)))
        long = {
            p.name
            for p, given in _with_arrays(parameters, held)
            if p.name not in fixed and _thinned(p, given)
        }
        if not whole:
            _make_odd(spec, parameters, held)
        right = right_results(spec, choice.target, parameters, held)
        arguments = tuple(
            _argument(f"{prefix}run{index}_{p.symbol}", p, given, p.name in long)
            if p.role == "in"
            else _result(
                f"{prefix}run{index}_{p.symbol}", p, given, right[p.name], rng, p.name in long
            )
            for p, given in _with_arrays(parameters, held)
            if p.name not in fixed
        )
        yield Run(arguments, tuple(_sizes(parameters, held)), tuple(held.scalars.values()), "")


def _make_odd(spec: Spec, parameters: Signature, held: Sample) -> None:
    """Make the first element of A, or of B, NaN and the last one Inf, if they are floats.

    Then only the first and the last row (or column) of the results are affected. If A is quantized,
    each of the two elements makes its row NaN.
    """
    if not isinstance(spec, Gemm):
        return
    for name, size in (("a", spec.m), ("b", spec.n)):
        p = parameters.array(name)
        if held.size(size) > 2 and p.quantized is None and not is_integer(p.type):
            given = held.arrays[parameters.arrays.index(p)]
            several = [one for one in (given if p.kind == "sequence" else [given]) if one.size]
            for array, place, number in zip(
                several[:1] + several[-1:], (0, -1), _ODD, strict=False
            ):
                array[(place,) * array.ndim] = encode(np.array(number), p.type)
            return


def _with_arrays(parameters: Signature, held: Sample) -> Iterator[tuple[ArrayParameter, Any]]:
    return zip(parameters.arrays, held.arrays, strict=True)


def _sizes(parameters: Signature, held: Sample) -> Iterator[int]:
    return (held.sizes[p.dim.name] for p in parameters.sizes)


def _thinned(p: ArrayParameter, given: Any) -> bool:
    """Replace the elements of a long array by a few repeated numbers; True if the array is long."""
    if p.packed and p.quantized is not None:
        for matrix in _matrices(given):
            for part in parts_of(p.quantized):
                _thin(getattr(matrix, part))
        return False  # as a whole
    if p.is_bytes or p.role == "out":  # bytes in another order may be no elements
        return False
    return p.kind not in ("sequence", "offsets") and _thin(given)


def _thin(given: Array) -> bool:
    """Replace the elements of a long array by a few repeated numbers; True if it is long."""
    if given.size <= _SHORT:
        return False
    memory = _memory(given)
    memory[...] = given.reshape(-1)[:_NUMBERS][_drawn(memory.size)]
    return True


def _memory(array: Array) -> Array:
    """Return a view of the memory from an array's first element to its last."""
    steps = zip(array.shape, array.strides, strict=True)
    elements = sum((n - 1) * stride for n, stride in steps) // array.itemsize + 1
    return strided(array, (elements,), (array.itemsize,))


def _drawn(length: int) -> Array:
    """Return for each element of a long array the index of the number that it repeats."""
    places = np.arange(length, dtype=np.uint64)
    with np.errstate(over="ignore"):
        found: Array = (places * _MIXED >> _SHIFT) % np.uint64(_NUMBERS)
    return found


def _block(name: str, given: Array, element: str, long: bool) -> Block:
    whole = block_of(name, given, element)
    if not long:
        return whole
    some = [0] * _NUMBERS
    for place, number in [*zip(_drawn(len(whole.numbers)), whole.numbers, strict=True)][1:-1]:
        some[int(place)] = number
    ends = [whole.numbers[0], whole.numbers[-1]]
    return replace(whole, numbers=some + ends, length=len(whole.numbers))


def _argument(name: str, p: ArrayParameter, given: Any, long: bool) -> Argument:
    """Return an input of a call as C arrays. Operands that the self-test packs are unpacked."""
    if p.packed and p.quantized is not None:
        blocks = _parts(name, p.quantized, given)
        return Argument(name, "", tuple(blocks), table=True)
    element = p.type if p.packed else p.element
    if p.kind != "sequence":
        return Argument(name, element, (_block(name, given, element, long),), table=False)
    items = [block_of(f"{name}_{i}", item, element) for i, item in enumerate(given)]
    return Argument(name, element, tuple(items), table=True)


def _matrices(given: QuantizedMatrix | Sequence[QuantizedMatrix]) -> list[QuantizedMatrix]:
    """Return the low-bit matrices of an operand one by one."""
    return [
        one for each in ([given] if isinstance(given, QuantizedMatrix) else given) for one in each
    ]


def _parts(name: str, form: Quantized, given: Any) -> Iterator[Block]:
    """Yield C arrays of the elements, scales and zero points of each low-bit matrix."""
    for index, matrix in enumerate(_matrices(given)):
        for part, element in parts_of(form).items():
            array = getattr(matrix, part)
            yield _block(f"{name}_{index}_{part}", array, element, array.size > _SHORT)


def _result(
    name: str, p: ArrayParameter, given: Array, right: Any, rng: np.random.Generator, long: bool
) -> Output:
    """Return an output of a call with its right results, at all elements or at some."""
    at = None
    if given.size > _CHECKED:
        line = given.shape[-2 if p.order == "F" and given.ndim > 1 else -1]
        ends = [0, line - 1, given.size - line, given.size - 1]
        some = rng.choice(given.size, _CHECKED - len(ends), replace=False)
        at = sorted({*ends, *map(int, some)})
    found = output_of(name, p, given, right, at)
    if not found.held:
        return found
    return replace(found, held=(_block(found.held[0].name, given, p.element, long),))
