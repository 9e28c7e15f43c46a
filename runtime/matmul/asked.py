"""Check the options of a call of ``tw.matmul``, only once for each combination of options."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError, SpecError, described
from tilewright.runtime.call.arguments import instead_of
from tilewright.runtime.machine.host import identify
from tilewright.spec.expression import Expression, as_expression, operands_of
from tilewright.spec.sums import Math
from tilewright.spec.sums import check_math as check_rounding

from .families import Options
from .numbers import has_numbers, is_lifted, lifted, sums_of
from .routes import Routes

Array = np.ndarray[Any, Any]

#: Maximum value of the option ``threads``.
_MOST_THREADS = 4096
#: Checked options, by the arguments of a call.
#:
#: - The key ends with the type of the sums if the epilogue has numbers. The key without this type
#:   then has an entry too, whose first item is ``_BY_TYPE``.
#: - The value has the epilogue, the options, their routes in C, and the epilogue's numbers.
_asked: dict[tuple[Any, ...], tuple[Any, Options, Routes, dict[str, Array]]] = {}
_BY_TYPE = object()
#: Number of parts of a key, not counting the type of the sums.
_PLAIN = 9
#: Maximum number of entries in ``_asked``.
_ASKED = 256


@lru_cache(maxsize=256)
def routes_of(options: Options) -> Routes:
    """Return the table of kernels that C code uses for products with these options."""
    return Routes(options)


def asked_for(
    scaled: bool, reads: bool, epilogue: Any, threads: Any, deterministic: Any, target: Any,
    math: Any = None, arrays: tuple[Any, Any, Any] = (None, None, None),
) -> tuple[Options, Routes, dict[str, Array]]:  # fmt: skip
    """Return a call's checked options, the table of kernels that C code uses for them, and numbers.

    In the epilogue of the options, operands replace the numbers. The third result has the numbers
    by the names of these operands. Their type depends on ``arrays``: a, b and out. An out of None
    has the type of a; a b of None is packed.

    An epilogue is looked up by its address, which is much faster than comparing expressions.
    Therefore the epilogue is kept alive as long as its options are.

    Raise ArgumentTypeError or ArgumentValueError for a wrong option, TargetError for an unknown
    target.
    """
    key: tuple[Any, ...] = (
        scaled, reads, id(epilogue), threads, type(threads), deterministic, type(deterministic),
        target, math,
    )  # fmt: skip
    try:
        found = _asked.get(key)
        if found is not None and found[0] is _BY_TYPE:
            key = *key, sums_of(*arrays)
            found = _asked.get(key)
    except TypeError:
        # An object that cannot be hashed is not a valid option.
        found = None
    if found is not None:
        return found[1:]
    if len(_asked) >= _ASKED:
        _asked.clear()
    numbers: dict[str, Array] = {}
    if epilogue is None:
        options = Options(
            scaled, reads, None, _threads(threads), _flag(deterministic), check_target(target),
            check_math(math),
        )  # fmt: skip
    else:
        # Calls with many epilogues, for example in a loop, check the same other options only once.
        options = asked_for(scaled, reads, None, threads, deterministic, target, math)[0]
        expression, sums = _epilogue(epilogue), sums_of(*arrays)
        made, numbers = lifted(expression, sums)
        options = options._replace(epilogue=made)
        if has_numbers(expression):
            key = key[:_PLAIN]
            _asked[key] = _BY_TYPE, options, routes_of(options), numbers
            key = *key, sums
    found = epilogue, options, routes_of(options), numbers
    _asked[key] = found
    return found[1:]


#: Descriptions of the values that operands of an epilogue take, by ``per``, for messages.
_SHAPES = {None: "a number", "row": "array of shape (m,)", "column": "array of shape (n,)",
           "full": "array of shape (m, n)"}  # fmt: skip


def check_operands(options: Options, named: Iterable[str]) -> None:
    """Raise ArgumentTypeError unless a call names all operands of its epilogue, and no others."""
    operands = () if options.epilogue is None else operands_of(options.epilogue)
    given = set(named) - {"alpha", "beta"}
    missing = [operand for operand in operands if operand.name not in given]
    unknown = sorted(given - {operand.name for operand in operands})
    own = [operand for operand in operands if not is_lifted(operand.name)]
    usage = "".join(f", {operand.name}={_SHAPES[operand.per]}" for operand in own)
    usage = f"tw.matmul(a, b{', epilogue=...' if operands else ''}{usage})"
    if unknown:
        raise ArgumentTypeError(
            f"this product has no argument {unknown[0]!r}",
            expected=usage,
            hint=instead_of(unknown[0]),
        )
    if missing:
        names = " and ".join(operand.name for operand in missing)
        raise ArgumentTypeError(
            f"{names} {'is' if len(missing) == 1 else 'are'} missing",
            got=f"an epilogue that uses {names}, and no array or number for it",
            expected=usage,
        )


def _epilogue(given: Any) -> Expression:
    try:
        return as_expression(given)
    except SpecError as error:
        raise ArgumentTypeError(
            "epilogue must be an expression",
            got=error.got or type(given).__name__,
            expected="what is made of tw.acc, tw.dst, tw.Operand and numbers, or None",
            hint=error.hint,
        ) from None


def _threads(given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise ArgumentTypeError(
            "threads must be an int or None",
            got=described(given),
            expected=f"1 to {_MOST_THREADS}, or None",
        )
    if not 1 <= given <= _MOST_THREADS:
        raise ArgumentValueError(
            "threads is how many there are at most",
            got=given,
            expected=f"1 to {_MOST_THREADS}, or None",
        )
    return int(given)


def _flag(given: Any) -> bool:
    if not isinstance(given, bool | np.bool_):
        raise ArgumentTypeError(
            "deterministic must be True or False", got=described(given), expected="True or False"
        )
    return bool(given)


def check_math(given: Any) -> Math:
    """Return the argument ``math``, which kernels check with the types; ArgumentTypeError if wrong.

    The types of a product decide whether it has operands of f32.
    """
    try:
        return check_rounding(given, "f32", "f32", quantized=False)
    except SpecError as error:
        raise ArgumentTypeError(
            "math must be a type to which float32 is rounded",
            got=error.got,
            expected=error.expected,
            hint="leave math out",
        ) from None


def check_target(given: Any) -> str:
    """Return the name of a target, as given: "host" stays "host".

    Raise ArgumentTypeError unless the name is a string, TargetError for an unknown name.
    """
    if not isinstance(given, str):
        raise ArgumentTypeError(
            "target must be the name of a target",
            got=described(given),
            expected="a string",
            hint='"host", or a name that tw.targets() lists',
        )
    identify(given)
    return given
