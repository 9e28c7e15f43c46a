"""Random batch-reduce products, each with the Python code that makes and verifies it."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2, prod, sqrt
from typing import Any, Literal

from tilewright.spec import postops, reductions
from tilewright.spec.expression import Expression, Operand, acc, acc2, as_expression, call, dst
from tilewright.spec.gemm import QUANTITIES, SHAPES, Gemm
from tilewright.spec.operands import Addresses, Batch, Matrix, Offsets, Packed, Strided
from tilewright.spec.quantized import SHIFTS, STORED, Quantize, Quantized
from tilewright.spec.reductions import RowReduction
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Size, call_text, dim
from tilewright.spec.types import TypeName, accumulator, is_integer, type_name

from .axes import (
    AXES,
    EIGHTS,
    ELTWISE,
    REAL,
    RUN_TIME,
    SMALLEST,
    STRAIGHT,
    TILES,
    Level,
    deal,
    title,
)

#: Number of calls that verify each kernel: one with whole numbers, and one with arbitrary numbers.
CASES = 2
#: Magnitude to which sums are scaled before post-ops such as tanh, which is nearly constant for
#: larger sums.
_CURVED = 4.0
#: Usual value of a run-time size in the arrays that verify a kernel.
_USUAL = 32
#: Root mean square of the elements of A and B, by their type.
_MEAN: dict[str, float] = {"s8": 74.0, "u8": 147.0, "s16": 18_900.0, "u16": 37_800.0}
#: Types of A and B of which f32 may be rounded to bf16.
_ROUNDED = {"f32", "bf16", "s8", "u8"}
#: Magnitude at which sums of integers wrap.
_MOST = 2.0**31
_NAMES = (
    "Gemm", "Schedule", "Matrix", "Packed", "Quantized", "Quantize", "Strided", "Offsets",
    "Addresses", "dim", "Operand", "acc", "acc2", "dst", "compile", *postops.NAMES,
    *reductions.__all__,
)  # fmt: skip
_NAME = re.compile(rf"(?<!['\w.])({'|'.join(_NAMES)})\b(?![='])")


@dataclass(frozen=True, slots=True)
class Case:
    """One random case: a kernel to be made and verified.

    ``levels`` has the value of each axis that has a meaning in this case. ``arguments`` are keyword
    arguments of ``Gemm``, which may refuse them.
    """

    seed: int
    index: int
    levels: Mapping[str, str]
    arguments: Mapping[str, Any]
    schedule: Schedule

    def spec(self) -> Gemm:
        """Return the case's spec; SpecError if ``Gemm`` refuses the arguments."""
        return Gemm(**self.arguments)

    def python(self, target: str) -> str:
        """Return the statement that makes the kernel and verifies it as the sweep does."""
        sizes = [self.arguments[slot] for slot in "mnk"]
        options = {
            name: (value, None) for name, value in self.arguments.items() if name not in "mnk"
        }
        made = [call_text("Gemm", sizes, options)]
        if self.schedule != Schedule():
            made.append(repr(self.schedule))
        text = f"compile({', '.join(made)}, target={target!r})"
        text += f".verify(cases={CASES}, seed={self.index})"
        return _NAME.sub(r"tw.\1", text)


def draw(seed: int, index: int) -> Case:
    """Return the random case number ``index`` of a seed."""
    hand = _Hand(seed, index)
    arguments = _arguments(hand)
    schedule = _schedule(hand, arguments)
    given = {name: _short(value) for name, value in arguments.items() if value is not None}
    return Case(seed, index, hand.taken, given, schedule)


def _short(value: Any) -> Any:
    """Return only the type of a matrix in C order; return any other value unchanged."""
    return value.type if isinstance(value, Matrix) and value.order == "C" else value


