"""Define ``@tw.postop``: the decorated function can be called in epilogues, as ``tw.relu`` can."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from types import FunctionType
from typing import Any, ParamSpec, overload

from tilewright.errors import ArgumentTypeError, SpecError, SpecTypeError
from tilewright.keywords import spelled

from ..names import check_name
from .nodes import Call, Expression, as_expression, parameter
from .postop import REGISTRY, Lane, PostOp, Within

P = ParamSpec("P")
#: Names that a post-op cannot have, because they mean something else when an expression is printed.
_TAKEN = ("acc", "acc2", "dst", "Operand")
_NUMBERS = (float, int, "float", "int")


@overload
def postop(function: Callable[P, object], /) -> Callable[P, Expression]: ...
@overload
def postop(
    *,
    lower: Callable[..., Lane] | None = None,
    reference: Callable[..., Any] | None = None,
    ulps: float | None = None,
    absolute: float = 0.0,
    f64: bool = False,
    samples: Iterable[Sequence[float]] = ((),),
) -> Callable[[Callable[P, object]], Callable[P, Expression]]: ...
@spelled(SpecTypeError)
def postop(
    function: Any = None,
    /,
    *,
    lower: Callable[..., Lane] | None = None,
    reference: Callable[..., Any] | None = None,
    ulps: float | None = None,
    absolute: float = 0.0,
    f64: bool = False,
    samples: Iterable[Sequence[float]] = ((),),
) -> Any:
    """Make a function of epilogues from a Python function, with the same name.

    The function takes operands, then parameters: numbers known when the kernel is made, annotated
    ``float`` or with a default. It returns an expression of its operands::

        @tw.postop(reference=lambda x, limit: limit * np.tanh(x / limit), ulps=4, absolute=1e-6)
        def softcap(x, limit=30.0):
            return limit * tw.tanh(x / limit)

        tw.Gemm(64, 48, 64, epilogue=softcap(tw.acc, 20))

    Parameters
    ----------
    function : function
        The definition. With ``lower`` it may return None, and raise SpecError for wrong parameters.
    lower : callable, optional
        ``lower(b, *operands, *parameters)`` writes the kernel's program of elementary operations,
        such as ``b("fma", x, y, z)``, in f32. By default kernels compute the returned expression.
    reference : callable, optional
        The same function on float64 arrays, with which ``kernel.verify()`` compares results. It has
        one operand and must be smooth between neighbouring sums. By default the error bound follows
        from each rounding of the returned expression.
    ulps, absolute : float, optional
        Allowed error: units in the last place of the result, plus an absolute error.
    f64 : bool
        True if ``lower`` can write f64 too.
    samples : iterable of sequences
        Parameters that tests try.

    Returns
    -------
    callable
        The function of epilogues.

    Raises
    ------
    SpecError
        The name is taken by tilewright or by another module's post-op, or an argument is wrong.

    Notes
    -----
    A definition replaces an earlier definition of the same function, but existing expressions keep
    the earlier one. The key of a kernel in the cache contains the program of elementary operations,
    not the Python function, its reference or its error bound.

    Examples
    --------
    >>> @tw.postop(reference=lambda x: np.maximum(x, 0) ** 2, ulps=2)
    ... def squared_relu(x):
    ...     return tw.square(tw.relu(x))
    >>> kernel = tw.compile(tw.Gemm(1, 3, 1, epilogue=squared_relu(tw.acc)))
    >>> kernel(np.float32([[1]]), np.float32([[-2, 0, 3]]))
    array([[0., 0., 9.]], dtype=float32)
    >>> kernel.verify().cases
    3
    """
    if lower is not None and not callable(lower):
        raise SpecError("lower writes a program: it is a function", got=lower)

    def decorate(body: Any) -> Any:
        bound = _bound(body, reference, ulps, absolute)
        options = {"lower": lower, "reference": bound, "f64": f64 or lower is None}
        return _made(_entry(body, own=True, samples=_tried(samples), **options))

    return decorate if function is None else decorate(function)


def builtin(**options: Any) -> Callable[[Callable[P, object]], Callable[P, Expression]]:
    """Make one of tilewright's own functions; ``options`` are fields of its ``PostOp`` entry."""

    def decorate(body: Callable[P, object]) -> Callable[P, Expression]:
        return _made(_entry(body, **options))  # type: ignore[no-any-return]

    return decorate


def apply(entry: PostOp, args: Iterable[Expression]) -> Call:
    """Return the node that applies ``entry`` to operands and parameters, which were checked."""
    return Call(entry.name, tuple(args), entry if entry.own else None)


# -- checks of a definition, when @tw.postop is applied -----------------------------------------


def _bound(body: Any, reference: Any, ulps: Any, absolute: Any) -> Within | None:
    """Return the reference together with its error bound; None if the user gives no reference."""
    if reference is None:
        if ulps is not None or absolute:
            raise SpecError("ulps and absolute bound the distance from a reference: give one")
        return None
    _check_bound(body, reference, ulps, absolute)
    return Within(reference, float(ulps or 0), float(absolute))


