"""Read specs and schedules from words of the command line: ``64x48x64 --order F --tile 16x6``.

The input is the words of arguments and options. The output is specs, a schedule and a target's
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from tilewright.errors import SpecError, TilewrightError
from tilewright.runtime.quantized.gguf import CONTAINERS
from tilewright.spec import postops
from tilewright.spec.expression import Expression, acc, as_expression
from tilewright.spec.expression.shapes import said as shape_text
from tilewright.spec.gemm import QUANTITIES, Factor, Gemm, Spec
from tilewright.spec.network.stages import Stages
from tilewright.spec.network.value import Network
from tilewright.spec.operands import Addresses, Matrix, Offsets, Order, Packed, Strided
from tilewright.spec.pack import Copy, QuantizeRows
from tilewright.spec.quantized import Quantize
from tilewright.spec.schedule import TAILS, Schedule
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.sums import Math
from tilewright.spec.transpose import Transpose
from tilewright.spec.types import TYPES, accumulator, type_name

from .code import schedule_of_code, spec_of_code

_BATCHES: dict[str, Callable[[Size], Strided | Offsets | Addresses]] = {
    "strided": Strided,
    "offsets": Offsets,
    "addresses": Addresses,
}
Command = TypeVar("Command", bound=Callable[..., Any])


if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:  # before version 8.2, click.Choice takes no type parameter
    _Choice = click.Choice


class ElementType(_Choice):
    """A parameter type of click for element types.

    It accepts the names ``names``, for example "f32", and numpy's names of the same types.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(list(names))

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return tilewright's name of a type; numpy's names are translated."""
        return super().convert(_BY_NUMPY.get(value, value), param, ctx)


_BY_NUMPY = {TYPES[name].numpy: name for name in TYPES}


def size(word: str) -> Size:
    """Return the size that a word describes.

    A number is an int. A name such as ``m`` is a dim, known only at the call. ``m%16`` is a dim
    that is a multiple of 16.
    """
    if word.isdecimal():
        return int(word)
    name, marked, multiple = word.partition("%")
    if marked and not multiple.isdecimal():
        raise SpecError("what follows % is the number that divides the size", got=word)
    return Dim(name, int(multiple) if marked else 1)


#: Word that precedes the sizes of a transposition.
_TRANSPOSE = "transpose"


def sizes(word: str, transposed: bool = False) -> tuple[Size, ...]:
    """Return the sizes in a word: ``MxNxK`` of a product, or ``ROWSxCOLS`` of a transposition."""
    words = word.split("x")
    if len(words) == (2 if transposed else 3) and all(words):
        return tuple(map(size, words))
    if transposed:
        raise ValueError(f"{word!r} is not ROWSxCOLS of a transposition, such as 8x8")
    if len(words) == 2 and all(words):
        raise ValueError(
            f"{word!r} has two sizes: was k forgotten, as in {word}x64? The transposition of a "
            f"matrix is {f'{_TRANSPOSE} {word}'!r}"
        )
    raise ValueError(
        f"{word!r} is not MxNxK, such as 64x48x64, or mx48x64 with m known only at the call"
    )


def _said(words: Sequence[str]) -> Iterator[tuple[Size, ...]]:
    """Yield the sizes of each kernel on the command line.

    The sizes of a transposition follow the word "transpose". An argument may be quoted and contain
    several words, such as ``"transpose 64x48"``.
    """
    every = " ".join(words).split()
    if len(every) > 1 and all(map(str.isdecimal, every)):
        raise ValueError(f"sizes are joined by x: did you mean {'x'.join(every)}?")
    rest = iter(every)
    for word in rest:
        if word != _TRANSPOSE:
            yield sizes(word)
        elif (said := next(rest, None)) is not None:
            yield sizes(said, transposed=True)
        else:
            raise ValueError(f"{_TRANSPOSE!r} stands before ROWSxCOLS, as in {_TRANSPOSE} 8x8")


def _one(line: str) -> tuple[Size, ...]:
    """Return the sizes of the one kernel that a line of a file describes."""
    found = list(_said([line]))
    if len(found) != 1:
        raise ValueError(f"{line!r} describes {len(found)} kernels, not one")
    return found[0]


def _read(meaning: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return a callback for click that applies ``meaning`` to the words of an option or argument.

    If ``meaning`` raises an error, the callback reports a usage error.
    """

    def read(_context: Any, _parameter: Any, words: Any) -> Any:
        try:
            return None if words is None else meaning(words)
        except TilewrightError as error:
            got = f": {error.got}" if error.got else ""
            hint = f". Try {error.hint}" if error.hint else ""
            raise click.BadParameter(f"{error.problem}{got}{hint}") from None
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return read


