"""Check the options of a call of ``tw.matmul``, only once for each combination of options."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError, SpecError, described
from tilewright.runtime.machine.host import identify
from tilewright.spec.expression import as_expression

from .families import Options
from .routes import Routes

#: Maximum value of the option ``threads``.
_MOST_THREADS = 4096
#: Checked options with their tables of kernels, by the arguments of earlier calls. The key has the
#: epilogue's address, so the epilogue is kept alive.
_asked: dict[tuple[Any, ...], tuple[Options, Routes, Any]] = {}
#: Maximum number of entries in ``_asked``.
_ASKED = 256


@lru_cache(maxsize=256)
def routes_of(options: Options) -> Routes:
    """Return the table of kernels that C code uses for products with these options."""
    return Routes(options)


def asked_for(
    scaled: bool, reads: bool, epilogue: Any, threads: Any, deterministic: Any, target: Any
) -> tuple[Options, Routes]:
    """Return a call's checked options, and the table of kernels that C code uses for them.

    Raise ArgumentTypeError or ArgumentValueError for a wrong option, TargetError for an unknown
    target. An epilogue is found by its address, which is much faster than comparing expressions. So
    the epilogue is kept alive as long as its options are.
    """
    key = (
        scaled, reads, id(epilogue), threads, type(threads), deterministic, type(deterministic),
        target,
    )  # fmt: skip
    try:
        found = _asked.get(key)
    except TypeError:
        # An object that cannot be hashed is not a valid option.
        found = None
    if found is None:
        options = Options(
            scaled, reads, _epilogue(epilogue), _threads(threads), _flag(deterministic),
            check_target(target),
        )  # fmt: skip
        found = options, routes_of(options), epilogue
        if len(_asked) >= _ASKED:
            _asked.clear()
        _asked[key] = found
    return found[:2]


def _epilogue(given: Any) -> Any:
    if given is None:
        return None
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
