"""Define the parameters of a kernel: their names, their order in C, and what a call must check.

The signature is built from the spec alone. A kernel from the cache needs neither sympy nor a plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from .gemm import QUANTITIES, SHAPES, Gemm, Spec, stride_slot
from .operands import Addresses, Batch, Matrix, Offsets, Packed, Strided
from .pack import Copy, Pack, PackQuantized, QuantizeRows
from .quantized import SCALES, Quantized
from .scalars import LEAST_DIVISOR, quantity_type
from .sizes import Dim, Size, dims_of
from .transpose import Transpose
from .types import ITEMSIZE

if TYPE_CHECKING:
    from .expression import Operand


class Stored(Protocol):
    """Interface of a packed matrix's format, as far as a signature needs it."""

    @property
    def text(self) -> str:
        """The format as one line of text. Equal formats have equal texts, others do not."""

    @property
    def stored(self) -> str:
        """The type of the packed elements in memory."""

    @property
    def is_open(self) -> bool:
        """True if the format does not know the matrix's sizes."""

    @property
    def nbytes(self) -> Any:
        """The size of one packed matrix in bytes: an int, if the sizes are known."""

    def of(self, k: Any, n: Any) -> Stored:
        """Return the format of a matrix of k x n elements."""


@dataclass(frozen=True, slots=True, repr=False)
class PackedBytes(Dim):
    """The size in bytes of a packed matrix whose ``k`` or ``n`` is known only at the call."""

    form: Stored | None = None
    k: Size = 0
    n: Size = 0

    @property
    def parts(self) -> tuple[Dim, ...]:
        """The dims among the matrix's sizes."""
        return tuple(dims_of((self.k, self.n)))

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the size for the values of a call's dims by name."""
        assert self.form is not None
        k, n = (x.at(sizes) if isinstance(x, Dim) else x for x in (self.k, self.n))
        return int(self.form.of(k, n).nbytes)


Role = Literal["in", "out", "inout"]
Kind = Literal["matrix", "strided", "flat", "sequence", "offsets", "packed", "vector", "tensor"]


@dataclass(frozen=True, slots=True)
class ArrayParameter:
    """A pointer parameter of the C function: an array that a call passes.

    ``shape`` is the shape of one matrix. ``kind`` is one of:

    - ``matrix``: a 2-d array;
    - ``strided``: a 3-d array whose first axis is the batch, 2-d if ``batch_stride`` is 0;
    - ``flat``: a 1-d array, or a stack of matrices in a PackedMatrix, which offsets index;
    - ``sequence``: a sequence of matrices;
    - ``offsets``: a 1-d int64 array with ``count`` elements;
    - ``packed``: a PackedMatrix, which may hold a batch;
    - ``vector``: a 1-d array passed by name, or a number if ``shape`` is (1,);
    - ``tensor``: an array with more than two axes, without gaps.

    The flag ``packed`` means that the operand, or each item of a sequence, is a PackedMatrix of
    ``format``; otherwise ``format`` is that of a row of bytes. ``quantized`` is the format of the
    operand's elements. ``chosen`` means that the user chose the name. ``leading`` is None if rows
    or columns have no gaps, ``batch_stride`` is None if matrices have no gaps. ``stored`` is the
    type in memory if it is not ``type``. ``within`` is a smaller type whose range must hold all
    values; "" means that any value is allowed.
    """

    name: str
    type: str
    kind: Kind
    role: Role
    shape: tuple[Size, ...]
    order: Literal["C", "F"]
    leading: Size | None
    slots: tuple[str, ...]
    leading_slot: str
    batch_stride: Size | None = None
    static_offsets: tuple[int, ...] | None = None
    count: Size | None = None
    packed: bool = False
    format: str = ""
    stored: str = ""
    chosen: bool = False
    quantized: Quantized | None = None
    within: str = ""

    @property
    def is_bytes(self) -> bool:
        """True if the array is a row of bytes in a packed format."""
        return bool(self.format) and not self.packed

    @property
    def element(self) -> str:
        """The type of the array's elements in memory."""
        return self.stored or self.type

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""
        return ITEMSIZE[self.type]

    @property
    def least(self) -> float | None:
        """The minimum magnitude of a scale that must be finite; None if values are not checked.

        The values of d_scale, which divides, are checked. So is any other scale that is one number;
        its minimum is 0.
        """
        if self.name == "d_scale":
            return LEAST_DIVISOR[self.type]
        one = self.name in QUANTITIES and self.name.endswith("_scale") and self.shape == (1,)
        return 0.0 if one and not self.slots else None

    @property
    def symbol(self) -> str:
        """The name in generated C. Names that users chose end in "_", for example ``bias_``."""
        return symbol_of(self.name) if self.chosen else self.name

    @property
    def leading_symbol(self) -> str:
        """The C parameter that holds the leading dimension, if that is known only at the call."""
        if isinstance(self.leading, Dim) and self.leading_slot == f"{self.name}.strides":
            return symbol_of(self.leading.name)
        return self.leading_slot

    @property
    def any_leading(self) -> str:
        """A hint for errors: how a call may pass an array with gaps between its rows."""
        if self.leading_slot == f"{self.name}.strides":
            of_out = "" if self.role == "in" else ": of(..., out=tw.Tensor(...))"
            return f'strides=(tw.dim("{self.name}_step"), 1) in its tw.Tensor{of_out}'
        return f'{self.leading_slot}=tw.dim("{self.leading_slot}") in the spec'

    @property
    def stride_slot(self) -> str:
        """The name of the C parameter that holds this array's batch stride."""
        return stride_slot(self.name)

    @property
    def offsets(self) -> str:
        """The name of the array of offsets into this operand, for example ``b_offsets`` for B and
        B2.
        """
        return f"{self.name[0]}_offsets"