def _order(word: str) -> str:
    letters = word.upper()
    if len(letters) not in (1, 3) or set(letters) - set("CF"):
        raise ValueError(f"{word!r} is neither C, F, nor three of them for A, B and C, such as CFC")
    return letters * 3 if len(letters) == 1 else letters


def _factor(word: str) -> Factor:
    if word == "scalar":
        return "scalar"
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{word!r} is neither a number nor 'scalar'") from None


def _quantity(word: str) -> float | str:
    """Return a scale or zero point: a number, or "scalar", "row" or "column".

    With "scalar", a call passes one number; with "row" or "column", one for each row or column.
    """
    if word in ("scalar", "row", "column"):
        return word
    try:
        return int(word) if word.lstrip("-").isdecimal() else float(word)
    except ValueError:
        raise ValueError(f"{word!r} is neither a number, scalar, row nor column") from None


def _operand(word: str) -> str | Packed:
    """Return the type of B, or a packed B.

    Examples are ``s8``, ``packed:s8``, ``packed:s8:64`` (blocks of 64 columns) and ``packed:q4_0``.
    """
    kind, marked, rest = word.partition(":")
    if not marked:
        return Matrix(type_name(word)).type
    type_, blocks, columns = rest.partition(":")
    if kind != "packed" or (blocks and not columns.isdecimal()):
        raise ValueError(f"{word!r} is no operand, such as s8, packed:s8 or packed:s8:64")
    container = CONTAINERS.get(type_)
    nb = int(columns) if blocks else None
    return Packed(type_name(type_) if container is None else container.form, nb)


def _epilogue(word: str) -> Expression:
    """Return an epilogue: the function called ``word``, applied to the sums of the product."""
    with suppress(TypeError):  # raised by functions with more arguments
        if word in postops.NAMES:
            return as_expression(getattr(postops, word)(acc))
    raise ValueError(f"{word!r} is no function of one value, such as relu or gelu_erf")


def _math(word: str) -> Math:
    if word not in ("bf16", "bf16:always"):
        raise ValueError(f"{word!r} is no type for rounding, such as bf16 or bf16:always")
    return "bf16" if word == "bf16" else ("bf16", "always")


def _tile(word: str) -> tuple[int, int]:
    rows, _, columns = word.partition("x")
    if not (rows.isdecimal() and columns.isdecimal()):
        raise ValueError(f"{word!r} is no tile, rows by columns of C, such as 16x6")
    return int(rows), int(columns)


def _batch(word: str) -> Strided | Offsets | Addresses:
    kind, _, count = word.rpartition(":")
    if (kind or "strided") not in _BATCHES or not count:
        kinds = ", ".join(f"{name}:16" for name in _BATCHES)
        raise ValueError(f"{word!r} is no batch, such as 16, {kinds}")
    return _BATCHES[kind or "strided"](size(count))


def _block(word: str) -> dict[str, int]:
    blocks = {}
    for part in word.split(","):
        letter, _, step = part.partition("=")
        if not step.isdecimal():
            raise ValueError(f"{word!r} is no list of blocks, such as m=48,k=256")
        blocks[letter] = int(step)
    return blocks


def _option(name: str, meaning: Callable[[str], Any], **more: Any) -> Callable[[Any], Any]:
    return click.option(name, callback=_read(meaning), **more)