class _Hand:
    """The values of all axes in one case, and a record of those that the case uses."""

    def __init__(self, seed: int, index: int) -> None:
        self._levels = deal(seed, index)
        self._random = random.Random(f"{seed} numbers {index}")
        self.taken: dict[str, str] = {}

    def take(self, axis: str, applies: bool = True) -> Level:
        """Return the value of ``axis`` and record that it is used; None unless ``applies``."""
        if not applies:
            return None
        level = self._levels[axis]
        self.taken[axis] = title(level)
        return level

    @property
    def stacked(self) -> bool:
        """True for a stack of products, for which row outputs and operands of C's size are left
        out.
        """
        return str(self._levels["batch"]).startswith("stack")

    def size(self, axis: str, *, fixed: bool = False) -> Size:
        """Return the size on ``axis``. If ``fixed``, a number replaces a run-time size."""
        level = self.take(axis)
        if fixed and not isinstance(level, int):
            level = self._random.choice([x for x in AXES[axis] if isinstance(x, int)])
            self.taken[axis] = title(level)
        if level in (RUN_TIME, EIGHTS):
            return dim(axis, multiple_of=1 if level == RUN_TIME else 8)
        return int(level)

    def whole(self, axis: str) -> bool:
        """Return True if alpha or beta, whichever ``axis`` names, may be a whole number."""
        level = self._levels[axis]
        return level == "scalar" or (level != SMALLEST and float(level).is_integer())

    def below(self, stop: int) -> int:
        """Return a random integer from 0 to ``stop - 1``."""
        return self._random.randrange(stop)


def _arguments(hand: _Hand) -> dict[str, Any]:
    """Return the arguments of ``Gemm`` for a case. An argument that is None is left out."""
    first, second = hand.take("types")
    floats = not {first, second} & {"f64", "s8", "u8", "s16", "u16"}
    mixed = hand.take("mixed", floats)
    if mixed is not None:
        first, second = (mixed[1], second) if mixed[0] == "a" else (first, mixed[1])
    sums = accumulator(first, second)
    kind = hand.take("batch")
    flat = kind in ("offsets", "static offsets")
    given: dict[str, Any] = {"m": hand.size("m"), "n": hand.size("n")}
    given["k"] = hand.size("k", fixed=flat)
    given["a"] = _matrix(hand, "a", first)
    whole = all(isinstance(given[slot], int) for slot in "nk")
    packed = hand.take("packed b", whole)
    blocks: tuple[str, int] | None = None
    form = _quantized(hand, whole and sums == "f32" and mixed is None)
    if form is not None:
        given["b"] = Packed(form, None if packed in (None, "one block") else packed)
        integers = given["a"].order == "C" and not form.stored.unpacked.startswith("f")
        quantized = str(hand.take("quantized a", integers) or "")
        given["a"] = _integers(quantized, form, first) or given["a"]
        if quantized.endswith("8 and scales") and form.along and kind is None:
            blocks = ("row", form.along)
    elif packed is None:
        given["b"] = _matrix(hand, "b", second)
    else:
        given["b"] = Packed(second, None if packed == "one block" else packed)
    if hand.take("sums of integers", sums == "s32") is not None:
        return _exact(hand, given, kind)
    given["sums"] = _sums(hand.take("sums", first == second == "f16" and form is None))
    given["c"] = _matrix(hand, "c", hand.take("c", sums == "f32") or sums)
    output = hand.take("d")
    given["d"] = output and _matrix(hand, "d", "f64" if sums == "f64" else output)
    given |= {name: _factor(hand.take(name), sums) for name in ("alpha", "beta")}
    integers = form is not None and isinstance(given["a"], Matrix) and is_integer(given["a"].type)
    for name in QUANTITIES:
        operand = {"a": "s8" if integers else first, "b": second}.get(name[0])
        whole = name.endswith("_scale") or operand is None or is_integer(operand)
        given[name] = hand.take(name, whole)
    if integers and isinstance(given["a_zero"], int):
        held = STORED[given["a"].type]
        given["a_zero"] = max(held.low, min(given["a_zero"], held.high))
    if mixed is not None and isinstance(given["b"], Packed):
        given["a_zero"] = None
    rounds = form is None and "f32" in (first, second) and {first, second} <= _ROUNDED
    if hand.take("math", rounds) is not None:
        given["math"] = ("bf16", "always")
    given["a_scale"] = blocks or given["a_scale"]
    given |= _batch(hand, given, kind)
    given["epilogue"] = _epilogue(hand, given, sums)
    if gate := hand.take("gated"):
        given["b2"] = given["b"]
        made = acc if given["epilogue"] is None else given["epilogue"]
        given["epilogue"] = _gated(made, gate)
    given["outputs"] = _reduced(hand, sums)
    return given | _outputs(hand, given)