class SizeParameter(NamedTuple):
    """A size that is known only at the call: the C parameter's name, the spec's dim, its least."""

    slot: str
    dim: Dim
    least: int = 0


class ScalarParameter(NamedTuple):
    """A number that a call passes by value, alpha or beta: its name and its type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of the C function in order: arrays, sizes, scalars.

    A pointer to scratch memory follows if the plan needs it. ``allocates`` is True if a call may
    leave out the output, which is then allocated. ``places`` are the names of arrays that a call
    passes by position, () for those of a product. Outputs in ``apart`` are never an input. Those in
    ``updates`` may only be the input that stands beside them.
    """

    arrays: tuple[ArrayParameter, ...]
    sizes: tuple[SizeParameter, ...]
    scalars: tuple[ScalarParameter, ...]
    allocates: bool
    places: tuple[str, ...] = ()
    apart: frozenset[str] = frozenset()
    updates: tuple[tuple[str, str], ...] = ()

    def array(self, name: str) -> ArrayParameter:
        """Return the array parameter with this name."""
        return next(a for a in self.arrays if a.name == name)

    @property
    def output(self) -> ArrayParameter:
        """The array that a call returns: C, D, or the result of a transposition."""
        return next(a for a in self.arrays if a.role != "in")

    def shared(self) -> Mapping[int, tuple[int, ...]]:
        """Return for each output the inputs that a call may pass as the same array, by index.

        For a product, it is C if there is a D of C's type and order. For a transposition, it is X
        if that is square. For a network of one loop, it is each input of the result's type and
        shape. For other networks, it is the input that ``nn.scatter`` updates.
        """
        keys = [self._memory(parameter) for parameter in self.arrays]
        names, only = [each.name for each in self.arrays], dict(self.updates)
        inputs = [i for i, each in enumerate(self.arrays) if each.role == "in" and keys[i]]
        return {
            output: tuple(
                i for i in inputs
                if keys[i] == keys[output] and only.get(each.name, names[i]) == names[i]
            )
            for output, each in enumerate(self.arrays) if each.role != "in"
        }  # fmt: skip

    def _memory(self, parameter: ArrayParameter) -> tuple[Any, ...] | None:
        """Return what an output and an input have in common that may be one array."""
        networks = self.places and parameter.kind in ("matrix", "vector", "tensor")
        others = parameter is self.output or (parameter.name in ("c", "x") and not parameter.chosen)
        known = networks if self.places else others
        if not known or parameter.is_bytes or parameter.name in self.apart:
            return None
        of_one = parameter.shape == (1,)  # a call may pass a number
        return None if of_one else (parameter.type, parameter.order, parameter.shape)

    @property
    def positional(self) -> tuple[str, ...]:
        """Names of the arrays that Python calls pass by position; others are keyword arguments."""
        if self.places:
            return self.places
        others = ("b", "x", "q", "scales", "zeros", "out")
        places = ("a", "b", "c") if self.arrays[0].name == "a" else others
        return tuple(a.name for a in self.arrays if a.name in places)


