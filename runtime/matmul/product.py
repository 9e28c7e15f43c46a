"""``matmul``: products of two matrices, or of stacks, of any size, order and strides."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any, get_overloads, overload

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.keywords import refusal
from tilewright.runtime.arrays.dtypes import loaded, preferred
from tilewright.runtime.arrays.elements import decode, encode
from tilewright.runtime.arrays.kinds import empty, finished, is_tensor, maker
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.call import dispatch
from tilewright.runtime.call.scalars import check_number
from tilewright.runtime.call.tensor_types import learn
from tilewright.runtime.machine.host import identify
from tilewright.spec.expression import Expression, operands_of
from tilewright.spec.sums import Math
from tilewright.spec.types import ITEMSIZE, accumulator

from .across import as_it_lies, copied
from .arrays import checked_out, contiguous_axis, factors, refuse_overlap, type_of
from .asked import asked_for, check_operands, routes_of
from .constant import PackedB, product_with
from .empty import computed as empty_product
from .families import (
    Axes,
    Class,
    Family,
    Options,
    call_product,
    class_of,
    kernel_of,
    stack_class_of,
)
from .numbers import joined
from .routes import Routes, folds
from .stacks import broadcast, is_tight, shape_of, stack_shape
from .symmetric import half_of, is_symmetric, mirror
from .wide import check_read, computed_as, with_f64_operands

if TYPE_CHECKING:
    from tilewright.runtime.kernel import Kernel

Array = np.ndarray[Any, Any]

#: Default values of alpha, beta and target. A call with these objects takes the shortest path.
_ONE, _ZERO, _HOST = 1, 0, "host"
#: Default of a and b: the argument was not passed.
_LACKS: Any = object()
#: Maximum size of an array in bytes.
MAX_BYTES = (1 << 63) - 1
#: Maximum size in bytes of each part in which an operand is copied if no kernel can read its
#: strides.
COPIED = 8 << 20


@overload
def matmul(
    a: Array,
    b: Array | PackedB,
    out: Array | None = None,
    *,
    alpha: float = 1,
    beta: float = 0,
    epilogue: Expression | None = None,
    threads: int | None = None,
    deterministic: bool = False,
    target: str = "host",
    math: Math = None,
    **operands: Any,
) -> Array: ...
@overload
def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    alpha: float = 1,
    beta: float = 0,
    epilogue: Expression | None = None,
    threads: int | None = None,
    deterministic: bool = False,
    target: str = "host",
    math: Math = None,
    **operands: Any,
) -> Any: ...
def matmul(
    a: Any = _LACKS,
    b: Any = _LACKS,
    out: Any = None,
    *_more: Any,
    alpha: float = 1,
    beta: float = 0,
    epilogue: Expression | None = None,
    threads: int | None = None,
    deterministic: bool = False,
    target: str = "host",
    math: Math = None,
    **operands: Any,
) -> Any:
    """Multiply matrices, vectors or stacks: ``out = epilogue(alpha * (a @ b) + beta * out)``.

    Parameters
    ----------
    a : array
        (..., m, k), or (k,) for a row. A numpy array, a PyTorch tensor on the CPU, or any object
        with DLPack or the buffer protocol. Any order and strides.
    b : array or PackedB
        (..., k, n), or (k,) for a column; or the result of ``tw.pack``. Axes before the matrices
        are broadcast as in numpy.
    out : array, optional
        (..., m, n); the result is written here and returned. It may have any other type, to which
        the result is converted, and must not share memory with a or b.
    alpha, beta : float
        Factors. If beta is 0, ``out`` is not read.
    epilogue : Expression, optional
        An expression of ``tw.acc``; its operands are passed by name. Other values of the numbers in
        it need no new kernel.
    threads : int, optional
        Maximum number of threads; by default up to one for each CPU that the process may use, if
        threads pay.
    deterministic : bool
        If True, the bits of a row of the result do not depend on the number of rows, products of
        the stack, or threads.
    target : str
        The target's name.
    math : "bf16" or ("bf16", "always"), optional
        "bf16" rounds operands of float32 to 8 bits while they are packed, as ``tw.Gemm`` does. It
        is a TargetError where this does not pay; ("bf16", "always") rounds on every target.
    **operands
        Operands of the epilogue.

    Returns
    -------
    array
        ``out``, or a new array of the same kind as ``a`` (for example a tensor). Its type is
        float32 for floating point, int32 for integers, and float64 if a or b is float64.

    Raises
    ------
    ArgumentError
        Shapes do not fit, a or b shares memory with ``out``, or a type cannot be multiplied.
    SpecError
        The epilogue cannot be computed, or ``math`` is given and no operand is float32.
    TargetError
        The target multiplies bf16 no faster, and ``math="bf16"`` is given.

    Notes
    -----
    A kernel is compiled at the first product with new types, orders or shape class (for example a
    few rows). Other sizes of the same class need no new kernel. Operands without contiguous rows or
    columns are copied, 8 MiB at a time. For a large matrix times its own transpose, half of the
    result is computed, and copied to the other half.

    The type of ``out`` decides in which type the product is computed:

    - float64: float64, also for integers;
    - int64: int64 for integers without an epilogue, else float64;
    - others: float32 for floating point. Integers are summed in int32, modulo 2**32; alpha and beta
      must then be whole numbers, unless ``out`` is floating point.

    With ``math``, each element's error is at most ``(2**-7 + 2**-16 + (k + 4) * 2**-23) * (|a| @
    |b|)``, before alpha, beta and the epilogue. Without it, float32 is never rounded.

    A packed b, and functions that float64 lacks, are computed in 32 bits. If a float64 or int64
    ``out`` could then lose digits, this is an ArgumentTypeError.

    Examples
    --------
    >>> a, b = np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)
    >>> tw.matmul(a, b)
    array([[4., 4., 4.], [4., 4., 4.]], dtype=float32)
    >>> out = np.empty((2, 3), np.float16)
    >>> tw.matmul(a, b, out, alpha=0.5, epilogue=tw.acc + 1) is out
    True
    >>> out
    array([[3., 3., 3.], [3., 3., 3.]], dtype=float16)
    """
    if _more:
        raise refusal(matmul, (a, b, out, *_more), {}, ArgumentTypeError)
    if (
        alpha is _ONE and beta is _ZERO and epilogue is None and threads is None
        and deterministic is False and target is _HOST and math is None and not operands
        and type(b) is not PackedB
    ):  # fmt: skip
        if out is None:
            made = _usual.make(a, b)
            if made is not None:
                return made
            out = _new(a, b)
        if out is not None and _usual.decide((a, b, out)) == 0:
            return out
        return _general(a, b, out, {}, _USUAL)
    reads = bool(check_number("beta", beta) != 0)
    scaled = bool(check_number("alpha", alpha) != 1) or reads
    factor, packed = (b.matrix, True) if type(b) is PackedB else (b, False)
    options, routes, numbers = asked_for(
        scaled,
        reads,
        epilogue,
        threads,
        deterministic,
        target,
        math,
        (a, None if packed else b, out),
    )
    if numbers:
        operands = joined(operands, numbers) if operands else numbers
    if out is None and not (scaled or operands or packed or routes.names or routes.reads_out):
        made = routes.make(a, b)
        if made is not None:
            return made
    if not packed or _serves(b, a, options):
        made = _new(a, b) if out is None and routes.reads_out is None else out
        scalars = (alpha, beta) if scaled else ()
        if made is not None and routes.run((a, factor, made), operands, scalars):
            return made
    named = {"alpha": alpha, "beta": beta, **operands} if scaled else operands
    return _general(a, b, out, named, options)


setattr(matmul, "__signature__", signature(get_overloads(matmul)[-1]))  # noqa: B010


# --- the usual call ----------------------------------------------------------------------------


#: Options of a call with default arguments, and the table of kernels that C code uses for it.
_USUAL, _usual, _ = asked_for(False, False, None, None, False, "host")
Maker = Callable[[tuple[int, ...]], Any]
#: Functions that allocate a result, by the type of a, then by its dtype and b's elements.
_makers: dict[type, dict[tuple[Any, Any], Maker]] = {}


# The target is found at import, which makes the first product faster.
identify("host")
dispatch.prepare()


def _new(a: Any, b: Any) -> Any:
    """Return a new output for two arrays that fit, None if Python must check them."""
    make = _maker_of(a, b)
    try:
        shape = None if make is None else _new_shape(a, b)
        return None if make is None or shape is None else make(shape)
    except (ValueError, RuntimeError):
        # The result is too large, or a tensor is nested and has no shape.
        return None


def _maker_of(a: Any, b: Any) -> Maker | None:
    """Return the function that allocates results for arrays like these, None if unknown."""
    known = _makers.get(type(a))
    return None if known is None else known.get((a.dtype, _held_by(b)))


def _held_by(b: Any) -> Any:
    """Return a key for b's elements; for a packed b, A's type is part of it."""
    return (b.a, b.factor) if type(b) is PackedB else getattr(b, "dtype", None)


def _serves(b: PackedB, a: Any, options: Options) -> bool:
    """Return True if C code may multiply ``a`` with a packed b because it did so before."""
    packed_for = b.quantize is None and (options.target, options.math) == (b.target, b.math)
    return packed_for and _maker_of(a, b) is not None


def _new_shape(a: Any, b: Any) -> tuple[int, ...] | None:
    """Return the shape of the result of ``a`` and ``b``, None if the stacks do not fit."""
    if b.ndim == 2:
        if a.ndim == 2:
            return a.shape[0], b.shape[1]
        return (*a.shape[:-1], b.shape[1]) if a.ndim else None
    if b.ndim == 1:
        return a.shape[:-1] if a.ndim else None
    if not a.ndim or not b.ndim:
        return None
    if a.ndim < 3:
        return (*b.shape[:-2], *a.shape[:-1], b.shape[-1])
    stack = stack_shape(a.shape[:-2], b.shape[:-2])
    return None if stack is None else (*stack, a.shape[-2], b.shape[-1])


def _remember(a: Any, b: Any, type_: str, options: Options) -> None:
    """Register the function that allocates results of type ``type_`` for arrays like these."""
    if type(a) is type(b) is np.ndarray:
        routes_of(options).makes(a.dtype, b.dtype, preferred(type_))
    if all(type(x) in (np.ndarray, PackedB) or is_tensor(x) for x in (a, b)):
        _makers.setdefault(type(a), {})[a.dtype, _held_by(b)] = maker(a, type_)


# --- any call ----------------------------------------------------------------------------------


def _general(a: Any, b: Any, out: Any, named: dict[str, Any], options: Options) -> Any:
    """Compute a call for which C code found no kernel, because of its arrays or options."""
    given = a, b, out
    if a is _LACKS or b is _LACKS:
        passed = {name: x for name, x in (("a", a), ("b", b)) if x is not _LACKS}
        raise refusal(matmul, (), passed, ArgumentTypeError)
    if _in_copies(given, named, options):
        return out
    a, b, written = (
        x if isinstance(x, PackedB) else as_array(x, name)
        for x, name in zip(given, ("a", "b", "out"), strict=True)
    )
    result = _product(given, a, b, written, named, options)
    for x in given:
        if type(x) is not np.ndarray:
            learn(x)
    return finished(given[0], result) if out is None else out


def _in_copies(given: tuple[Any, ...], named: dict[str, Any], options: Options) -> bool:
    """Let C code compute a product of misaligned arrays in aligned copies; True if it did."""
    if any(type(x) is not np.ndarray or x.nbytes > COPIED for x in given):
        return False
    (a, b, out), aligned = given, [x.flags.aligned for x in given]
    if all(aligned) or not (out.flags.writeable and out.flags.forc):
        return False
    if np.may_share_memory(a, out) or np.may_share_memory(b, out):
        return False
    routes = routes_of(options)
    copies = [
        x if fits else np.array(x, order="K") for x, fits in zip((a, b), aligned[:2], strict=True)
    ]
    held = out
    if not aligned[2]:
        held = np.empty_like(out) if routes.reads_out is None else np.array(out, order="K")
    if not routes.run((*copies, held), *_apart(named, options)):
        return False
    if held is not out:
        out[...] = held
    return True


def _product(
    given: tuple[Any, ...], a: Any, b: Any, out: Any, named: dict[str, Any], options: Options
) -> Any:
    """Compute a product of numpy arrays, which are views of the caller's arrays ``given``."""
    check_operands(options, named)
    packed = b if isinstance(b, PackedB) else None
    types: tuple[str, str] = type_of(a, "a"), b.factor if packed else type_of(b, "b")
    if packed is None:
        types = factors(*types)
    else:
        packed.check(types[0], options)
    if packed is not None and options.deterministic:
        column = packed.unpacked_column()
        packed, b = (packed, b) if column is None else (None, column)
    if packed is not None:
        # Only the shape of this placeholder is read.
        b = np.broadcast_to(np.empty((), np.int8), packed.shape)
    shape = shape_of(a, b)
    made, sums, reason = out, accumulator(*types), routes_of(options).reads_out
    if out is None:
        if reason is not None:
            raise ArgumentTypeError(
                f"{reason}, so out is read", got="no out", expected="an array", hint="out=c"
            )
        made = _made(given[0], shape, sums)
        out = as_array(made, "out")
    _remember(given[0], given[1], sums, options)
    result = checked_out(out, shape)
    for name, array in (("a", a), ("b", b)):
        if np.shares_memory(array, result):
            refuse_overlap(name, array, result)
    written = type_of(result, "out")
    held = computed_as(types, a.shape[-1], written, options, packed=packed is not None)
    check_read(result, held.held, options)
    if held.held == "f64":
        options, named = with_f64_operands(options, named)
    nothing = 0 in (result.size, a.shape[-1])
    if nothing and empty_product(held, written, options, named, (a, b, result)):
        return made
    one = _One((held.a, held.b, held.held), written, options, named, packed)
    if packed is None:
        a, b = (_of_type(x, type_) for x, type_ in zip((a, b), held, strict=False))
    rows, columns = folds(options)
    for x, y, z in broadcast(a, b, result, rows=rows, columns=columns):
        one.stack(x, y, z)
    return made


