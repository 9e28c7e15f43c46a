"""From what a caller writes to the signature's order: names, defaults, numbers, new outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError, SpecError
from tilewright.signature import ArrayParameter, Signature
from tilewright.sizes import Dim, Size

from .known import DTYPES, Known
from .layout import learn


class Arranger:
    """Puts a call's arguments in one signature's order; makes the output if it is left out.

    ``out`` names the output; where the output is an operand (C), ``out`` and its own name mean
    the same, but ``out`` promises that nothing of it is read: beta must be 0.
    """

    __slots__ = ("_inputs", "_names", "_new", "_places", "_plain", "_scalars", "signature")

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._names = [p.name for p in signature.arrays]
        self._places = [p.name for p in signature.arrays if p.kind != "offsets"]
        self._scalars = [p.name for p in signature.scalars]
        self._plain = self._names == self._places and not self._scalars
        # The number of arrays after which a missing output may be made, or none.
        self._inputs = len(self._places) - 1 if signature.allocates else -1
        self._new = _empty(signature)

    def __call__(
        self, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[float, ...]]:
        """Arrays and scalars in the signature's order; ArgumentError if names do not fit."""
        if self._plain and len(positional) == self._inputs:
            if not named and self._new is not None:
                return (*positional, np.empty(*self._new)), ()
            if len(named) == 1 and named.get("out") is not None:
                return (*positional, named["out"]), ()
        return self._by_name(positional, named)

    def _by_name(
        self, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[float, ...]]:
        scalars = self._scalars
        if (
            len(positional) == len(self._names) == len(self._places)
            and named.keys() == set(scalars)
            and positional[-1] is not None
        ):
            return positional, tuple([_number(name, named[name]) for name in scalars])
        return self._in_any_order(positional, named)

    def _in_any_order(
        self, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[float, ...]]:
        output = self.signature.output.name
        if len(positional) > len(self._places):
            raise ArgumentTypeError(
                "too many arguments",
                got=f"{len(positional)} by position",
                expected=f"{len(self._places)}: {', '.join(self._places)}",
            )
        given = dict(zip(self._places, positional, strict=False))
        for name, value in named.items():
            if name == "out" and output != "out":
                name = _output_name(self.signature, given, named, value)
                if value is None:
                    continue
            elif name in given:
                raise ArgumentTypeError(f"{name} is given twice, by position and by name")
            given[name] = value
        if given.get(output, 0) is None:
            del given[output]
        scalars = _scalars(self.signature, given)
        return _arrays(self.signature, given), scalars


def _empty(
    signature: Signature,
) -> tuple[tuple[int, ...], np.dtype[Any], Literal["C", "F"]] | None:
    """What numpy.empty takes for a new output, if that is known without the inputs."""
    output = signature.output
    shape = tuple(size for size in output.shape if isinstance(size, int))
    if output.leading is not None or len(shape) < len(output.shape):
        return None
    return shape, DTYPES[output.type], output.order


def _output_name(
    signature: Signature, given: Mapping[str, Any], named: Mapping[str, Any], value: Any
) -> str:
    name = signature.output.name
    other = given.get(name, named.get(name))
    if value is not None and not signature.allocates:
        raise ArgumentTypeError(
            f"out= is for kernels that do not read {name}; this one has beta other than 0",
            hint=f"pass the array as {name}: it is read and updated",
        )
    if value is not None and other is not None and other is not value:
        raise ArgumentTypeError(
            f"{name} and out are two arrays", expected="one of them: they are the same operand here"
        )
    return name


def _arrays(signature: Signature, given: dict[str, Any]) -> tuple[Any, ...]:
    expected = [p.name for p in signature.arrays]
    output = signature.output.name
    for name in given:
        if name not in expected:
            _unknown(signature, name)
    missing = [name for name in expected if name not in given and name != output]
    if output not in given and not signature.allocates:
        missing.append(output)
    if missing:
        raise ArgumentTypeError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            got=f"{', '.join(given) or 'nothing'}",
            expected=_usage(signature),
        )
    if output not in given:
        given[output] = allocate(signature, given)
    return tuple(given[name] for name in expected)


