"""What is computed: sizes, types, layouts and the batch. Says nothing of how or where."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from .errors import SpecError

Order = Literal["C", "F"]
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

#: Bytes per element of every type this version computes with.
ITEMSIZE = {"f32": 4, "f64": 8}
_NUMPY_NAMES = {"float32": "f32", "float64": "f64"}
MAX_SIZE = 2**62


def type_name(type_: Any) -> str:
    """The tilewright name of a type given as a name, a numpy dtype or a numpy scalar type."""
    name = type_ if isinstance(type_, str) else getattr(type_, "name", None)
    if name is None:
        name = getattr(type_, "__name__", None)
    name = _NUMPY_NAMES.get(str(name), name)
    if name not in ITEMSIZE:
        raise SpecError(
            "unknown element type", got=type_, expected=f"one of {', '.join(ITEMSIZE)}, or numpy's"
        )
    return str(name)


def check_identifier(name: object, what: str) -> str:
    """``name`` if it can stand in C and Python as it is."""
    if not isinstance(name, str) or not _IDENTIFIER.match(name) or keyword.iskeyword(name):
        raise SpecError(
            f"the name of {what} must be a C identifier",
            got=name,
            expected="letters, digits and underscores, no digit first",
        )
    return name


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def call_text(
    name: str, given: Sequence[object], options: Mapping[str, tuple[object, object]]
) -> str:
    """The Python call that makes a value; ``options`` maps keywords to (value, default)."""
    said = [repr(value) for value in given]
    said += [f"{key}={value!r}" for key, (value, default) in options.items() if value != default]
    return f"{name}({', '.join(said)})"


@dataclass(frozen=True, slots=True, repr=False)
class Dim:
    """A size known only at the call, read from the arrays' shapes and strides."""

    name: str
    multiple_of: int = 1
    max: int | None = None

    def __post_init__(self) -> None:
        check_identifier(self.name, "a dim")
        if not _whole(self.multiple_of) or self.multiple_of < 1:
            raise SpecError(
                f"dim {self.name!r}: multiple_of must be a positive int", got=self.multiple_of
            )
        if self.max is not None and (not _whole(self.max) or self.max < 0):
            raise SpecError(f"dim {self.name!r}: max must be an int, 0 or more", got=self.max)
        if self.max is not None and self.max < self.multiple_of:
            raise SpecError(
                f"dim {self.name!r}: no positive size is both a multiple of {self.multiple_of} "
                f"and at most {self.max}",
                hint="raise max or lower multiple_of",
            )

    def __repr__(self) -> str:
        options = {"multiple_of": (self.multiple_of, 1), "max": (self.max, None)}
        return call_text("dim", [self.name], options)


def dim(name: str, multiple_of: int = 1, max: int | None = None) -> Dim:
    """A size known only when the kernel is called; ``max`` is inclusive."""
    return Dim(name, multiple_of, max)


Size = int | Dim


def check_size(value: object, what: str, *, least: int = 0) -> Size:
    """``value`` if it is a dim or an int of at least ``least``; numpy integers become ints."""
    if isinstance(value, Dim):
        return value
    if not _whole(value) and hasattr(value, "__index__") and not isinstance(value, bool):
        value = value.__index__()
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(f"{what} must be an int or tw.dim(...)", got=value)
    if not least <= value <= MAX_SIZE:
        raise SpecError(f"{what} is out of range", got=value, expected=f"{least} to 2**62")
    return value


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand whose order differs from the spec's."""

    type: str
    order: Order = "C"

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", type_name(self.type))
        _check_order(self.order)


def _check_order(order: object) -> None:
    if order not in ("C", "F"):
        raise SpecError("order must be 'C' (rows contiguous) or 'F' (columns)", got=order)


@dataclass(frozen=True, slots=True)
class Strided:
    """Batch element i lies i strides (in elements) behind the first; 0: one matrix for all.

    ``None`` is one tight matrix. In numpy the batch is the first axis.
    """

    count: Size
    a: Size | None = None
    b: Size | None = None

    def __post_init__(self) -> None:
        check_size(self.count, "batch count")
        for name in "ab":
            value = getattr(self, name)
            if value is not None:
                check_size(value, f"batch stride of {name}")