def parts_of(form: Quantized) -> dict[str, str]:
    """Return name and type of each array of an unpacked low-bit matrix: elements, scales, zeros."""
    found: dict[str, str] = {"q": form.stored.unpacked, "scales": SCALES[form.scale].given}
    if form.zeros:
        found["zeros"] = form.stored.unpacked if form.zeros == "zeros" else str(form.zero)
    return found


def has_formats(spec: Spec) -> bool:
    """Return True if a matrix of ``spec`` is packed in a format that depends on the target."""
    if isinstance(spec, Copy):
        return not (isinstance(spec.a, Matrix) and isinstance(spec.d, Matrix))
    if isinstance(spec, Gemm):
        return spec.is_packed or isinstance(spec.d, Packed)
    return packs(spec)


def packs(spec: Spec) -> bool:
    """Return True if the kernel of ``spec`` writes bytes in a packed format."""
    if isinstance(spec, Copy | Gemm) and spec.d is not None:
        return not isinstance(spec.d, Matrix)
    return isinstance(spec, Pack | PackQuantized | QuantizeRows)


def symbol_of(name: str) -> str:
    """Return the C identifier of an operand or output that the user called ``name``."""
    return f"{name}_"


class Parameters(NamedTuple):
    """The parameters of a kernel; ``allocates`` and ``places`` are those of ``Signature``.

    ``filled`` are the sizes of the call that cannot be 0.
    ``apart`` are the names of outputs that cannot be an input. ``updates`` has those of
    outputs that can be one input, and the input's name.
    """

    arrays: tuple[ArrayParameter, ...]
    allocates: bool
    scalars: tuple[ScalarParameter, ...] = ()
    places: tuple[str, ...] = ()
    filled: frozenset[Dim] = frozenset()
    apart: frozenset[str] = frozenset()
    updates: tuple[tuple[str, str], ...] = ()


#: A function of a spec, and of the formats of its packed operands by their names.
Parametrized = Callable[[Any, Mapping[str, Stored]], Parameters]
_PARAMETERS: dict[type[Spec], Parametrized] = {}


def parameters_of(kind: type[Spec]) -> Callable[[Parametrized], Parametrized]:
    """Register the decorated function, which returns the parameters of specs of class ``kind``."""

    def registered(function: Parametrized) -> Parametrized:
        _PARAMETERS[kind] = function
        return function

    return registered


def signature(spec: Spec, formats: Mapping[str, Stored] | None = None) -> Signature:
    """Return the signature of the kernel that computes ``spec``.

    ``formats`` maps the names of packed operands to their formats, which depend on the target.
    """
    found = _PARAMETERS[type(spec)](spec, formats or {})
    sizes = tuple(
        SizeParameter(slot, dim, int(dim in found.filled)) for slot, dim in spec.runtime_sizes()
    )
    arrays, allocates, scalars, places, _, apart, updates = found
    return Signature(arrays, sizes, scalars, allocates, places, apart, updates)


@parameters_of(Gemm)
def _of_gemm(spec: Gemm, formats: Mapping[str, Stored]) -> Parameters:
    arrays = _gemm_arrays(spec, formats)
    for name, form in formats.items():
        # Equal texts must be one object: the dispatcher compares the addresses of these strings.
        text = sys.intern(form.text)
        arrays = tuple(
            replace(a, format=text, stored=form.stored) if a.name == name else a for a in arrays
        )
    scalars = tuple(
        ScalarParameter(name, spec.factor_type)
        for name in ("alpha", "beta")
        if getattr(spec, name) == "scalar"
    )
    allocates = not spec.reads_output if spec.d is not None else spec.beta == 0
    allocates = allocates and not packs(spec)
    return Parameters(arrays, allocates, scalars)


def _matrix(spec: Gemm, name: str) -> ArrayParameter:
    batch = spec.batch if spec.batched(name) else None
    operand = getattr(spec, name)
    packed = isinstance(operand, Packed)
    return ArrayParameter(
        name=name,
        type=operand.type,
        kind="packed" if packed and not isinstance(batch, Addresses | Offsets) else _kind(batch),
        role=_role(spec, name),
        shape=tuple(getattr(spec, slot) for slot in SHAPES[name]),
        order=operand.order,
        leading=getattr(spec, f"ld{name[0]}"),
        slots=SHAPES[name],
        leading_slot=f"ld{name[0]}",
        batch_stride=spec.stride(name),
        static_offsets=getattr(batch, name[0]) if isinstance(batch, Offsets) else None,
        count=batch.count if batch is not None else None,
        packed=packed,
        quantized=operand.quantized if packed else None,
    )


