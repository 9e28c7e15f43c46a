"""Put the arguments of a call into the signature's order: names, defaults, numbers, new outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError, SpecError
from tilewright.runtime.arrays.dtypes import FOREIGN, preferred
from tilewright.runtime.arrays.kinds import empty
from tilewright.runtime.arrays.memory import new_array
from tilewright.spec.signature import ArrayParameter, ScalarParameter, Signature
from tilewright.spec.sizes import Dim, Size

from .abi import LIMITS
from .scalars import factor, is_number, one

if TYPE_CHECKING:
    from .bound_sizes import Known

#: Description of an output to be allocated: its shape, numpy dtype, order and element type.
New = tuple[tuple[int, ...], np.dtype[Any], Literal["C", "F"], str]
Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]


class _Recipe(NamedTuple):
    """The order in which the signature wants a call's values, for all calls with the same names.

    ``pick`` returns the arrays in order. It is None if the values are only arrays, already in
    order. If ``new`` is set, an output of the same library as the value at index ``like`` is
    allocated and appended to the values. ``ones`` has indices of arrays, ``scalars`` of values.
    """

    pick: Pick | None
    output: int
    new: New | None
    like: int
    ones: tuple[tuple[int, ArrayParameter], ...]
    scalars: tuple[tuple[int, ScalarParameter], ...]


class Arranger:
    """Puts the arguments of a call into a signature's order, and allocates a missing output.

    ``out`` names the output: D, or C if there is no D. Without a D, the matrix can be passed as
    ``c`` or as ``out``; as ``out`` it is not read, so beta must be 0. With a D, the matrix C is an
    input, which is given exactly if beta is not 0.
    """

    __slots__ = (
        "_names", "_new", "_ones", "_places", "_recipes", "_scalars", "inputs", "outputs",
        "signature",
    )  # fmt: skip

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._names = [p.name for p in signature.arrays]
        self._places = signature.positional
        self._scalars = {p.name: p for p in signature.scalars}
        self._ones = [p for p in signature.arrays if p.kind == "vector" and p.shape == (1,)]
        self._new = _new_output(signature)
        named = {p.name for p in _outputs(signature)}
        self.outputs = [(i, name) for i, name in enumerate(self._names) if name in named]
        # Number of arrays in a call that passes all inputs by position and leaves the output to be
        # allocated. It is -1 if this kernel has no such calls.
        complete = self.by_position and signature.allocates
        self.inputs = len(self._names) - 1 if complete else -1
        self._recipes: dict[tuple[Any, ...], _Recipe] = {}

    @property
    def by_position(self) -> bool:
        """True if a call can pass all arguments by position: the inputs, then the output."""
        *inputs, last = self._names
        in_order = tuple(inputs) == self._places[: len(inputs)]
        return in_order and last == self.signature.output.name and not self._scalars

    @property
    def new_array(self) -> Callable[[tuple[Any, ...]], Any] | None:
        """Function that makes a new numpy output for the inputs in order.

        It returns None if an input is no numpy array with the axis that tells a size. There is no
        such function if finding the output's shape needs more than that.
        """
        if self._new is None:
            return _made_by_shapes(self.signature)
        made = partial(new_array, *self._new[:3])
        return lambda _: made()

    def __call__(
        self, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[float, ...]]:
        """Return arrays and scalars in the signature's order; ArgumentError for wrong names."""
        new = self._new
        if not named and new is not None and len(positional) == self.inputs and not self._ones:
            return (*positional, _new(positional[0], new)), ()
        values = (*positional, *named.values())
        recipe = self._recipes.get((len(positional), *named))
        if recipe is None:
            return self._in_any_order(positional, named)
        pick, output, new, like, ones, scalars = recipe
        if new is not None:
            values += (_new(values[like], new),)
        elif values[output] is None:
            return self._in_any_order(positional, named)
        arrays = values if pick is None else pick(values)
        for at, parameter in ones:
            if is_number(arrays[at]):
                arrays = (*arrays[:at], one(parameter, arrays[at]), *arrays[at + 1 :])
        return arrays, tuple([factor(p, values[at]) for at, p in scalars]) if scalars else ()

    def _learn(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Store how the values of a valid call are ordered, for later calls with the same names.

        A call that leaves out an argument, or gives one twice, is not stored.
        """
        output = self.signature.output.name
        names = [*self._places[: len(positional)], *named]
        names = [output if name == "out" else name for name in names]
        new = self._new if output not in names else None
        if new is not None:
            names.append(output)
        if sorted(names) != sorted([*self._names, *self._scalars]):
            return
        self._recipes[len(positional), *named] = _Recipe(
            pick=None if names == self._names else itemgetter(*map(names.index, self._names)),
            output=names.index(output),
            new=new,
            like=names.index(self._names[0]),
            ones=tuple((self._names.index(p.name), p) for p in self._ones),
            scalars=tuple((names.index(name), p) for name, p in self._scalars.items()),
        )

    def _in_any_order(
        self, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[float, ...]]:
        while positional and positional[-1] is None:
            positional = positional[:-1]
        if len(positional) > len(self._places):
            _too_many(self.signature, positional)
        given = dict(zip(self._places, positional, strict=False))
        output = self.signature.output.name
        for name, value in named.items():
            if name == "out" and output != "out":
                name = _output_name(self.signature, given, named, value)
                if value is None:
                    continue
            elif name in given:
                raise ArgumentTypeError(f"{name} is given twice, by position and by name")
            given[name] = value
        for name in ("c", output, *(name for _, name in self.outputs)):
            if given.get(name, 0) is None:
                del given[name]
        scalars = self._take_scalars(given)
        for parameter in self._ones:
            if is_number(value := given.get(parameter.name)):
                given[parameter.name] = one(parameter, value)
        arrays = _arrays(self.signature, given)
        self._learn(positional, named)
        return arrays, scalars

    def left_out(self, named: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the indices of outputs that the spec names and that the call does not pass."""
        return tuple(place for place, name in self.outputs if named.get(name) is None)

    def _take_scalars(self, given: dict[str, Any]) -> tuple[float, ...]:
        """Remove the scalars from ``given`` and return them as C doubles."""
        for name in self._scalars:
            if name not in given:
                raise ArgumentTypeError(
                    f"{name} is missing",
                    expected=_usage(self.signature),
                    hint="its value is passed by name, as a Python number",
                )
        return tuple([factor(p, given.pop(name)) for name, p in self._scalars.items()])


def _too_many(signature: Signature, positional: tuple[Any, ...]) -> None:
    places = signature.positional
    hint = _ANY_KERNEL["d"]
    if _is_product(signature):
        hint = "out= takes the array for D; c is given when beta is not 0"
    raise ArgumentTypeError(
        "too many arguments",
        got=f"{len(positional)} by position",
        expected=f"{len(places)}: {', '.join(places)}",
        hint=hint if signature.output.name == "d" else None,
    )


def _output_name(
    signature: Signature, given: Mapping[str, Any], named: Mapping[str, Any], value: Any
) -> str:
    name = signature.output.name
    other = given.get(name, named.get(name))
    if value is not None and name == "c" and not signature.allocates:
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
            raise ArgumentTypeError(
                f"this kernel has no argument {name!r}",
                expected=_usage(signature),
                hint=instead_of(name) if _is_product(signature) else _ANY_KERNEL.get(name),
            )
    missing = [name for name in expected if name not in given and name != output]
    if output not in given and not signature.allocates:
        missing.append(output)
    made = [p for p in _outputs(signature) if p.name in missing]
    if len(made) == len(missing) and made:
        given |= {p.name: _made(signature, given, p) for p in made}
    elif missing:
        raise ArgumentTypeError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            got=f"{', '.join(given) or 'nothing'}",
            expected=_usage(signature),
        )
    if output not in given:
        given[output] = allocate(signature, given)
    return tuple(given[name] for name in expected)