@dataclass(frozen=True, slots=True, init=False)
class Offsets:
    """Batch element i lies at ``a[i]`` and ``b[i]`` elements of the flat operands.

    A sequence is static; ``None`` is passed at the call as ``a_offsets=`` or ``b_offsets=``.
    """

    count: Size
    a: tuple[int, ...] | None
    b: tuple[int, ...] | None

    def __init__(
        self, count: Size, a: Sequence[int] | None = None, b: Sequence[int] | None = None
    ) -> None:
        object.__setattr__(self, "count", check_size(count, "batch count"))
        for name, offsets in (("a", a), ("b", b)):
            static = None if offsets is None else self._static(offsets, name)
            object.__setattr__(self, name, static)

    def _static(self, offsets: Sequence[int], name: str) -> tuple[int, ...]:
        static = tuple(int(offset) for offset in offsets)
        if not isinstance(self.count, int) or len(static) != self.count:
            raise SpecError(
                f"static offsets of {name} need a fixed count equal to their number",
                got=f"{len(static)} offsets, count {self.count!r}",
                hint="give count=len(offsets), or pass the offsets at the call",
            )
        if any(offset < 0 for offset in static):
            raise SpecError(f"offsets of {name} must be 0 or more", got=min(static))
        return static


@dataclass(frozen=True, slots=True)
class Addresses:
    """Two sequences of arrays stand in place of a and b; in C ``const A *const *a``."""

    count: Size

    def __post_init__(self) -> None:
        check_size(self.count, "batch count")


Batch = Strided | Offsets | Addresses
Factor = float | Literal["scalar"]
#: The shape of each operand in terms of the sizes.
SHAPES = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Gemm:
    """``C = alpha * sum_i A_i B_i + beta * C``: A is m x k, B k x n, C m x n.

    Sizes and leading dimensions are ints or ``tw.dim``; leading dimensions count elements and
    default to tight. ``order`` is numpy's and the default of every operand; ``tw.Matrix`` sets
    one operand's own. ``alpha`` and ``beta`` are numbers, or ``"scalar"`` to pass them at the
    call. With ``beta=0`` C is not read. ``batch`` reduces over pairs of matrices.
    """

    m: Size
    n: Size
    k: Size
    a: Matrix
    b: Matrix
    c: Matrix
    alpha: Factor
    beta: Factor
    batch: Batch | None
    lda: Size | None
    ldb: Size | None
    ldc: Size | None

    def __init__(
        self,
        m: Size,
        n: Size,
        k: Size,
        *,
        a: Any = "f32",
        b: Any = None,
        c: Any = None,
        order: Order = "C",
        alpha: Factor = 1,
        beta: Factor = 0,
        batch: Batch | None = None,
        lda: Size | None = None,
        ldb: Size | None = None,
        ldc: Size | None = None,
    ) -> None:
        _check_order(order)
        first = a if isinstance(a, Matrix) else Matrix(a, order)

        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name, size in (("m", m), ("n", n), ("k", k)):
            put(name, check_size(size, name))
        put("a", first)
        for name, given in (("b", b), ("c", c)):
            default = Matrix(first.type, order) if given is None else None
            put(name, default or (given if isinstance(given, Matrix) else Matrix(given, order)))
        put("alpha", _factor(alpha, "alpha"))
        put("beta", _factor(beta, "beta"))
        if batch is not None and not isinstance(batch, Batch):
            raise SpecError(
                "batch must be tw.Strided, tw.Offsets or tw.Addresses",
                got=batch,
                hint="Strided(16)",
            )
        put("batch", batch)
        for name, ld in (("lda", lda), ("ldb", ldb), ("ldc", ldc)):
            put(name, None if ld is None else check_size(ld, name, least=1))
        self._check()

    def __repr__(self) -> str:
        order = self.c.order
        operands: dict[str, tuple[object, object]] = {
            name: (getattr(self, name), Matrix(self.type, order)) for name in "abc"
        }
        if self.a == Matrix(self.type, order):
            operands["a"] = (self.type, "f32")
        options: dict[str, tuple[object, object]] = {
            "order": (order, "C"),
            "alpha": (_short(self.alpha), 1),
            "beta": (_short(self.beta), 0),
            **{name: (getattr(self, name), None) for name in ("batch", "lda", "ldb", "ldc")},
        }
        return call_text("Gemm", [self.m, self.n, self.k], operands | options)

    def _check(self) -> None:
        if len({self.a.type, self.b.type, self.c.type}) > 1:
            raise SpecError(
                "A, B and C must have one type",
                got=f"a={self.a.type}, b={self.b.type}, c={self.c.type}",
                expected="all f32 or all f64",
            )
        for name in "abc":
            least, ld = self.contiguous_size(name), getattr(self, f"ld{name}")
            if isinstance(ld, int) and isinstance(least, int) and ld < least:
                raise SpecError(
                    f"ld{name} is smaller than a contiguous line of {name.upper()}",
                    got=ld,
                    expected=f"{least} or more",
                )
        self._check_dims()

    def _check_dims(self) -> None:
        known: dict[str, Dim] = {}
        for _, size in self.runtime_sizes():
            if known.setdefault(size.name, size) != size:
                raise SpecError(
                    f"dim {size.name!r} is declared twice with different properties",
                    got=f"{known[size.name]} and {size}",
                    hint="make one tw.dim and use it in both places",
                )

    def contiguous_size(self, name: str) -> Size:
        """The length of a contiguous line of operand ``name``: its tight leading dimension."""
        rows, cols = SHAPES[name]
        size: Size = getattr(self, cols if getattr(self, name).order == "C" else rows)
        return size

    def leading(self, name: str) -> Size:
        """The leading dimension of operand ``name``, tight ones resolved."""
        ld: Size | None = getattr(self, f"ld{name}")
        return self.contiguous_size(name) if ld is None else ld

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Every size known only at the call, by its C parameter's name, in C order."""
        named: list[tuple[str, Any]] = [
            (slot, getattr(self, slot)) for slot in ("m", "n", "k", "lda", "ldb", "ldc")
        ]
        if isinstance(self.batch, Strided):
            named += [("stride_a", self.batch.a), ("stride_b", self.batch.b)]
        if self.batch is not None:
            named.append(("count", self.batch.count))
        return tuple((slot, size) for slot, size in named if isinstance(size, Dim))

    @property
    def type(self) -> str:
        """The type of the accumulators."""
        return self.c.type