def _exact(hand: _Hand, given: dict[str, Any], kind: str | None) -> dict[str, Any]:
    """Return the remaining arguments of an integer product with C or D in s64.

    Its results are the exact sums: there are no scales and no epilogue that would round them.
    """
    given["c"] = _matrix(hand, "c", "s64")
    given["d"] = _matrix(hand, "d", "s64") if hand.take("d") else None
    for name in ("alpha", "beta"):
        given[name] = hand.take(name, hand.whole(name))
    given |= dict.fromkeys(("sums", "epilogue", "outputs", *QUANTITIES))
    given |= _batch(hand, given, kind)
    return given | _outputs(hand, given)


def _integers(level: str, form: Quantized, type_: TypeName) -> Matrix | Quantize | None:
    """Return an A that is multiplied by a low-bit B in integers, None if ``level`` is empty."""
    if not level:
        return None
    if level[:2] in SHIFTS:
        return Matrix(type_name(level[:2]))
    per = form.per if level.startswith("blocks") else "row"
    return Quantize(type_, per=per, zero="s8" if level.endswith("zeros") else None)


def _quantized(hand: _Hand, applies: bool) -> Quantized | None:
    """Return the low-bit format of B, None if B has none or it does not apply."""
    level = hand.take("quantized b", applies)
    if level is None:
        return None
    type_, scale, zero, block = level
    return Quantized(type_, scale=scale, zero=zero, block=block)


def _sums(level: Level) -> Level:
    """Return the argument ``sums``: a type, or f16 sums that each cover some elements of K."""
    return ("f16", level) if isinstance(level, int) else level


def _factor(level: Level, sums: str) -> Level:
    """Return alpha or beta for the value of its axis; ``SMALLEST`` depends on the sums' type."""
    return level if level != SMALLEST else 2.0 ** (-1074 if sums == "f64" else -149)


def _matrix(hand: _Hand, name: str, type_: str) -> Matrix:
    return Matrix(type_name(type_), hand.take(f"order of {name}"))


# --- where operands lie ------------------------------------------------------------------------


def _line(given: Mapping[str, Any], name: str) -> Size:
    """Return the length of an operand's rows, or of its columns in order F."""
    size: Size = given[SHAPES[name][given[name].order == "C"]]
    return size