def _kind(batch: Batch | None) -> Kind:
    match batch:
        case Strided():
            return "strided"
        case Offsets():
            return "flat"
        case Addresses():
            return "sequence"
        case _:
            return "matrix"


def _role(spec: Gemm, name: str) -> Role:
    if name != spec.output:
        return "in"
    reads = spec.reads_output if name == "d" else spec.beta != 0
    return "inout" if reads else "out"


def _gemm_arrays(spec: Gemm, formats: Mapping[str, Stored]) -> tuple[ArrayParameter, ...]:
    names = ["a", "b", *(["b2"] if spec.b2 is not None else [])]
    names += ["c", "d"] if spec.d is not None and spec.beta != 0 else [spec.output]
    arrays = [_matrix(spec, name) for name in names]
    if isinstance(spec.d, Packed):
        arrays[-1] = _packed_bytes("d", "out", formats.get("d"), (spec.n, spec.m), 1)
    if isinstance(spec.batch, Offsets):
        for name in "ab":
            if getattr(spec.batch, name) is None:
                arrays.append(_offsets(f"{name}_offsets", spec.batch.count))
    if spec.scales_of_blocks is not None:
        arrays.append(_block_scales(spec, spec.scales_of_blocks))
    arrays += [_quantity(spec, name) for name in QUANTITIES if isinstance(getattr(spec, name), str)]
    chosen = [_named(spec, operand) for operand in spec.named]
    chosen += [_reduced(spec, name) for name, _ in spec.outputs]
    return (*arrays, *sorted(chosen, key=lambda array: array.name))


def _quantity(spec: Gemm, name: str) -> ArrayParameter:
    """Return the parameter for a scale (f32 or f64) or a zero point (s32 or f64)."""
    per = getattr(spec, name)
    slots = {"scalar": (), "row": ("m",), "column": ("n",)}[per]
    shape = tuple(getattr(spec, slot) for slot in slots) or (1,)
    type_ = quantity_type(name, spec.type)
    within = spec.a.type if name == "a_zero" and spec.sums_blocks else ""
    return ArrayParameter(name, type_, "vector", "in", shape, "C", None, slots, "", within=within)