def _short(factor: Factor) -> Factor:
    """2 rather than 2.0."""
    return int(factor) if isinstance(factor, float) and factor.is_integer() else factor


def _factor(value: Any, name: str) -> Factor:
    if value == "scalar":
        return "scalar"
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise SpecError(f"{name} must be a number or 'scalar'", got=value)
    return float(value)


@dataclass(frozen=True, slots=True)
class Transpose:
    """``out[j, i] = x[i, j]``: x is rows x cols, out cols x rows, both C order.

    ``ldx`` and ``ldout`` count elements and default to tight. A square transposition may be
    done in place (``out is x``).
    """

    rows: Size
    cols: Size
    type: str = "f32"
    ldx: Size | None = None
    ldout: Size | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", type_name(self.type))
        check_size(self.rows, "rows")
        check_size(self.cols, "cols")
        for name, line in (("ldx", self.cols), ("ldout", self.rows)):
            ld = getattr(self, name)
            if ld is None:
                continue
            check_size(ld, name, least=1)
            if isinstance(ld, int) and isinstance(line, int) and ld < line:
                raise SpecError(f"{name} is smaller than a row", got=ld, expected=f"{line} or more")

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Every size known only at the call, by its C parameter's name, in C order."""
        slots = ("rows", "cols", "ldx", "ldout")
        return tuple((s, getattr(self, s)) for s in slots if isinstance(getattr(self, s), Dim))


Spec = Gemm | Transpose


def canonical(value: Any) -> str:
    """A text that is equal exactly when specs, schedules or their parts are equal."""
    if hasattr(value, "__dataclass_fields__"):
        inner = ",".join(f"{f.name}={canonical(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({inner})"
    if isinstance(value, tuple):
        return f"({','.join(map(canonical, value))})"
    return value.hex() if isinstance(value, float) else repr(value)