def _leading(
    hand: _Hand, given: Mapping[str, Any], name: str, *, flat: bool = False
) -> Size | None:
    """Return an operand's leading dimension. For a ``flat`` operand it is no run-time size."""
    slot, line = f"ld{name}", _line(given, name)
    level = hand.take(slot, not isinstance(given[name], Packed))
    if level is None:
        return None
    if isinstance(line, int) and (flat or level != RUN_TIME):
        step = level if level != RUN_TIME else 96
        return max(1, -(-line // step)) * step
    return None if flat else dim(slot)


def _batch(hand: _Hand, given: Mapping[str, Any], kind: str | None) -> dict[str, Any]:
    """Return the batch, and the leading dimensions of A and B."""
    flat = kind in ("offsets", "static offsets")
    count = hand.size("count", fixed=kind == "static offsets") if kind else 1
    # Without a matrix, a call cannot find the sizes.
    if kind == "addresses" and count == 0:
        count, hand.taken["count"] = 1, title(1)
    whole = isinstance(count, int) and isinstance(given["k"], int)
    if kind == "along k" and whole and count and given["k"] and given["a"].order == "C":
        return {
            "batch": Strided(count, a=given["k"]),
            "lda": count * given["k"],
            "ldb": _leading(hand, given, "b"),
        }
    leading = {f"ld{name}": _leading(hand, given, name, flat=flat) for name in "ab"}
    return {"batch": _kind(hand, given, kind, count, leading), **leading}


def _kind(
    hand: _Hand,
    given: Mapping[str, Any],
    kind: str | None,
    count: Size,
    leading: Mapping[str, Size | None],
) -> Batch | None:
    match kind:
        case None:
            return None
        case "apart":
            return Strided(count, *(_stride(given, name, leading[f"ld{name}"]) for name in "ab"))
        case "one a" | "one b":
            return Strided(count, **{kind[-1]: 0})
        case "offsets":
            return Offsets(count)
        case "static offsets":
            assert isinstance(count, int)
            drawn = ([hand.below(500) for _ in range(count)] for _ in "ab")
            a, b = drawn
            return Offsets(count, a, [i % 3 for i in b] if isinstance(given["b"], Packed) else b)
        case "addresses":
            return Addresses(count)
        case "stack":
            return Strided(count, c=None)
        case "stack apart":
            return Strided(count, c=dim("stride_c"))
    return Strided(count)


def _stride(given: Mapping[str, Any], name: str, leading: Size | None) -> Size | None:
    """Return a batch stride that leaves a small gap between matrices, None if they are packed."""
    if isinstance(given[name], Packed):
        return None
    lines: Size = given[SHAPES[name][given[name].order != "C"]]
    line = leading or _line(given, name)
    if isinstance(lines, int) and isinstance(line, int):
        return lines * line + 5
    return dim(f"stride_{name}")


def _outputs(hand: _Hand, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leading dimensions of C and D, None for a matrix that does not exist."""
    makes = ("d", "a_scale", "b_scale", "d_scale", "d_zero", "epilogue")
    has_d = any(given.get(name) is not None for name in makes)
    given = given if given["d"] else {**given, "d": given["c"]}
    reads_c = given["beta"] not in (None, 0)
    return {
        "ldc": _leading(hand, given, "c") if reads_c or not has_d else None,
        "ldd": _leading(hand, given, "d") if has_d else None,
    }


# --- epilogues ---------------------------------------------------------------------------------


def _epilogue(hand: _Hand, given: Mapping[str, Any], sums: str) -> Expression | None:
    """Return a random epilogue: it adds D's old value, then applies a function and an operation."""
    tree = hand.take("tree")
    if tree is not None:
        return _tree(hand, tree, "f64" if sums == "f64" else None)
    made: Expression = acc
    if scale := hand.take("sum"):
        made = acc + (dst if scale == 1 else scale * dst)
    eltwise, binary = hand.take("eltwise"), hand.take("binary")
    if sums == "f64" and eltwise not in REAL:
        hand.taken.pop("eltwise")
        eltwise = None
    steps = ["eltwise"] * (eltwise is not None) + ["binary"] * (binary is not None)
    if len(steps) == 2 and hand.take("binary first"):
        steps.reverse()
    for step in steps:
        if step == "eltwise":
            made = _function(made, eltwise, _shrink(given))
        else:
            made = _operation(made, binary, _other(hand, "f64" if sums == "f64" else None))
    return None if made == acc else made


def _gated(made: Expression, gate: str) -> Expression:
    """Return an epilogue that combines ``made`` with the sums of A times B2."""
    return made * acc2 if gate == "times" else as_expression(postops.maximum(made, acc2))


def _other(hand: _Hand, type_: TypeName | None) -> Operand:
    """Return a named operand for an epilogue, of type ``type_`` or else of the case's own type."""
    type_ = type_ or hand.take("operand")
    per = hand.take("operand per", not (hand.stacked and hand._levels["operand per"] == "full"))
    return Operand(hand.take("operand name"), type_, per)


def _tree(hand: _Hand, tree: str, type_: TypeName | None) -> Expression:
    """Return an epilogue that does not read the sums, or has numbers beyond its type's range."""
    match tree:
        case "operand alone":
            return _other(hand, type_)
        case "function of an operand":
            return postops.relu(_other(hand, type_)) * 0.5
        case "old value alone":
            return dst
        case "a number":
            return as_expression(-0.0)
    least = postops.clip(acc, float("-inf"), 3.4e38) + 2.0**-149
    return postops.minimum(least, float("inf")) - 5e-324


def _reduced(hand: _Hand, sums: str) -> dict[str, RowReduction] | None:
    """Return the argument ``outputs``: a reduction of each row of the sums or of an operand."""
    level = hand.take("outputs", sums != "f64" and not hand.stacked)
    if level is None:
        return None
    name, _, of = level.partition(" of ")
    expression: Expression = Operand("weights", "f32", "column") if of else acc
    return {"reduced": getattr(reductions, name)(expression)}


def _function(x: Expression, level: str, shrink: float) -> Expression:
    name, parameters = ELTWISE[level]
    function = getattr(postops, name)
    if level in STRAIGHT or shrink == 1:
        return as_expression(function(x, *parameters))
    return as_expression(function(x * shrink, *parameters) * (1 / shrink))


def _operation(x: Expression, name: str, y: Operand) -> Expression:
    match name:
        case "add":
            return x + y
        case "sub":
            return x - y
        case "mul":
            return x * y
        case "div":
            return x / y
        case "where":
            return call("where", x > 0, x, y)
    return as_expression(getattr(postops, name)(x, y))


def _shrink(given: Mapping[str, Any]) -> float:
    """Return a power of two that scales the case's sums to a magnitude of about ``_CURVED``."""
    batch: Batch | None = given["batch"]
    terms = [given["k"], 1 if batch is None else batch.count]
    sums = sqrt(prod(size if isinstance(size, int) else _USUAL for size in terms))
    sums *= prod(_MEAN.get(given[name].type, 0.6) for name in "ab")
    sums = min(sums, _MOST)
    return float(2.0 ** -max(0, ceil(log2(max(sums, 1) / _CURVED))))


def _unpacks(given: Mapping[str, Any]) -> bool:
    """Return True if a quantized B may be unpacked before the product: A is floating point.

    If dot products of a target are used, A must have rows of whole blocks without zero points.
    """
    form: Quantized | None = getattr(given["b"], "quantized", None)
    a, k = given["a"], given["k"]
    if form is None or isinstance(given["batch"], Addresses):
        return False
    if isinstance(a, Quantize) or a.type in SHIFTS:
        return False
    whole = isinstance(k, int) and k % form.block_of(k) == 0
    return a.type == "f32" or (a.order == "C" and not form.zeros and whole)


#: Types of A and B that are converted for the product, and for which every target can have vectors
#: along K.
_ALONG_K = frozenset(
    {
        *(("s8", "s8"), ("u8", "s8"), ("u8", "u8"), ("s16", "s16"), ("u8", "s16"), ("u16", "s16")),
        *(("bf16", "bf16"), ("f32", "bf16"), ("f16", "bf16")),
    }
)


def _along_k(given: Mapping[str, Any]) -> bool:
    """Return True if vectors may run along K on any target.

    One of A and B must be contiguous along K if they are multiplied directly, both if they are
    converted.
    """
    a, b = given["a"], given["b"]
    if not (isinstance(a, Matrix) and isinstance(b, Matrix) and given["sums"] is None):
        return False
    rows, columns = a.order == "C", b.order == "F"
    if given.get("math") is not None:
        return False
    if a.type == b.type == accumulator(a.type, b.type):
        return rows or columns
    wide = getattr(given["c"], "type", "") == "s64"
    alone = given["batch"] is None and "b2" not in given and not wide
    return alone and rows and columns and (a.type, b.type) in _ALONG_K


# --- schedules ---------------------------------------------------------------------------------


def _scattered(given: Mapping[str, Any]) -> bool:
    """Return True if B is low-bit and found by addresses: the batch loop must then be outside of m
    and n.
    """
    b = given["b"]
    few = isinstance(b, Packed) and b.quantized is not None
    return few and isinstance(given["batch"], Addresses)


def _schedule(hand: _Hand, given: Mapping[str, Any]) -> Schedule:
    batched = given["batch"] is not None
    fixed = isinstance(given["m"], int) and isinstance(given["n"], int)
    lacks = ([] if batched else ["batch outside"]) + ([] if fixed else list(TILES))
    lacks += [] if _unpacks(given) else ["unpacked"]
    lacks += [] if _along_k(given) else ["along k"]
    # A low-bit B needs registers too, so the register tiles in ``TILES`` do not fit.
    if getattr(given["b"], "quantized", None) is not None:
        lacks += list(TILES)
    # If chunks of K are summed in f16, the loops over K and the batch must be the outermost ones.
    if isinstance(given["sums"], tuple):
        lacks += ["n outside", "m outside", "k outside", "batch outside"]
    if _scattered(given):
        lacks += ["n outside", "m outside"]
    level = hand.take("schedule", hand._levels["schedule"] not in lacks)
    batch: Literal["b", ""] = "b" if batched else ""
    outside, inside = (batch, "") if hand.stacked else ("", batch)
    if level in TILES:
        return Schedule(tile=TILES[level])
    match level:
        case "n outside":
            return Schedule(loops=f"{outside}nm{inside}k")
        case "m outside":
            return Schedule(loops=f"{outside}mn{inside}k")
        case "k outside":
            return Schedule(loops=f"{batch}knmk", block={"k": 32})
        case "batch outside":
            return Schedule(loops="bnmk")
        case "unrolled":
            return Schedule(k_unroll=2)
        case "two threads":
            return Schedule(threads=2)
        case "unpacked":
            return Schedule(unpack_rows=2)
        case "along k":
            return Schedule(vectorize="k")
    return Schedule()
