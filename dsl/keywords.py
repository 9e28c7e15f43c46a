"""Explain wrong arguments of public functions: tell which name the user probably meant.

The decorator ``spelled`` is put on a function or class. Arguments are examined only after Python
has rejected a call, so a correct call costs only one more stack frame.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from reprlib import Repr
from typing import Any, TypeVar

from .errors import TilewrightError

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN = Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60
#: A parameter is proposed for a wrong name if difflib's ratio of their similarity is at least this.
_ALIKE = 0.7

_TYPES = 'a="bf16" is the type of A and of B, b= that of B; c= and d= are those of C and D'
_LAYOUT = 'b=tw.Matrix("f32", order="F") for one operand, order="F" for all: numpy\'s orders'
_BIAS = 'bias = tw.Operand("bias", "f32", per="column"), then epilogue=tw.acc + bias'
_ACTIVATION = "epilogue=tw.relu(tw.acc)"
_BATCH = "batch=tw.Strided(count), or tw.Offsets(count), tw.Addresses(count)"
_BLOCKS = 'block={"m": 48, "k": 256}'
#: For each public function: names of arguments in BLAS, oneDNN, LIBXSMM, PyTorch and numpy, and
#: what to write instead. Names match in any case, with or without underscores.
_MEANT: Mapping[str, Mapping[str, str]] = {
    "Gemm": {
        **dict.fromkeys(("dtype", "type", "datatype", "elementtype", "dt", "precision"), _TYPES),
        **dict.fromkeys(("atype", "typea", "srcdt", "srctype", "dtypea", "adtype"), 'a="bf16"'),
        **dict.fromkeys(("btype", "typeb", "weidt", "weightstype", "dtypeb", "bdtype"), 'b="bf16"'),
        **dict.fromkeys(("ctype", "typec", "dtypec", "cdtype"), 'c="bf16", or d="bf16" for D'),
        **dict.fromkeys(("outdtype", "outtype", "dsttype", "dstdt", "outputtype", "out", "dtyped"),
                        'd="bf16", or c="bf16" where there is no D'),
        **dict.fromkeys(("transb", "transposeb", "tb", "btrans", "bt"),
                        'b=tw.Matrix("f32", order="F"): its columns are contiguous'),
        **dict.fromkeys(("transa", "transposea", "ta", "atrans", "at"),
                        'a=tw.Matrix("f32", order="F"): its columns are contiguous'),
        **dict.fromkeys(("trans", "transpose", "layout", "rowmajor", "colmajor", "columnmajor"),
                        _LAYOUT),
        **dict.fromkeys(("bias", "biases", "addbias", "withbias"), _BIAS),
        **dict.fromkeys(("activation", "act", "relu", "gelu", "silu", "postops", "postop", "attr",
                         "eltwise", "fuse", "fusion", "post"), _ACTIVATION),
        **dict.fromkeys(("batchsize", "batchcount", "batches", "count", "brcount", "nbatch"),
                        _BATCH),
        **dict.fromkeys(("stridea", "strideb", "stridec", "strides"),
                        "batch=tw.Strided(count, a=..., b=..., c=...), in elements"),
        **dict.fromkeys(("scale", "scales", "ascales", "bscales", "scalea", "scaleb", "srcscale",
                         "weightscale", "weightsscale"),
                        'a_scale="scalar", b_scale="column", d_scale=0.05'),
        **dict.fromkeys(("zero_point", "zero_points", "zp", "a_zero_point", "src_zero"),
                        'a_zero=128, b_zero="column", d_zero=3'),
        **dict.fromkeys(("accumulate", "acc", "add", "inplace"), "beta=1: C += A B"),
        **dict.fromkeys(("acctype", "accdtype", "accumdtype", "computetype", "computedtype",
                         "accumulator"), 'sums="f32", or c= for what C holds'),
        **dict.fromkeys(("packed", "packb", "prepacked", "pack"), 'b=tw.Packed("f32")'),
        **dict.fromkeys(("gate", "b1", "w2", "up"), "b2=, and tw.acc2 in the epilogue"),
        **dict.fromkeys(("isa", "arch", "device"), 'tw.compile(spec, target="host")'),
    },
    "Schedule": {
        **dict.fromkeys(("unroll", "unrollk", "unrolling", "ku", "unrollfactor"), "k_unroll=4"),
        **dict.fromkeys(("tilesize", "tiles", "microtile", "registertile", "mr", "nr", "tilem",
                         "tilen", "mrnr"), "tile=(mr, nr), rows by columns of C"),
        **dict.fromkeys(("blocks", "blocking", "blocksize", "cacheblock", "mc", "nc", "kc", "tilek",
                         "mb", "nb", "kb", "blockm", "blockn", "blockk"), _BLOCKS),
        **dict.fromkeys(("order", "looporder", "loop", "nest", "permutation"), 'loops="nmk"'),
        **dict.fromkeys(("parallel", "parallelize"), 'loops="NMk", or threads=4'),
        **dict.fromkeys(("vector", "simd", "vec", "vectorise", "vectoraxis"), 'vectorize="n"'),
        **dict.fromkeys(("packing", "packa", "packb"), 'pack="b"'),
        **dict.fromkeys(("splitk", "ksplits", "accumulators"), "k_split=2"),
        **dict.fromkeys(("tail", "remainder", "mask", "masking", "edge"), 'tails="mask"'),
        **dict.fromkeys(("streaming", "nontemporal", "nt", "store"), 'stores="stream"'),
    },
    "compile": dict.fromkeys(("tuned", "tune", "autotune"), "tw.tune(spec), then tw.compile(spec)"),
    "tune": {
        **dict.fromkeys(("time", "timeout", "budget", "maxseconds", "limit", "minutes"),
                        "seconds=60"),
        **dict.fromkeys(("trials", "ntrials", "iterations", "variants"),
                        "seconds=60: a tuning ends by its time"),
        **dict.fromkeys(("sampler", "method", "strategy", "algorithm"), 'search="ranked"'),
        **dict.fromkeys(("save", "persist", "keep", "cache"), "store=False keeps nothing"),
    },
    "harness": dict.fromkeys(("trials", "tests", "repeat", "runs"), "cases=2"),
    "library": {
        **dict.fromkeys(("specs", "functions", "gemms"), 'kernels={"gemm": spec}'),
        **dict.fromkeys(("folder", "output", "path", "out"), "tw.library(...).build(folder)"),
    },
    "Operand": {
        **dict.fromkeys(("dtype", "datatype"), 'type="f32"'),
        **dict.fromkeys(("axis", "shape", "dim", "broadcast"), 'per="column", "row" or "full"'),
    },
    "Quantized": {
        **dict.fromkeys(("bits", "nbits", "dtype", "element"), 'type="s4"'),
        **dict.fromkeys(("groupsize", "group", "blocksize"), "block=32"),
        **dict.fromkeys(("zero_point", "zeros", "zero_points", "zp", "symmetric"),
                        'zero=8, or a type: zero="u4"'),
        **dict.fromkeys(("scales", "scaletype", "scaledtype"), 'scale="f16"'),
    },
    "Quantize": dict.fromkeys(("axis", "group", "groupsize", "block"), 'per="row" or ("row", 32)'),
    "Strided": dict.fromkeys(("stridea", "strideb", "stridec", "strides"),
                             "a=, b= and c=: strides in elements"),
    "Packed": dict.fromkeys(("block", "columns", "blocksize", "panel"), "nb=64"),
    "dim": dict.fromkeys(("multiple", "divisor", "step", "alignment"), "multiple_of=16"),
    "quantize": dict.fromkeys(("type", "qtype", "dtype", "bits"), "format=tw.Quantized(...)"),
}  # fmt: skip
#: For each parameter that several functions have: names that users may try instead, and an example.
_COMMON = {
    "target": (
        ("isa", "arch", "architecture", "march", "mcpu", "cpu", "device"),
        'target="host", or one of `tilewright targets`',
    ),
    "threads": (("numthreads", "nthreads", "nthread", "njobs", "workers"), "threads=4"),
    "jobs": (("numthreads", "nthreads", "threads", "njobs", "workers", "parallel"), "jobs=4"),
    "type": (("dtype", "datatype"), 'type="f32"'),
    "order": (("layout",), 'order="F"'),
}
#: Functions whose parameters are often passed to another function by mistake, and how to pass them.
_ELSEWHERE = {
    "Schedule": "tw.compile(spec, tw.Schedule({}=...))",
    "Gemm": "tw.Gemm(m, n, k, {}=...)",
    "compile": "tw.compile(spec, schedule, {}=...)",
}


def spelled(error: type[TilewrightError]) -> Callable[[F], F]:
    """Return a decorator by which a call with wrong arguments raises an ``error`` with a hint."""

    def decorate(made: F) -> F:
        called = getattr(made, "__init__") if isinstance(made, type) else made  # noqa: B009

        @wraps(called)
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return called(*arguments, **named)
            except TypeError as wrong:
                if wrong.__traceback__ is None or wrong.__traceback__.tb_next is not None:
                    raise  # the error is from inside the called function, not about its arguments
            given = arguments[1:] if isinstance(made, type) else arguments
            raise _refusal(made, given, named, error)

        if not isinstance(made, type):
            return call  # type: ignore[return-value]
        setattr(made, "__init__", call)  # noqa: B010
        return made

    return decorate


def _refusal(
    made: Callable[..., Any],
    given: Sequence[Any],
    named: Mapping[str, Any],
    error: type[TilewrightError],
) -> TilewrightError:
    """Return the error for a call of ``made`` whose arguments Python has rejected."""
    parameters = inspect.signature(made).parameters
    by_place = [p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    title, usage = made.__name__, f"{made.__name__}({', '.join(parameters)})"
    unknown = next((name for name in named if name not in parameters), None)
    if unknown is not None:
        return error(
            f"{title} has no argument {unknown!r}",
            got=f"{unknown}={_SHOWN.repr(named[unknown])}",
            expected=usage,
            hint=_hint(title, unknown, list(parameters)),
        )
    if len(given) > len(by_place):
        return error(
            f"{title} has {len(by_place)} arguments by position",
            got=f"{len(given)}, the first too many being {_SHOWN.repr(given[len(by_place)])}",
            expected=usage,
            hint="the others are given by name" if len(parameters) > len(by_place) else None,
        )
    twice = [name for name in by_place[: len(given)] if name in named]
    if twice:
        return error(f"{title} is given {twice[0]} twice", got=usage, hint="leave one out")
    required = [p.name for p in parameters.values() if p.default is p.empty]
    missing = [name for name in required if name not in {*by_place[: len(given)], *named}]
    return error(f"{title} lacks {' and '.join(missing) or 'an argument'}", expected=usage)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _hint(title: str, name: str, parameters: Sequence[str]) -> str | None:
    """Return a hint on what the user probably meant by argument ``name``; None without a guess."""
    from difflib import get_close_matches

    plain = _plain(name)
    same = next((p for p in parameters if _plain(p) == plain), None)
    if same is not None:
        return f"{same}="
    guesses = _MEANT.get(title, {}).items()
    if meant := next((hint for guess, hint in guesses if _plain(guess) == plain), None):
        return meant
    for parameter, (others, written) in _COMMON.items():
        if plain in others and parameter in parameters:
            return written
    if alike := get_close_matches(name, parameters, 1, _ALIKE):
        return f"{alike[0]}="
    # ``getattr`` on the package ``tilewright`` imports the module that defines a public name.
    ours = sys.modules[__package__ or ""]
    for other, written in _ELSEWHERE.items():
        if name in inspect.signature(getattr(ours, other)).parameters:
            return written.format(name)
    return None