def _outputs(signature: Signature) -> list[ArrayParameter]:
    """Return the outputs that the spec names in addition to D."""
    return [p for p in signature.arrays if p.chosen and p.role == "out"]


def _made(signature: Signature, given: Mapping[str, Any], output: ArrayParameter) -> Any:
    """Return a new array for one of the outputs that the spec names."""
    from .argument_checks import learn, seen
    from .bound_sizes import Known

    inputs = [p for p in signature.arrays if p.name in given]
    known = Known()
    learn(inputs, seen(inputs, [given[p.name] for p in inputs]), known)
    shape = tuple(_known_size(size, output, known) for size in output.shape)
    return empty(given.get(signature.arrays[0].name), shape, output.type)


def _usage(signature: Signature) -> str:
    places = signature.positional
    if signature.places and signature.output.name != "out":
        return f"kernel({', '.join(places[:-1])}, out=(...))"
    by_name = [
        "out" if p.name == "d" and p.role != "in" else p.name
        for p in signature.arrays if p.name not in places
    ]  # fmt: skip
    by_name += [p.name for p in signature.scalars]
    return f"kernel({', '.join([*places, *(f'{name}=...' for name in by_name)])})"


def _is_product(signature: Signature) -> bool:
    """Return True if the arrays are those of a product, and not those that a network names."""
    return not signature.places and {"a", "b"} <= {p.name for p in signature.arrays}