def _usage(signature: Signature) -> str:
    by_position = [p.name for p in signature.arrays if p.kind != "offsets"]
    by_name = [p.name for p in signature.arrays if p.kind == "offsets"]
    by_name += [p.name for p in signature.scalars]
    return f"kernel({', '.join(by_position + [f'{name}=...' for name in by_name])})"


def _unknown(signature: Signature, name: str) -> None:
    hints = {
        "alpha": 'tw.Gemm(..., alpha="scalar") takes it at the call',
        "beta": 'tw.Gemm(..., beta="scalar") takes it at the call',
        "a_offsets": "batch=tw.Offsets(count) takes them at the call",
        "b_offsets": "batch=tw.Offsets(count) takes them at the call",
    }
    raise ArgumentTypeError(
        f"this kernel has no argument {name!r}", expected=_usage(signature), hint=hints.get(name)
    )


def _scalars(signature: Signature, given: dict[str, Any]) -> tuple[float, ...]:
    """Take the scalars out of ``given``, as C doubles."""
    scalars = []
    for parameter in signature.scalars:
        if parameter.name not in given:
            raise ArgumentTypeError(
                f"{parameter.name} is missing",
                expected=_usage(signature),
                hint="its value is passed by name, as a Python number",
            )
        scalars.append(_number(parameter.name, given.pop(parameter.name)))
    return tuple(scalars)


def _number(name: str, value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ArgumentValueError(f"{name} is too large for a double", got=value) from None
    raise ArgumentTypeError(
        f"{name} must be a Python number", got=f"{type(value).__name__}: {value!r:.60}"
    )


# --- outputs made here -------------------------------------------------------------------------


def allocate(signature: Signature, given: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """A new output for the inputs in ``given``, its elements not set."""
    output = signature.output
    if (fixed := _empty(signature)) is not None:
        return np.empty(*fixed)
    inputs = [p for p in signature.arrays if p is not output]
    known = Known()
    learn(inputs, [given[p.name] for p in inputs], known)
    rows, cols = (_known_size(size, output, known) for size in output.shape)
    line, lines = (cols, rows) if output.order == "C" else (rows, cols)
    leading = line
    if output.leading is not None:
        leading = _leading_of(output.leading, line, known)
    whole = np.empty((lines, leading), DTYPES[output.type])[:, :line]
    return whole if output.order == "C" else whole.T


def _known_size(size: Size, output: ArrayParameter, known: Known) -> int:
    if known.has(size):
        return known.value(size)
    raise ArgumentValueError(
        f"{output.name} cannot be made here: only its own shape tells {known.say(size)}",
        hint=f"pass {output.name}, an array of the shape you want",
    )


def _leading_of(leading: Size, line: int, known: Known) -> int:
    if known.has(leading):
        return max(line, known.value(leading))
    step = leading.multiple_of if isinstance(leading, Dim) else 1
    return -(-max(line, 1) // step) * step


# --- signatures that no call could satisfy -----------------------------------------------------


def check_readable(signature: Signature) -> None:
    """Refuse a spec with a dim that no argument tells: flat operands have no shape to read."""
    told: set[Dim] = set()
    for parameter in signature.arrays:
        if parameter.kind == "flat":
            continue
        sizes = [*parameter.shape, parameter.leading, parameter.batch_stride]
        if parameter.kind in ("strided", "sequence"):
            sizes.append(parameter.count)
        told.update(size for size in sizes if isinstance(size, Dim))
    for size in signature.sizes:
        if size.dim not in told:
            raise SpecError(
                f"no argument tells dim {size.dim.name!r}, given as {size.slot}",
                got="operands of batch=tw.Offsets are flat: they have neither shape nor strides",
                expected="a dim that C or the offsets tell, or an int",
            )