_CODE = (
    _option(
        "--spec",
        spec_of_code,
        metavar="CODE",
        help="A spec as Python prints it, in place of SIZES and the options that describe one.",
    ),
    _option(
        "--schedule",
        schedule_of_code,
        metavar="CODE",
        help="A schedule as Python prints it, in place of the options that describe one.",
    ),
)
_SPEC = (
    click.option(
        "--type",
        "element",
        type=ElementType(TYPES),
        default="f32",
        help="Type of A, and of B unless --b is given.",
    ),
    _option(
        "--b",
        _operand,
        metavar="TYPE",
        help="Type of B, or packed:TYPE, packed:TYPE:COLUMNS, or a GGUF type: packed:q4_0.",
    ),
    click.option(
        "--quantize", is_flag=True, help="Quantize A to s8, in blocks as long as those of B."
    ),
    click.option(
        "--c",
        type=ElementType(TYPES),
        help="Type of the matrix C; default: the type of the sums.",
    ),
    click.option(
        "--d", type=ElementType(TYPES), help="Type of the output D; default: the type of C."
    ),
    _option(
        "--order",
        _order,
        default="C",
        metavar="C|F|CFC",
        help="C: contiguous rows; F: contiguous columns; or a letter each for A, B and C.",
    ),
    _option(
        "--alpha",
        _factor,
        default="1",
        metavar="NUMBER",
        help="Factor of A @ B: a number, or scalar: passed at the call.",
    ),
    _option(
        "--beta",
        _factor,
        default="0",
        metavar="NUMBER",
        help="Factor of the old C: a number, or scalar: passed at the call.",
    ),
    _option(
        "--batch",
        _batch,
        metavar="COUNT",
        help="Number of products in the batch: 16, offsets:16 or addresses:16.",
    ),
    _option(
        "--lda",
        size,
        metavar="SIZE",
        help="Leading dimension of A: a number, or a name for a size known only at the call.",
    ),
    _option("--ldb", size, metavar="SIZE", help="Leading dimension of B, as --lda."),
    _option("--ldc", size, metavar="SIZE", help="Leading dimension of C, as --lda."),
    _option("--ldd", size, metavar="SIZE", help="Leading dimension of D, as --lda."),
    *(
        _option(
            f"--{name.replace('_', '-')}",
            _quantity,
            metavar="NUMBER|scalar|row|column",
            help=f"{name[0].upper()}'s {'scale' if 'scale' in name else 'zero point'}: a number, "
            "or passed at the call: one, or one for each row or column.",
        )
        for name in QUANTITIES
    ),
    _option(
        "--epilogue",
        _epilogue,
        metavar="FUNCTION",
        help="Function of the sums: relu, gelu_erf, ...",
    ),
    _option(
        "--math",
        _math,
        metavar="bf16|bf16:always",
        help="Round f32 to bf16 while it is packed, if that is faster; or always.",
    ),
)
_SCHEDULE = (
    _option(
        "--tile", _tile, metavar="MRxNR", help="Rows and columns of C that registers hold: 4x16."
    ),
    click.option(
        "--loops", metavar="LETTERS", help="Order of the loops, outermost first: nmk, bnmk, nmbk."
    ),
    _option(
        "--block",
        _block,
        metavar="m=48,k=256",
        help="Block sizes, for each dimension that has two loops.",
    ),
    click.option(
        "--k-unroll", type=click.IntRange(1), help="Steps of K in one iteration of the loop."
    ),
    click.option("--k-split", type=click.IntRange(1), help="Number of sets of accumulators."),
    click.option(
        "--vectorize",
        type=click.Choice(["m", "n", "k", "b"]),
        help="Dimension along the vectors; b: vectors across the products of a stack.",
    ),
    click.option(
        "--pack", type=click.Choice(["a", "b", "ab"]), help="Operands that are packed in blocks."
    ),
    click.option(
        "--prefetch", type=click.IntRange(1), help="Prefetch B this many steps of K ahead."
    ),
    click.option(
        "--tails",
        type=click.Choice(TAILS),
        default="auto",
        help="How rows and columns that do not fill a tile are computed.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(1),
        help="Number of threads; they share the loops in upper case, for example NMk.",
    ),
    click.option(
        "--stores",
        type=click.Choice(["stream", "cached"]),
        help="How C is written: past the caches (stream), or into them (cached).",
    ),
)
_TARGET = (click.option("--target", default="host", help="host, or one of `tilewright targets`."),)