#: Names that no kernel has, and what to try instead.
_ANY_KERNEL = {
    **dict.fromkeys(
        ("num_threads", "nthreads", "n_jobs", "n_threads", "threads"),
        "tw.matmul(a, b, threads=4), or tw.Schedule(threads=4) of a kernel",
    ),
    **dict.fromkeys(("dtype", "casting"), "out=, an array of that type"),
    "d": "out= takes the array that is written",
}


def instead_of(name: str) -> str | None:
    """Return what to try instead of an argument that a product or ``tw.matmul`` does not have."""
    quantity = f'tw.Gemm(..., {name}="scalar") takes it at the call'
    return {
        **dict.fromkeys(("alpha", "beta", "a_scale", "b_scale", "d_scale"), quantity),
        **dict.fromkeys(("a_zero", "b_zero", "d_zero"), quantity),
        **dict.fromkeys(
            ("a_offsets", "b_offsets"), "batch=tw.Offsets(count) takes them at the call"
        ),
        **_ANY_KERNEL,
        **dict.fromkeys(
            ("transpose_a", "trans_a", "transpose_b", "trans_b", "transA", "transB"),
            "b.T, a view: nothing is copied",
        ),
        **dict.fromkeys(
            ("bias", "residual", "activation"),
            'epilogue=tw.relu(tw.acc + tw.Operand("bias", per="column")), of tw.Gemm or tw.matmul',
        ),
        "c": "beta is 0, so C is not read; out= takes the array for D",
    }.get(name)


# --- outputs made here -------------------------------------------------------------------------


def _fixed_shape(signature: Signature) -> tuple[int, ...] | None:
    """Return the shape of a new output if it does not depend on the inputs, else None."""
    output = signature.output
    sizes = [*([] if output.count is None else [output.count]), *output.shape]
    shape = tuple(size for size in sizes if isinstance(size, int))
    tight = output.leading is None and output.batch_stride is None
    return shape if tight and len(shape) == len(sizes) else None


def _made_by_shapes(signature: Signature) -> Callable[[tuple[Any, ...]], Any] | None:
    """Return a function that makes an output, some of whose sizes are those of inputs."""
    output = signature.output
    if output.leading is not None or output.kind not in ("matrix", "vector"):
        return None
    places = [_told_by(size, signature) for size in output.shape]
    if None in places:
        return None
    known = [place for place in places if place is not None]
    kept = None if output.type in FOREIGN else preferred(output.type)
    order = output.order

    def made(arrays: tuple[Any, ...]) -> Any:
        shape = []
        for at, axis in known:
            if at < 0:
                shape.append(axis)
                continue
            given = arrays[at]
            if type(given) is not np.ndarray or given.ndim <= axis:
                return None
            shape.append(given.shape[axis])
        return new_array(tuple(shape), kept or preferred(output.type), order)

    return made


def _told_by(size: Size, signature: Signature) -> tuple[int, int] | None:
    """Return the input and its axis that tell a size of the output; (-1, size) for a fixed one."""
    if isinstance(size, int):
        return -1, size
    for at, parameter in enumerate(p for p in signature.arrays if p is not signature.output):
        if parameter.kind in ("matrix", "vector", "tensor") and not parameter.packed:
            for axis, each in enumerate(parameter.shape):
                if each == size:
                    return at, axis
    return None