def _made(like: Any, shape: tuple[int, ...], type_: str) -> Any:
    """Return a new output; ArgumentValueError if it has more bytes than can be addressed."""
    if prod(shape) * ITEMSIZE[type_] > MAX_BYTES:
        raise ArgumentValueError(
            "matmul: the result is too large", got=shape, expected=f"at most {MAX_BYTES} bytes"
        )
    return empty(like, shape, type_)


def _of_type(x: Array, type_: str) -> Array:
    """Return ``x`` converted to ``type_``, unless the copy would be large."""
    if x.dtype == loaded(type_) or x.size * ITEMSIZE[type_] > COPIED:
        return x
    return x.astype(loaded(type_))


def _apart(named: dict[str, Any], options: Options) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return the operands of an epilogue, then alpha and beta if the call has them."""
    if not options.scaled:
        return named, ()
    operands = {name: x for name, x in named.items() if name not in ("alpha", "beta")}
    return operands, (named["alpha"], named["beta"])


class _One:
    """Computes the products of one call, all with the same types and options.

    ``types`` are the types of A, B and the output of the kernels. If the caller's ``out`` has
    another type, ``written``, the output is converted to it. ``named`` are the arguments that
    kernels take by name; if arrays are among them, operands are not copied part by part. If
    ``packed`` is given, it is multiplied instead of each b.
    """

    def __init__(
        self,
        types: tuple[str, str, str],
        written: str,
        options: Options,
        named: dict[str, Any],
        packed: PackedB | None,
    ) -> None:
        self.types, self.options, self.named = types, options, named
        self.written, self.reads = written, routes_of(options).reads_out is not None
        self.operands, self.scalars = _apart(named, options)
        self.packed = packed
        self.compute: Callable[[Array, Array, Array], None] = (
            self._compute
            if packed is None
            else product_with(packed, types, options, named, routes_of(options))
        )

    def stack(self, a: Array, b: Array, out: Array) -> None:
        """Compute one product of matrices, or a stack of products."""
        if a.ndim == 2:
            self.product(a, b, out)
            return
        if not out.shape[0] or self._routed(a, b, out):
            return
        for i in range(out.shape[0]):
            self.product(a[i], b[i], out[i])

    def _routed(self, a: Array, b: Array, out: Array) -> bool:
        """Let C code compute a stack, after registering the kernel with it; True if it did."""
        if self.packed or not all(self._takes(x, i) for i, x in enumerate((a, b, out))):
            return False
        axis = contiguous_axis(out)
        assert axis is not None
        family = self._family(a[0], b[0], out[0], self._stack_class(a, b, out, axis))
        kernel = kernel_of(family)
        table = self._told(family, kernel, (a[0], b[0], out[0]))
        if table is not None and table.run((a, b, out), self.operands, self.scalars):
            return True
        if not family.sizes.stacked:
            return False
        call_product(kernel, a, b, out, self.named)
        return True

    def _stack_class(self, a: Array, b: Array, out: Array, axis: int) -> Class | None:
        """Return the class of a stack, None if its products are computed one by one.

        ``axis`` is the contiguous axis of C.
        """
        steps = [(x.strides[0], x.itemsize) for x in (a, b, out)]
        if _has_operand(self.options, "full") or any(s < 0 or s % item for s, item in steps):
            return None
        tight = all(is_tight(x) for x in (a, b, out))
        sizes = *a.shape[1:], b.shape[2]
        m, k, n = sizes
        return stack_class_of(m, n, k, len(out), self.types, self.options, axis, tight=tight)

    def _family(self, a: Array, b: Array, out: Array, sizes: Class | None = None) -> Family:
        (m, k), n = a.shape, b.shape[1]
        axes: Axes = tuple(contiguous_axis(x) for x in (a, b, out))  # type: ignore[assignment]
        sizes = sizes or class_of(m, n, k, self.types, self.options, axes)
        return Family(self.types, axes, sizes, self.options)

    def product(self, a: Array, b: Array, out: Array) -> None:
        """Compute one product; operands that no kernel can read are copied part by part."""
        if not self._takes(out, 2):
            for part in self._parts(out, 0):
                copied = self._held(out[part])
                self.product(a[part], b, copied)
                self._write(copied, out[part])
        elif not self._takes(a, 0):
            for part in self._parts(a, 0):
                copied = np.array(a[part], loaded(self.types[0]), order="K")
                self.product(copied, b, out[part])
        elif not self.packed and not self._takes(b, 1):
            for part in self._parts(b, 1):
                copied = np.array(b[:, part], loaded(self.types[1]), order="K")
                self.product(a, copied, out[:, part])
        else:
            self.compute(a, b, out)

    def _takes(self, x: Array, i: int) -> bool:
        """Return True if kernels can use an array (a, b or out) in place."""
        return _readable(x) and x.dtype == loaded(self.types[i])

    def _held(self, out: Array) -> Array:
        """Return a new array that a kernel writes in place of ``out``.

        If the kernel reads its output, the array holds the elements of ``out``.
        """
        held, written = self.types[2], self.written
        if not self.reads:
            return np.empty_like(out, loaded(held))
        if held == written:
            return np.array(out, order="K")
        return encode(decode(out, written), held)

    def _write(self, held: Array, out: Array) -> None:
        same = self.types[2] == self.written
        out[...] = held if same else encode(decode(held, self.types[2]), self.written)

    def _compute(self, a: Array, b: Array, out: Array) -> None:
        if self._half(a, b):
            self._halves(a, b, out)
            mirror(out)
            return
        turned = copied(a, b, out, reads=self.options.reads) if self._copies else None
        self._compute_as_it_lies(a, b, out if turned is None else turned)
        if turned is not None:
            out[...] = turned

    def _half(self, a: Array, b: Array) -> int:
        """Return the rows of the first half if ``b`` is ``a.T``; 0 for other products."""
        table = routes_of(self.options)
        half = half_of(table.threads, *a.shape) if table.symmetric else 0
        return half if half and is_symmetric(a, b) else 0

    def _halves(self, a: Array, b: Array, out: Array) -> None:
        """Compute the elements of ``a`` times its own transpose on and below the diagonal."""
        half = self._half(a, b)
        if not half:
            self._compute(a, b, out)
            return
        self._halves(a[:half], b[:, :half], out[:half, :half])
        self._compute(a[half:], b[:, :half], out[half:, :half])
        self._halves(a[half:], b[:, half:], out[half:, half:])

    @property
    def _copies(self) -> bool:
        """True if products may be written to a copy of C in another order."""
        return self.options.epilogue is None and not self.options.deterministic

    def _compute_as_it_lies(self, a: Array, b: Array, out: Array) -> None:
        family = self._family(a, b, out)
        kernel = kernel_of(family)
        call_product(kernel, a, b, out, self.named)
        self._told(family, kernel, (a, b, out))

    def _told(
        self, family: Family, kernel: Kernel, one: tuple[Array, Array, Array]
    ) -> Routes | None:
        """Register the kernel with C code for products like ``one``; None if C code cannot
        call it.
        """
        table, sizes = routes_of(self.options), family.sizes
        narrow = as_it_lies(sizes, *one) if self._copies and not sizes.stacked else sizes
        if narrow is None:
            return None
        table.add(family._replace(sizes=narrow), kernel)
        return table

    def _parts(self, x: Array, axis: int) -> list[slice]:
        """Return slices along ``axis`` of about ``COPIED`` bytes each."""
        length = x.shape[axis]
        step = max(1, COPIED // max(1, x.shape[1 - axis] * x.itemsize))
        step = max(1, length) if _has_operand(self.options, "row", "column", "full") else step
        return [slice(i, min(i + step, length)) for i in range(0, length, step)]


def _has_operand(options: Options, *kinds: str) -> bool:
    """Return True if the epilogue has an operand whose ``per`` is one of ``kinds``."""
    if not isinstance(options.epilogue, Expression):
        return False
    return any(operand.per in kinds for operand in operands_of(options.epilogue))


def _readable(x: Array) -> bool:
    """Return True if kernels can use an array in place."""
    return contiguous_axis(x) is not None and x.flags.aligned