_SPEC_NAMES = (
    "element", "b", "quantize", "c", "d", "order", "alpha", "beta", "batch", "lda", "ldb", "ldc",
    "ldd", *QUANTITIES, "epilogue", "math",
)  # fmt: skip
_SCHEDULE_NAMES = (
    "tile", "loops", "block", "k_unroll", "k_split", "vectorize", "pack", "prefetch", "tails",
    "threads", "stores",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """The kernels that a command line asks for: specs, a schedule for all, and a target's name.

    ``asked`` is the schedule if the command line has options for it, else None.
    """

    specs: tuple[Spec, ...]
    schedule: Schedule
    target: str
    asked: Schedule | None = None


def wanted(command: Command) -> Command:
    """Add the options for specs, a schedule and a target to ``command``.

    The command gets their values as the argument ``wanted``, a ``Wanted``.
    """
    from functools import wraps

    @wraps(command)
    def run(*, target: str, **options: Any) -> Any:
        chosen = {name: options.pop(name) for name in _SCHEDULE_NAMES}
        schedule = options.pop("schedule")
        _alone("--schedule", schedule, _given(_SCHEDULE_NAMES))
        specs = _specs(options)
        if not specs:
            raise click.UsageError("Missing argument 'SIZES...', or --spec.")
        said = schedule is not None or bool(_given(_SCHEDULE_NAMES))
        schedule = Schedule(**chosen) if schedule is None else schedule
        found = Wanted(specs, schedule, target, schedule if said else None)
        return command(wanted=found, **options)

    made: Command = _with_options(run, (*_CODE, *_SPEC, *_SCHEDULE, *_TARGET))
    return made


def wanted_specs(command: Command) -> Command:
    """Add the options for specs and a target, all optional, to ``command``.

    The command gets their values as the arguments ``specs``, a tuple, and ``target``. It also gets
    ``read``, a function that converts a line of a file to a spec. A line has sizes, or a spec as
    Python prints it.
    """
    from functools import wraps

    @wraps(command)
    def run(**options: Any) -> Any:
        said = {name: options[name] for name in _SPEC_NAMES}

        def read(line: str) -> Spec:
            return spec_of_code(line) if "(" in line else spec_of(_one(line), **said)

        return command(specs=_specs(options), read=read, **options)

    made: Command = _with_options(run, (_CODE[0], *_SPEC, *_TARGET))
    return made


def _specs(options: dict[str, Any]) -> tuple[Spec, ...]:
    """Return the specs of the command line, and remove their options from ``options``."""
    said = {name: options.pop(name) for name in _SPEC_NAMES}
    given, spec = options.pop("given"), options.pop("spec")
    _alone("--spec", spec, [*(("SIZES",) if given else ()), *_given(_SPEC_NAMES)])
    return tuple(spec_of(one, **said) for one in given) if spec is None else (spec,)


def _with_options(run: Any, options: Sequence[Callable[[Any], Any]]) -> Any:
    for option in reversed(options):
        run = option(run)
    argument = click.argument(
        "given", nargs=-1, metavar="SIZES...", callback=_read(lambda words: tuple(_said(words)))
    )
    wrapped: Any = argument(run)
    return wrapped


def _given(names: Sequence[str]) -> list[str]:
    """Return those of the options ``names`` that are on the command line, for example ``--lda``."""
    context = click.get_current_context()
    set_ = (n for n in names if context.get_parameter_source(n) == ParameterSource.COMMANDLINE)
    return [f"--{'type' if name == 'element' else name.replace('_', '-')}" for name in set_]


def _alone(option: str, value: object, others: Sequence[str]) -> None:
    """Raise a usage error if ``option`` is combined with ``others``, which it replaces."""
    if value is not None and others:
        raise click.UsageError(f"{option} says all of it: leave out {', '.join(others)}.")


def spec_of(given: tuple[Size, ...], element: str, order: str, **said: Any) -> Spec:
    """Return the spec with these sizes and options.

    Raise SpecError if the options contradict each other.
    """
    if len(given) == 3:
        m, n, k = given
        return Gemm(m, n, k, **_operands(element, order, said), **said)
    unused = [name for name, usual in (("alpha", 1), ("beta", 0)) if said.pop(name) != usual]
    leading = {"ldx": said.pop("lda"), "ldout": said.pop("ldb")}
    unused += ["quantize"] if said.pop("quantize", False) else []
    unused += [name for name, value in said.items() if value is not None]
    unused += ["order"] if order != "CCC" else []
    if unused:
        raise SpecError(
            "a transposition has rows contiguous and nothing to add or scale",
            got=", ".join(f"--{name.replace('_', '-')}" for name in unused),
            hint="three sizes, MxNxK, for a product",
        )
    rows, cols = given
    return Transpose(rows, cols, element, **leading)


def _operands(element: str, order: str, said: dict[str, Any]) -> dict[str, Any]:
    """Return the operands A, B, C and D, and remove their types from the options ``said``.

    ``order`` has a letter each for A, B and C. D has the order of C.
    """
    first, second, third = cast("tuple[Order, Order, Order]", tuple(order))
    b, c, d = (said.pop(name) for name in "bcd")
    if not isinstance(b, Packed):
        b = Matrix(type_name(b or element), second)
    form = b.quantized if isinstance(b, Packed) else None
    sums = "f32" if form else accumulator(element, b.type)
    a: Matrix | Quantize = Matrix(type_name(element), first)
    if said.pop("quantize"):
        a = Quantize(type_name(element), per=form.per if form else "row")
    made = {
        "a": a,
        "b": b,
        "c": Matrix(type_name(c or sums), third),
    }
    return {**made, "d": None if d is None else Matrix(d, third)}


#: Names of a spec's sizes, in the order of the spec's arguments.
_SIZES: dict[type[Any], tuple[str, ...]] = {
    Gemm: ("m", "n", "k"),
    Transpose: ("rows", "cols"),
    Copy: ("rows", "cols"),
    QuantizeRows: ("m", "k"),
}
#: Names of leading dimensions in specs that are no products.
_LEADING = ("lda", "ldb", "ldd", "ldx", "ldout")


def sizes_text(spec: Spec) -> str:
    """Return a spec's sizes in the form of the command line, for example ``64x48x64``.

    A network has the shapes of its tensors and the number of its weights in their place.
    """
    if isinstance(spec, Network):
        shapes = [f"{each.name} {shape_text(each.shape)}" for each in spec.inputs]
        count = len(spec.weights)
        weights = [f"{count} weight{'s' * (count > 1)}"] if count else []
        return ", ".join([*shapes, *weights])
    sizes = [getattr(spec, name) for name in _SIZES.get(type(spec), ("k", "n"))]
    return "x".join(map(_size_text, sizes))


def _size_text(size: Size) -> str:
    return size.name if isinstance(size, Dim) else str(size)


def spec_text(spec: Spec) -> str:
    """Return a spec as text: its sizes, then other arguments, for example ``4x4x4 beta=1``.

    A spec that is no product begins with its words, for example ``copy f32 64x48 cf lda=100``.
    """
    if isinstance(spec, Network):
        return f"network of {sizes_text(spec)}"
    if not isinstance(spec, Gemm):
        given = [(name, getattr(spec, name, None)) for name in ("nb", *_LEADING)]
        more = [f"{name}={_size_text(size)}" for name, size in given if size is not None]
        return " ".join([*(word.replace("for_", "for ") for word in spec.words()), *more])
    begin = f"Gemm({spec.m!r}, {spec.n!r}, {spec.k!r}"
    rest = repr(spec).removeprefix(begin).removeprefix(", ")[:-1]
    return f"{sizes_text(spec)} {rest}".rstrip()


def schedule_text(schedule: Schedule) -> str:
    """Return the given parts of a schedule as text, for example ``4x16`` for a tile."""
    if isinstance(schedule, Stages):
        return repr(schedule)
    said = []
    if schedule.tile is not None:
        said.append("x".join(map(str, schedule.tile)))
    if schedule.loops is not None:
        said.append(schedule.loops)
    said += [f"{letter}={step}" for letter, step in schedule.block]
    for name in ("k_unroll", "k_split", "vectorize", "pack", "prefetch", "threads", "stores"):
        value = getattr(schedule, name)
        if value is not None:
            said.append(f"{name}={value}")
    if schedule.tails != "auto":
        said.append(f"tails={schedule.tails}")
    return " ".join(said) or "schedule chosen by the cost model"