def _new_output(signature: Signature) -> New | None:
    """Return the description of a new output if it is the same for all calls, else None."""
    output, shape = signature.output, _fixed_shape(signature)
    if shape is None or output.type in FOREIGN or (len(shape) > 2 and output.order == "F"):
        return None
    return shape, preferred(output.type), output.order, output.type


def _new(like: Any, new: New) -> Any:
    """Return a new output as ``new`` describes it, an array of the same library as ``like``."""
    shape, dtype, order, type_ = new
    if type(like) is np.ndarray:
        return new_array(shape, dtype, order)
    return _empty(like, shape, shape[-1 if order == "C" else -2], order, type_)


def allocate(signature: Signature, given: Mapping[str, Any]) -> Any:
    """Return a new output for the inputs ``given``, with unset elements.

    It is an array of the same library as the first input.
    """
    output, like = signature.output, given.get(signature.arrays[0].name)
    if (fixed := _fixed_shape(signature)) is not None:
        leading = fixed[-1 if output.order == "C" else -2]
        return _empty(like, fixed, leading, output.order, output.type)
    from .argument_checks import check_leading, learn, seen
    from .bound_sizes import Known

    inputs = [p for p in signature.arrays if p is not output]
    known = Known()
    learn(inputs, seen(inputs, [given[p.name] for p in inputs]), known)
    sizes = [_known_size(size, output, known) for size in output.shape]
    if output.kind in ("vector", "tensor"):
        return empty(like, tuple(sizes), output.type)
    rows, cols = sizes
    line = cols if output.order == "C" else rows
    check_leading([output], known)
    leading = line
    if output.leading is not None:
        leading = _leading_of(output.leading, line, known)
    count = () if output.count is None else (_known_size(output.count, output, known),)
    if output.batch_stride is not None and count and count[0] > 1:
        raise ArgumentValueError(
            f"{output.name} cannot be made here: its matrices lie a stride apart",
            hint=f"pass {output.name}, or leave c out of tw.Strided: one tight matrix each",
        )
    return _empty(like, (*count, rows, cols), leading, output.order, output.type)


def _empty(like: Any, shape: tuple[int, ...], leading: int, order: str, type_: str) -> Any:
    """Return a new array of the library of ``like``, with the leading dimension ``leading``."""
    if len(shape) == 1:
        return empty(like, shape, type_)
    *count, rows, cols = shape
    line, lines = (cols, rows) if order == "C" else (rows, cols)
    whole = empty(like, (*count, lines, leading), type_)
    if leading != line:
        whole = whole[..., :line]
    return whole if order == "C" else whole.swapaxes(-1, -2)


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
    """Raise SpecError for too many operands, or for a run-time size that no argument determines."""
    if len(signature.arrays) > LIMITS["arrays"]:
        raise SpecError(
            "a kernel takes no more arrays than this",
            got=len(signature.arrays),
            expected=f"at most {LIMITS['arrays']}: inputs, weights and results",
            hint="several weights in one array, of which the function takes w.all[i:j]",
        )
    told: set[Dim] = set()
    for parameter in signature.arrays:
        none = parameter.kind == "sequence" and parameter.count == 0
        # Such an argument has no shape from which a run-time size could be read.
        if parameter.kind == "flat" or none:
            continue
        sizes = [*parameter.shape, parameter.leading, parameter.batch_stride]
        if parameter.kind in ("strided", "sequence", "packed"):
            sizes.append(parameter.count)
        told.update(size for size in sizes if isinstance(size, Dim))
    for size in signature.sizes:
        if size.dim not in told:
            raise SpecError(
                f"no argument tells dim {size.dim.name!r}, given as {size.slot}",
                got="operands of batch=tw.Offsets are flat: they have neither shape nor strides"
                if any(p.kind == "flat" for p in signature.arrays)
                else "no array that a call takes has it in its shape or strides",
                expected="a dim that C or the offsets tell, or an int"
                if any(p.kind == "flat" for p in signature.arrays)
                else "a dim of an operand that is read or written, or an int",
            )
