"""Write a kernel as a self-testing C program for machines without Python.

In go a spec, a schedule and a target. Out comes one C file with the kernel, arguments and correct
results. Arguments and error bounds are those of ``verify``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError, SpecError
from tilewright.generate import VERSION, Request, generate
from tilewright.isa.target import Target
from tilewright.keywords import spelled
from tilewright.plan.formats.lookup import format_of, formats_of
from tilewright.plan.formats.quantized_b import quantized_format
from tilewright.runtime.bench.peak import program_context, types_of
from tilewright.runtime.bench.timing import operations
from tilewright.runtime.build.toolchain import program_commands, versioned
from tilewright.runtime.call.bound_sizes import Array, value_of
from tilewright.runtime.call.pack_source import Given, pack_a_for, pack_for
from tilewright.runtime.emulate.calls import span
from tilewright.runtime.quantized.matrix import quantized_bytes
from tilewright.runtime.reference.arguments import Sample, extent, matrices_in, samples
from tilewright.runtime.reference.gemm import Expected
from tilewright.runtime.reference.pack_b import packed_bytes
from tilewright.runtime.reference.quantized import packed_rows
from tilewright.runtime.reference.verify import right_results
from tilewright.runtime.store.compiled import render
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.network.value import Network
from tilewright.spec.pack import PackQuantized, QuantizeRows
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import ArrayParameter, Signature, signature
from tilewright.spec.types import ELEMENTS, FORMATS, ITEMSIZE

from .driver import request_for

#: Maximum number of array elements in one C file. Compilers take minutes for more.
_MOST = 1 << 21


@dataclass(frozen=True, slots=True)
class Block:
    """An array in C: numbers, or the bits of elements whose type C lacks.

    If ``length`` is not 0, the array has that many elements, and the program fills it. The last two
    of ``numbers`` are its first and its last element. Each other element is one of the numbers
    before them.
    """

    name: str
    element: str
    numbers: list[Any]
    length: int = 0


@dataclass(frozen=True, slots=True)
class Argument:
    """An input of one call of the kernel in the C program.

    It is the single array of ``blocks``. If ``table`` is True, it is an array of pointers to all of
    them.

    ``element`` is the C type, or "" if the pointers are to blocks of several types.
    """

    name: str
    element: str
    blocks: tuple[Block, ...]
    table: bool


@dataclass(frozen=True, slots=True)
class Output:
    """An output of one call of the kernel in the C program, and its correct values.

    An element is correct if it is from ``low`` to ``high``, or NaN where ``nan`` says so. The
    elements form contiguous ``lines`` of ``line`` elements each: rows, or if ``columns``, columns.
    ``leading`` is the distance of lines in elements. ``held`` is the content before the call if the
    kernel reads it. ``axes`` is 1 for a vector. In a stack, each matrix has ``each`` lines, and
    matrices are ``stride`` elements apart. ``at`` has the indices of the checked elements, counted
    along lines; empty if all are checked.
    """

    name: str
    title: str
    element: str
    axes: int
    columns: bool
    lines: int
    line: int
    leading: int
    each: int
    stride: int
    held: tuple[Block, ...]
    low: Block
    high: Block
    nan: tuple[Block, ...]
    at: tuple[Block, ...]

    @property
    def limits(self) -> tuple[Block, ...]:
        """The arrays of least and greatest correct values; a single array if they are the same."""
        return (self.low,) if self.high is self.low else (self.low, self.high)

    @property
    def bytes(self) -> int:
        """Bytes of memory from the output's first element to the end of its last row or column."""
        stacked = (self.lines // self.each - 1) * self.stride if self.lines else 0
        return (stacked + self.each * self.leading) * ITEMSIZE[self.element]

    @property
    def checked(self) -> int:
        """Number of the output's elements that the program checks."""
        return len(self.at[0].numbers) if self.at else self.lines * self.line


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the kernel in the C program.

    ``arguments`` are in the order of the C function's parameters. ``flops`` is the number of
    floating-point operations.
    """

    arguments: tuple[Argument | Output, ...]
    sizes: tuple[int, ...]
    scalars: tuple[float, ...]
    said: str
    flops: int = 0

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The arguments that the kernel writes."""
        return tuple(a for a in self.arguments if isinstance(a, Output))

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The arguments that the kernel only reads."""
        return tuple(a for a in self.arguments if isinstance(a, Argument))

    @property
    def spread(self) -> tuple[Block, ...]:
        """The long arrays, which the program fills itself from a short list of values."""
        held = [block for argument in self.inputs for block in argument.blocks]
        held += [block for output in self.outputs for block in output.held]
        return tuple(block for block in held if block.length)


# --- the program -------------------------------------------------------------------------------


@spelled(ArgumentTypeError)
def harness(
    spec: Spec,
    schedule: Schedule | None = None,
    target: str = "host",
    *,
    cases: int = 2,
    seed: int = 0,
    name: str | None = None,
    bench: bool = False,
) -> str:
    """Return a C program that runs a kernel and checks its results.

    Nothing is compiled here. The program needs no input. It prints "pass", or "fail" with the first
    wrong element; then its exit status is 1. A comment at the top has the command that compiles it
    into a static program.

    Parameters
    ----------
    spec : Gemm, Network, Transpose, Copy, Pack or PackQuantized
        The computation.
    schedule : Schedule, optional
        How it is computed. Default: the cost model chooses.
    target : str
        A target's name, or "host". Default: "host".
    cases : int
        Number of calls, which are those of ``kernel.verify(cases, seed)``. Default: 2.
    seed : int
        Seed of the random arguments. Default: 0.
    name : str, optional
        Name of the C function. Default: a name that describes the computation.
    bench : bool
        If True, the program also times each call. It prints the least and the median time, GFLOPS,
        and the share of the core's peak, which it measures itself. Default: False.

    Returns
    -------
    str
        The text of the C file.

    Raises
    ------
    ArgumentError
        The arrays have too many elements for a C file, or ``cases`` is less than 1.
    SpecError, ScheduleError, TargetError
        As for ``tw.compile``.

    Examples
    --------
    >>> text = tw.harness(tw.Gemm(2, 3, 4), target="neon", cases=1, name="tiny")
    >>> "int main(void)" in text, "void tiny(const float *a, const float *b, float *c)" in text
    (True, True)
    """
    return program(request_for(spec, schedule, target, name), cases=cases, seed=seed, bench=bench)


def program(
    request: Request,
    *,
    cases: int = 2,
    seed: int = 0,
    file: str | None = None,
    bench: bool = False,
) -> str:
    """Return the C program that tests one kernel; ``file`` is the name of the program's file."""
    if request.name == "main":
        raise SpecError("a kernel in a program cannot be called main", got=request.name)
    if cases < 1:
        raise ArgumentValueError("a harness needs a case", got=cases, expected="1 or more")
    spec, target = request.spec, request.target
    parameters = signature(spec, formats_of(spec, target))
    _check_lengths(parameters, {p.dim.name: p.dim.multiple_of for p in parameters.sizes}, cases)
    runs = [
        _run(i, spec, target, parameters, held, cases)
        for i, held in enumerate(samples(spec, parameters, cases, seed))
    ]
    file = file or f"{request.name}.c"
    source = generate([request]).text
    stem = file.removesuffix(".c")
    made = program_commands(target, file, stem)
    return render(
        "harness/harness.c.j2",
        version=VERSION,
        name=request.name,
        commands={
            versioned(target, family): shlex.join(command) for family, command in made.items()
        },
        pinned=shlex.join(["taskset", "-c", "2", f"./{stem}"]),
        source=source,
        versions=bool(target.compilers),
        length=target.length,
        asks=f"int {request.name}_refused(void);" in source,
        runs=runs,
        types={o.element: FORMATS.get(o.element) for run in runs for o in run.outputs},
        seed=seed,
        benches=bench,
        **(_peak_of(spec, target) if bench else _NO_PEAK),
    )


#: Template variables of a program that measures no peak.
_NO_PEAK: dict[str, Any] = {"peak": False, "target": None, "matrix": None}


def _peak_of(spec: Spec, target: Target) -> dict[str, Any]:
    """Return the template variables for measuring the core's peak speed.

    They are ``_NO_PEAK`` unless the spec is a product.
    """
    if not isinstance(spec, Gemm):
        return _NO_PEAK
    return {"peak": True, **program_context(target, types_of(spec.multiplied), alone=False)}


def _check_lengths(parameters: Signature, sizes: Mapping[str, int], cases: int) -> None:
    """Raise ArgumentError if the arrays have too many elements to be written into a C file."""
    numbers = cases * sum(
        _numbers(p, sizes) * (1 if p.role == "in" else 2) for p in parameters.arrays
    )
    if numbers > _MOST:
        raise ArgumentValueError(
            "these arrays are too long to be written into C",
            got=f"about {numbers:,} numbers in {cases} {'cases' if cases > 1 else 'case'}",
            expected=f"at most {_MOST:,}",
            hint="smaller sizes, with the same schedule" + (", or cases=1" * (cases > 1)),
        )


def _numbers(p: ArrayParameter, sizes: Mapping[str, int]) -> int:
    """Return about how many elements an operand's memory has, gaps between rows included."""
    if len(p.shape) != 2:
        return prod(value_of(size, sizes) for size in p.shape)
    one = extent(p, sizes)
    if p.packed:
        return one * matrices_in(p, sizes)
    if p.kind == "flat":
        return one + (2 * one if p.static_offsets is None else max(p.static_offsets, default=0))
    more = 0 if p.count is None else value_of(p.count, sizes) - 1
    stride = one if p.batch_stride is None else value_of(p.batch_stride, sizes)
    return one + max(more, 0) * stride


# --- a call ------------------------------------------------------------------------------------


def _run(
    index: int, spec: Spec, target: Target, parameters: Signature, held: Sample, cases: int
) -> Run:
    _check_lengths(parameters, held.sizes, cases)
    right = right_results(spec, target, parameters, held)
    arguments = tuple(
        _argument(f"run{index}_{p.symbol}", spec, target, p, given)
        if p.role == "in"
        else output_of(f"run{index}_{p.symbol}", p, given, right[p.name])
        for p, given in zip(parameters.arrays, held.arrays, strict=True)
    )
    sizes = {p.slot: held.sizes[p.dim.name] for p in parameters.sizes}
    said = [f"{name} = {value}" for name, value in {**sizes, **held.scalars}.items()]
    scalars = tuple(held.scalars.values())
    return Run(arguments, tuple(sizes.values()), scalars, ", ".join(said), operations(spec, held))


def _argument(name: str, spec: Spec, target: Target, p: ArrayParameter, given: Any) -> Argument:
    """Return the description of an input, from which the template writes C arrays."""
    table = p.kind == "sequence"
    items = given if table else [given]
    if p.packed:
        items, element = [_packed(spec, target, p.name, item) for item in items], "u8"
    else:
        element = p.element
    names = [f"{name}_{i}" for i in range(len(items))] if table else [name]
    blocks = tuple(block_of(n, item, element) for n, item in zip(names, items, strict=True))
    return Argument(name, element, blocks, table)


def _packed(spec: Spec, target: Target, name: str, given: Any) -> Array:
    """Return the bytes that packing makes from ``given``, the operand ``name``."""
    if isinstance(spec, Network):
        pack = spec.packing(next(each for each in spec.packed if each.name == name))
        if isinstance(pack, PackQuantized):
            return quantized_bytes(given, format_of(pack, target))
        return packed_bytes(pack, target, [given]).reshape(-1)
    assert isinstance(spec, Gemm)
    return _packed_a(spec, target, given) if name == "a" else _packed_b(spec, target, given)


def _packed_a(spec: Gemm, target: Target, a: Array) -> Array:
    """Return the bytes that ``pack_a`` makes from ``a``."""
    pack, given = pack_a_for(spec, a)
    if isinstance(pack, QuantizeRows):
        return packed_rows(pack, target, given).reshape(-1)
    return packed_bytes(pack, target, [given]).reshape(-1)


def _packed_b(spec: Gemm, target: Target, b: Any) -> Array:
    """Return the bytes that ``pack_b`` makes from ``b``."""
    if spec.quantized is not None:
        form = quantized_format(spec, target)
        return np.concatenate([quantized_bytes(matrix, form) for matrix in b])
    pack, b = pack_for(spec, Given(b))
    return packed_bytes(pack, target, [b] if pack.batch is None else b).reshape(-1)


def block_of(name: str, array: Array, element: str) -> Block:
    """Return the memory from an array's first element to its last, gaps included, for C code.

    An empty array gets one element 0, because C has no empty arrays.
    """
    type_ = ELEMENTS[element]
    numbers = span(array).view(type_.bits or type_.numpy).tolist()
    return Block(name, element, numbers or [0])


def output_of(
    name: str, p: ArrayParameter, array: Array, right: Expected, at: Sequence[int] | None = None
) -> Output:
    """Return the description of an output, with its correct values row by row or column by column.

    With ``at``, only the elements at these indices are checked.
    """
    columns = p.order == "F"
    whole = np.atleast_2d(_along_lines(array, columns))
    each, line = whole.shape[-2:]
    leading = whole.strides[-2] // whole.itemsize if each > 1 else line
    stride = whole.strides[-3] // whole.itemsize if whole.ndim > 2 else 0
    limits = [_in_lines(part, array.shape, columns) for part in right.limits()]
    low, high, nan = limits if at is None else (part[list(at)] for part in limits)
    least = Block(f"{name}_low", "f64", _within(low, np.inf) or [0])
    greatest = Block(f"{name}_high", "f64", _within(high, -np.inf) or [0])
    allowed = [Block(f"{name}_nan", "u8", nan.astype(int).tolist())] if nan.any() else []
    return Output(
        name=name,
        title=p.name,
        element=p.type,
        axes=array.ndim,
        columns=columns,
        lines=whole.size // max(line, 1),
        line=line,
        leading=leading,
        each=max(each, 1),
        stride=stride,
        held=(block_of(f"{name}_held", array, p.element),) if p.role == "inout" else (),
        low=least,
        high=least if greatest.numbers == least.numbers else greatest,
        nan=tuple(allowed),
        at=() if at is None else (Block(f"{name}_at", "s64", list(at)),),
    )


def _in_lines(part: Array, shape: tuple[int, ...], columns: bool) -> Array:
    return _along_lines(np.broadcast_to(part, shape), columns).reshape(-1)


def _along_lines(array: Array, columns: bool) -> Array:
    """Return ``array`` with its contiguous axis last: a transposed view if ``columns`` is True."""
    return array.swapaxes(-1, -2) if columns and array.ndim > 1 else array


def _within(ends: Array, inwards: float) -> list[Any]:
    """Return one end of each interval as f64, rounded towards the inside of the interval."""
    with np.errstate(over="ignore"):
        near = ends.astype(np.float64)
    outside = near < ends if inwards > 0 else near > ends
    found: list[Any] = np.where(outside, np.nextafter(near, inwards), near).tolist()
    return found