def _check_bound(body: Any, reference: Any, ulps: Any, absolute: Any) -> None:
    name = getattr(body, "__name__", body)
    if not callable(reference):
        raise SpecError(f"the reference of {name} is no function", got=reference)
    if ulps is None and not absolute:
        raise SpecError(
            f"the reference of {name} has no bound",
            expected="ulps=4, units in the last place, or absolute=1e-6, or both",
        )
    for what, value in (("ulps", ulps or 0), ("absolute", absolute)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf"):
            raise SpecError(f"{what} of {name} must be a finite number, 0 or more", got=value)


def _tried(samples: Any) -> tuple[tuple[float, ...], ...]:
    """Return the argument ``samples``, with which a post-op is tried, as tuples of floats."""
    try:
        return tuple(tuple(map(float, one)) for one in samples)
    except (TypeError, ValueError):
        raise SpecError(
            "samples are the parameters of several uses",
            got=samples,
            expected="a tuple of numbers for each use, such as ((1.0,), (2.0,))",
        ) from None


def _entry(body: Any, **options: Any) -> PostOp:
    """Register the function ``body`` as a post-op, and return its entry."""
    if not isinstance(body, FunctionType):
        raise SpecError("a post-op is defined by a Python function", got=body)
    name, (operands, parameters) = body.__name__, _signature(body)
    entry = PostOp(name, operands, parameters, body, **options)
    if entry.own:
        _check_own(entry)
    REGISTRY[name] = entry
    return entry


def _signature(body: FunctionType) -> tuple[tuple[str, ...], tuple[tuple[str, float | None], ...]]:
    """Return the operand names of ``body``, then (name, default) of each of its parameters."""
    code, defaults = body.__code__, body.__defaults__ or ()
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_kwonlyargcount:
        raise SpecError(
            f"post-op {body.__name__!r} has arguments of another kind",
            expected="operands and parameters by position, as in def f(x, alpha=1.0)",
        )
    names = code.co_varnames[: code.co_argcount]
    given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    numbers = [n for n in names if n in given or body.__annotations__.get(n) in _NUMBERS]
    operands = tuple(name for name in names if name not in numbers)
    if not operands or names[: len(operands)] != operands:
        raise SpecError(
            f"post-op {body.__name__!r} has no operand, or one behind a parameter",
            got=", ".join(names) or "no arguments",
            expected="operands first, then numbers, which have a default or are annotated float",
        )
    for name, default in given.items():
        parameter(body.__name__, name, default, finite=False)
    return operands, tuple((name, given.get(name)) for name in numbers)


def _check_own(entry: PostOp) -> None:
    """Raise SpecError if a user's post-op has a name that is taken, or a wrong reference or sample.

    A name is taken by tilewright, or by a post-op that is defined elsewhere.
    """
    name = check_name(entry.name, "a post-op")
    known = REGISTRY.get(name)
    taken = name in _TAKEN or (known is not None and not known.own)
    if not taken and known is not None:
        taken = _place(known) != _place(entry)
    if taken:
        other = "tilewright" if known is None or not known.own else ".".join(_place(known))
        raise SpecError(
            f"the name {name!r} is taken by another post-op",
            got=f"that of {other}, and {'.'.join(_place(entry))}",
            hint="another name for the function",
        )
    reference = entry.reference
    if reference is not None and len(entry.operands) > 1:
        raise SpecError(
            f"post-op {name!r} has {len(entry.operands)} operands and a reference",
            hint="leave it out: the roundings of what the function returns are followed",
        )
    for values in entry.samples:
        _check_sample(entry, values)


def _place(entry: PostOp) -> tuple[str, str]:
    return entry.home, entry.body.__qualname__


def _check_sample(entry: PostOp, values: tuple[float, ...]) -> None:
    """Raise SpecError unless the post-op accepts parameters ``values``; () means the defaults."""
    if len(values) > len(entry.parameters):
        raise SpecError(
            f"a sample of {entry.name} has too many parameters",
            got=values,
            expected=f"at most {len(entry.parameters)}",
        )
    if any(default is None for _, default in entry.parameters[len(values) :]):
        return  # without values for all parameters, the post-op cannot be tried
    operands = [Placeholder(name) for name in entry.operands]
    _use(entry, (*operands, *values), {})


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Placeholder(Expression):
    """A stand-in for an operand, with which a new post-op is tried."""

    name: str

    def __repr__(self) -> str:
        return self.name


# -- calls of a function that @tw.postop made ---------------------------------------------------


@cache
def _parameters_of(body: FunctionType) -> inspect.Signature:
    return inspect.signature(body)


def _use(entry: PostOp, given: tuple[Any, ...], named: dict[str, Any]) -> Call:
    """Return the node for a call of a post-op; SpecError if the post-op refuses its arguments."""
    parameters = _parameters_of(entry.body)
    try:
        bound = parameters.bind(*given, **named)
    except TypeError as error:
        usual = ", ".join(["tw.acc", *entry.operands[1:]])
        raise ArgumentTypeError(
            f"{entry.name} is a function of expressions, and was called with other arguments",
            got=str(error),
            expected=f"{entry.name}({', '.join(parameters.parameters)})",
            hint=f"{'' if entry.own else 'tw.'}{entry.name}({usual})",
        ) from None
    bound.apply_defaults()
    count, values = len(entry.operands), bound.args
    operands = tuple(map(as_expression, values[:count]))
    numbers = tuple(
        parameter(entry.name, name, value, finite=entry.finite)
        for (name, _), value in zip(entry.parameters, values[count:], strict=True)
    )
    try:
        meaning = entry.meaning(operands, tuple(number.value for number in numbers))
    except RecursionError:
        raise SpecError(f"post-op {entry.name!r} is defined by itself") from None
    if meaning is None and entry.lower is not None:
        said = entry.reference is not None or not entry.own
    else:
        said = meaning is not None
    if not said:
        raise SpecError(
            f"post-op {entry.name!r} says not what it computes",
            got=f"it returns {meaning!r}",
            expected="an expression of its operands; or lower= for kernels and reference= for "
            "what is right",
        )
    if meaning is not None:
        as_expression(meaning)
    return apply(entry, (*operands, *numbers))


def _made(entry: PostOp) -> Any:
    """Return the function that users call to apply the post-op ``entry``."""

    @wraps(entry.body)
    def function(*operands: Any, **named: Any) -> Expression:
        return _use(entry, operands, named)

    return function
