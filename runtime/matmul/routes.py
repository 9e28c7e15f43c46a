"""The table in which C finds the kernel of a product, so that Python need not decide again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import numpy as np

from tilewright.runtime.arrays.dtypes import loaded
from tilewright.runtime.call import dispatch
from tilewright.runtime.call.abi import DONE, LIMITS, OPERANDS, RESULTS
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.call.scalars import is_double
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.machine.host import usable_cpus
from tilewright.spec.expression import dst, operands_of, uses
from tilewright.spec.types import ITEMSIZE, is_integer

from .families import CUBES, Class, Family, Options

#: Names of the sizes of a product. C's struct tw_route refers to a size by its index here.
SIZES = ("m", "n", "k", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c", "count")
#: Number of 8-byte words in the table before the first route, and in each route.
_HEAD, _WORDS = 9 + 3 * OPERANDS + 4 * RESULTS, 2 + 9 + 8 + 6 + 2 + LIMITS["slots"]
#: Index of the first word of the table that describes the operands of an epilogue, and of the first
#: one that describes the types of results.
_OPERANDS, _RESULTS = 7, 8 + 3 * OPERANDS
#: Values of ``per`` of the operands that C code can read. The C constants TW_PER_ROW and so on are
#: the indices.
_PLACES = ("row", "column", None)
#: Number of arrays of a kernel that takes its output twice, as C and as D.
_TWICE = 4
#: Maximum number of routes in a table. Other products are then decided in Python at each call.
_MOST = 256


class Routes:
    """A table in which C code finds the kernel for given arrays. ``decide`` finds and runs it.

    - ``decide`` takes a tuple of arrays: a, b and out, then the operands of the epilogue in the
      order of ``names``. ``decide_scaled`` takes alpha and beta too.
    - ``make`` takes a and b, and returns a new result, or None if C code found no kernel.
    - ``decides`` is False if C code cannot handle calls with these options.
    - ``reads_out`` is the reason why the output is read, or None.
    - ``symmetric`` is True if half of the result may be computed and copied for a matrix times its
      own transpose. ``threads`` is the maximum number of threads for this.

    Routes are added and never changed, so a call may read the table while another call adds to it.
    """

    def __init__(self, options: Options) -> None:
        given = () if options.epilogue is None else operands_of(options.epilogue)
        self.names = tuple(operand.name for operand in given)
        self.reads_out = reads_out(options)
        self.decides = len(given) <= OPERANDS and all(x.per in _PLACES for x in given)
        self._words: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(
            _HEAD + _MOST * _WORDS, np.int64
        )
        self.symmetric = (
            options.epilogue is None and not options.reads and not options.deterministic
        )
        self.threads = options.threads or usable_cpus()
        self._words[:6] = (
            tuple.__basicsize__, id(PackedMatrix), *folds(options), self.symmetric, self.threads
        )  # fmt: skip
        for i, operand in enumerate(given if self.decides else ()):
            type_, start = operand.type, _OPERANDS + 3 * i
            place = _PLACES.index(operand.per)
            self._words[start : start + 3] = id(loaded(type_).type), ITEMSIZE[type_], place
        self._words[_OPERANDS - 1] = len(given) if self.decides else 0
        self._lock, self._known = Lock(), dict[tuple[Family, str], Kernel]()
        self._pairs: dict[tuple[int, int], Any] = {}
        self.decide: Callable[[tuple[Any, ...]], int] = self._load
        self.decide_scaled: Callable[[tuple[Any, ...], float, float], int] = self._load
        self.make: Callable[[Any, Any], Any] = self._load_and_make

    def _load(self, arrays: tuple[Any, ...], *scalars: float) -> int:
        """Load the dispatcher at the first call of ``decide`` or ``decide_scaled``, and run it."""
        found = dispatch.dispatcher()
        self.decide_scaled = found.matmul_scalars(self._words)
        self.make = found.matmul_new(self._words)
        self.decide = found.matmul(self._words)
        return self.decide_scaled(arrays, *scalars) if scalars else self.decide(arrays)

    def _load_and_make(self, a: Any, b: Any) -> Any:
        """Load the dispatcher at the first call of ``make``, and call it."""
        self._load((a, b, None))
        return self.make(a, b)

    def run(
        self, arrays: tuple[Any, ...], operands: Mapping[str, Any], scalars: tuple[Any, ...] = ()
    ) -> bool:
        """Let C code compute a product with an epilogue's operands, alpha and beta; True if it did.

        Otherwise nothing was computed.
        """
        if not self.decides or len(operands) != len(self.names):
            return False
        if operands:
            try:
                arrays += tuple([operands[name] for name in self.names])
            except KeyError:
                return False
        if not scalars:
            return self.decide(arrays) == DONE
        alpha, beta = scalars
        return (
            is_double(alpha) and is_double(beta) and self.decide_scaled(arrays, alpha, beta) == DONE
        )

    def makes(self, a: Any, b: Any, result: np.dtype[Any]) -> None:
        """Let C code allocate results of dtype ``result`` for arrays of dtypes ``a`` and ``b``."""
        with self._lock:
            count, pair = int(self._words[_RESULTS - 1]), (id(a.type), id(b.type))
            if pair in self._pairs or count == RESULTS:
                return
            self._pairs[pair] = a, b, result  # kept alive
            start = _RESULTS + 4 * count
            self._words[start : start + 4] = *pair, id(result), result.itemsize
            self._words[_RESULTS - 1] = count + 1

    def add(self, family: Family, kernel: Kernel) -> None:
        """Register ``kernel`` with C code for products of ``family``."""
        whole = any(is_integer(scalar.type) for scalar in kernel.signature.scalars)
        if kernel.emulated is not None or whole or not self.decides:
            return
        with self._lock:
            count = len(self._known)
            key = family, kernel.signature.array("b").format
            if key in self._known or count == _MOST:
                return
            # The table keeps the kernel's library loaded, and its packed format alive.
            self._known[key] = kernel
            start = _HEAD + count * _WORDS
            self._words[start : start + _WORDS] = _route(family, kernel, len(self.names))
            self._words[_HEAD - 1] = count + 1


def folds(options: Options) -> tuple[bool, bool]:
    """Return whether a stack of products may be computed as one product with more rows, or columns.

    The first result is for products that share one b, and become rows of one product. The second is
    for products that share one a, and become columns. Rows are not possible if an operand of the
    epilogue has an element for each row; the same holds for columns. They are not possible either
    in a deterministic product, whose order of sums depends on the number of columns.
    """
    given = () if options.epilogue is None else operands_of(options.epilogue)
    per = {operand.per for operand in given}
    rows, columns = not per & {"row", "full"}, not per & {"column", "full"}
    return rows, columns and not options.deterministic


def reads_out(options: Options) -> str | None:
    """Return the reason why a product reads its output, for messages; None if it does not."""
    if options.reads:
        return "beta is not 0"
    if options.epilogue is not None and uses(options.epilogue, dst):
        return "the epilogue uses tw.dst"
    return None


def _route(family: Family, kernel: Kernel, operands: int) -> list[int]:
    """Return the fields of struct tw_route for a kernel with ``operands`` arrays by name."""
    twice = len(kernel.signature.arrays) - operands == _TWICE
    slots = [_size_of(parameter.slot) for parameter in kernel.signature.sizes]
    elements = [id(loaded(type_).type) for type_ in family.types]
    if (b := kernel.signature.array("b")).packed:
        elements[1] = id(b.format)
    return [
        *kernel.functions,
        *elements,
        *(ITEMSIZE[type_] for type_ in family.types),
        *family.axes,
        *family.sizes.least, *family.sizes.most,
        _takes(family.sizes, packed=b.packed), *family.sizes.total,
        *_lies(family.sizes), family.sizes.above, twice,
        len(slots), *slots, *[0] * (LIMITS["slots"] - len(slots)),
    ]  # fmt: skip


def _takes(sizes: Class, *, packed: bool) -> int:
    """Return the kind of arrays that the kernel takes: TW_ONE, TW_STACK or TW_ANY."""
    return 1 if sizes.stacked else 2 if packed or sizes.shape in ("thin", "blocks") else 0


def _lies(sizes: Class) -> tuple[int, int]:
    """Return the layout of a stack (TW_ANYHOW, TW_TIGHT or TW_LOOSE), and a limit.

    The limit is the largest n for which products of n x n x n have another kernel, or 0.
    """
    lies = 1 if sizes.tiny else 2 if sizes.loose else 0
    others = (sizes.tiny or sizes.above > 0) and not sizes.cube
    return lies, CUBES if others else 0


def _size_of(slot: str) -> int:
    return SIZES.index("ldc" if slot == "ldd" else slot)