def _block_scales(spec: Gemm, block: int) -> ArrayParameter:
    """Return the parameter for A's scales: a matrix with one f32 for each block of each row."""
    assert isinstance(spec.k, int), "a packed B is of fixed size"
    shape = (spec.m, -(-spec.k // block))
    return ArrayParameter("a_scale", "f32", "matrix", "in", shape, "C", None, ("m", "blocks"), "")


def _named(spec: Gemm, operand: Operand) -> ArrayParameter:
    """Return the parameter for a ``tw.Operand``. With ``per="full"`` it has the spec's order."""
    slots = {None: (), "row": ("m",), "column": ("n",), "full": ("m", "n")}[operand.per]
    shape = tuple(getattr(spec, slot) for slot in slots) or (1,)
    kind: Kind = "matrix" if operand.per == "full" else "vector"
    order = spec.order if operand.per == "full" else "C"
    return ArrayParameter(
        operand.name, operand.type, kind, "in", shape, order, None, slots, "", chosen=True
    )


def _reduced(spec: Gemm, name: str) -> ArrayParameter:
    """Return the parameter for an output of ``Gemm(outputs=...)``: one f32 for each row of C."""
    return ArrayParameter(
        name, "f32", "vector", "out", (spec.m,), "C", None, ("m",), "", chosen=True
    )


def _offsets(name: str, count: Size) -> ArrayParameter:
    return ArrayParameter(name, "s64", "offsets", "in", (count,), "C", None, ("count",), "")


@parameters_of(Transpose)
def _of_transposition(spec: Transpose, formats: Mapping[str, Stored]) -> Parameters:
    x = ArrayParameter(
        "x",
        spec.type,
        "matrix",
        "in",
        (spec.rows, spec.cols),
        "C",
        spec.ldx,
        ("rows", "cols"),
        "ldx",
    )
    out = ArrayParameter(
        "out", spec.type, "matrix", "out", (spec.cols, spec.rows), "C", spec.ldout,
        ("cols", "rows"), "ldout",
    )  # fmt: skip
    return Parameters((x, out), allocates=True)


@parameters_of(Pack)
def _of_packing(spec: Pack, formats: Mapping[str, Stored]) -> Parameters:
    """Return the parameters of a packing kernel: B, and the packed matrices as rows of bytes."""
    batch = spec.batch
    b = ArrayParameter(
        "b", spec.source, "matrix" if batch is None else "strided", "in", (spec.k, spec.n),
        spec.order, spec.ldb, ("k", "n"), "ldb",
        batch_stride=None if batch is None else batch.b,
        count=None if batch is None else batch.count,
    )  # fmt: skip
    out = _packed_bytes("out", "out", formats.get("out"), (spec.k, spec.n), _count(spec))
    return Parameters((b, out), allocates=False)


def _count(spec: Pack) -> Size:
    return 1 if spec.batch is None else spec.batch.count


@parameters_of(Copy)
def _of_copy(spec: Copy, formats: Mapping[str, Stored]) -> Parameters:
    """Return the parameters of a copy: both matrices, a packed one as a row of bytes."""
    a, d = (_copied(spec, name, formats.get(name)) for name in "ad")
    return Parameters((a, d), allocates=isinstance(spec.d, Matrix))


def _copied(spec: Copy, name: str, form: Stored | None) -> ArrayParameter:
    layout, role = getattr(spec, name), "in" if name == "a" else "out"
    sizes = (spec.rows, spec.cols)
    if not isinstance(layout, Matrix):
        return _packed_bytes(name, role, form, sizes, 1)  # type: ignore[arg-type]
    type_, leading, slots = layout.type, getattr(spec, f"ld{name}"), ("rows", "cols")
    if layout.nibbles:  # an array of bytes
        type_, leading = "u8", None if leading is None else leading // 2
        rows, cols = sizes
        sizes = (rows, _half(cols)) if layout.order == "C" else (_half(rows), cols)
        slots = ("rows", "bytes") if layout.order == "C" else ("bytes", "cols")
    return ArrayParameter(
        name, type_, "matrix", role, sizes, layout.order,  # type: ignore[arg-type]
        leading, slots, f"ld{name}",
    )  # fmt: skip


def _half(size: Size) -> int:
    assert isinstance(size, int), "lines of nibbles have a fixed length"
    return -(-size // 2)


def _packed_bytes(
    name: str, role: Role, form: Stored | None, sizes: tuple[Size, Size], count: Size
) -> ArrayParameter:
    """Return the parameter for ``count`` packed matrices: bytes, one row for each matrix."""
    nbytes: Size = 0
    if form is not None and form.is_open:
        nbytes = PackedBytes("packed_bytes", form=form, k=sizes[0], n=sizes[1])
    elif form is not None:
        nbytes = form.nbytes
    shape: tuple[Size, ...] = (count, nbytes)
    return ArrayParameter(
        name, "u8", "matrix", role, shape, "C", None, ("count", "bytes"), f"ld{name}",
        format=form.text if form else "", stored=form.stored if form else "",
    )  # fmt: skip


@parameters_of(PackQuantized)
def _of_quantized_packing(spec: PackQuantized, formats: Mapping[str, Stored]) -> Parameters:
    """Return the parameters of a kernel that packs a low-bit B: B's arrays, then packed bytes."""
    arrays = [
        ArrayParameter(
            name, type_, "matrix", "in",
            (spec.k, spec.n) if name == "q" else spec.type.blocks(spec.k, spec.n),
            spec.order, None, ("k", "n"), "", quantized=spec.type,
        )
        for name, type_ in parts_of(spec.type).items()
    ]  # fmt: skip
    out = _packed_bytes("out", "out", formats.get("out"), (spec.k, spec.n), 1)
    return Parameters((*arrays, out), allocates=False)


@parameters_of(QuantizeRows)
def _of_quantized_rows(spec: QuantizeRows, formats: Mapping[str, Stored]) -> Parameters:
    """Return the parameters of a kernel that quantizes an A: A, then packed bytes."""
    a = ArrayParameter(
        "a", spec.a.type, "matrix", "in", (spec.m, spec.k), "C", spec.lda, ("m", "k"), "lda"
    )
    out = _packed_bytes("out", "out", formats.get("out"), (spec.k, spec.m), 1)
    return Parameters((a, out), allocates=False, places=("a", "out"))
