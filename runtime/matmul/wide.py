"""Choose the types in which a product is computed: float64 or int64 if ``out`` has such a type."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.runtime.arrays.dtypes import accepts, loaded, title
from tilewright.runtime.arrays.elements import INTEGERS, decode, encode
from tilewright.runtime.arrays.views import as_array
from tilewright.spec.expression import Expression, Operand, is_integer_additions, operands_of
from tilewright.spec.expression.checks import has_functions
from tilewright.spec.expression.nodes import of_rows, rows
from tilewright.spec.types import TYPES, TypeName, accumulator, is_integer, type_name

from .families import Options
from .routes import reads_out

#: Types of ``out`` with more digits than f32 and s32 have.
WIDE = ("f64", "s64")
#: Greatest magnitude up to which f64 holds every whole number.
EXACT = 1 << 53


class Computed(NamedTuple):
    """The types in which A and B are multiplied, and the type that the kernel writes (``held``).

    If ``out`` has another type, the kernel's output is converted to it.
    """

    a: TypeName
    b: TypeName
    held: str


def computed_as(
    types: tuple[str, str],
    k: int,
    written: str,
    options: Options,
    *,
    packed: bool = False,
) -> Computed:
    """Return the types in which a product with an ``out`` of type ``written`` is computed.

    ``types`` are those of A and B. If A or B is f64, or ``out`` is narrower than 64 bits, they are
    kept. Otherwise ``out`` is f64 or s64. If it is s64, integers without an epilogue are summed in
    s64. All other products are computed in f64. This is not possible if B is ``packed``, or if f64
    lacks a function of the epilogue: then sums are in f32 or s32. Raise ArgumentTypeError if
    digits could be lost thereby.
    """
    a, b = map(type_name, types)
    sums, epilogue = accumulator(a, b), options.epilogue
    if sums == "f64":
        return Computed(a, b, "f64")
    if written not in WIDE:
        return Computed(a, b, written)
    if not packed:
        if epilogue is None and sums == "s32" and written == "s64":
            return Computed(a, b, "s64")
        if epilogue is None or has_functions(epilogue, "f64"):
            return Computed("f64", "f64", "f64")
    _check_narrow(types, k, written, options, "b is packed" if packed else f"{epilogue}")
    adds = epilogue is None or (sums == "s32" and is_integer_additions(epilogue))
    return Computed(a, b, sums if adds else "f32")


def _check_narrow(
    types: tuple[str, str], k: int, written: str, options: Options, reason: str
) -> None:
    """Raise ArgumentTypeError if sums in 32 bits could lose digits that ``out`` would hold."""
    whole = is_integer(types[0])
    most = k * _largest(types[0]) * _largest(types[1]) if whole else 0
    if (reads := reads_out(options)) is not None:
        lost = f"{reads}"
    elif most > INTEGERS["s32"][1]:
        lost = f"sums of {k} products of {types[0]} and {types[1]}, which reach {most}"
    elif whole and options.scaled:
        lost = "sums of integers times alpha"
    else:
        return
    name = TYPES[written].numpy
    raise ArgumentTypeError(
        f"this product is computed in 32 bits, where an out of {name} may lose digits",
        got=f"{lost}; in 32 bits because of: {reason}",
        expected="b unpacked, and functions that float64 has: arithmetic, comparisons, sqrt",
        hint=f"an out of {'int32' if whole else 'float32'}, converted afterwards",
    )


def _largest(type_: str) -> int:
    low, high = INTEGERS[type_]
    return max(-low, high)


def check_read(out: np.ndarray[Any, Any], held: str, options: Options) -> None:
    """Raise ArgumentValueError if ``out`` is read in f64 and f64 cannot represent an element."""
    if held != "f64" or out.dtype != np.int64 or reads_out(options) is None:
        return
    if out.size and (int(out.max()) > EXACT or int(out.min()) < -EXACT):
        raise ArgumentValueError(
            "out is read in float64, which does not hold all of its elements",
            got=f"elements from {out.min()} to {out.max()}",
            expected=f"-2**53 to 2**53 ({EXACT})",
            hint="integers in a and b, and no epilogue: then int64 is computed in int64",
        )


def with_f64_operands(options: Options, named: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Return ``options`` whose epilogue takes all its operands in f64, and these operands.

    Raise ArgumentTypeError if an operand's array is not of the type that the operand declares.
    """
    if options.epilogue is None:
        return options, named
    declared = {x.name: x for x in operands_of(options.epilogue) if x.type != "f64"}
    if not declared:
        return options, named
    given = {
        name: _in_f64_array(x, declared[name]) if name in declared else x
        for name, x in named.items()
    }
    return options._replace(epilogue=_of_f64(options.epilogue)), given


@lru_cache(maxsize=256)
def _of_f64(epilogue: Expression) -> Expression:
    return of_rows(
        Operand(row.name, "f64", row.per) if isinstance(row, Operand) else row
        for row in rows(epilogue)
    )


def _in_f64_array(given: Any, operand: Operand) -> Any:
    """Return an operand's array converted to f64.

    Anything but an array is returned unchanged; the kernel checks it. Raise ArgumentTypeError if
    the array's type is not that of the operand.
    """
    array = as_array(given, operand.name)
    if not isinstance(array, np.ndarray):
        return given
    if not accepts(operand.type, array.dtype):
        raise ArgumentTypeError(
            f"{operand.name} has the wrong dtype",
            got=str(array.dtype),
            expected=title(operand.type),
            hint=f"{operand.name}.astype(np.{loaded(operand.type)}), or another type in tw.Operand",
        )
    return encode(decode(array, operand.type), "f64")
