"""Random row programs: chains of functions, norms and reductions, on tensors of every type."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright import nn
from tilewright.spec import postops
from tilewright.spec.expression import Expression
from tilewright.spec.network.tensor import Tensor
from tilewright.spec.network.trace import network
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.spec.types import TypeName

from .axes import NONE, RUN_TIME, Level, dealt, title
from .cases import CASES

#: Steps of a chain on ``y``: the operand, and the step. ``w`` has an element for each column, ``s``
#: one for each row.
STEPS: dict[str, tuple[str, Callable[[Any, Any], Expression]]] = {
    "times w": ("w", lambda y, w: y * w),
    "maximum": ("w", postops.maximum),
    "plus s": ("s", lambda y, s: y + s),
    "tanh": ("s", lambda y, s: postops.tanh(y - s)),
    "clip": ("", lambda y, _: postops.clip(y, -1.5, 2)),
    "relu": ("", lambda y, _: postops.relu(y)),
    "gelu_erf": ("", lambda y, _: postops.gelu_erf(y)),
    "silu": ("", lambda y, _: postops.silu(y)),
}
#: Functions that reduce rows, or columns with ``axis=0``.
REDUCING: dict[str, Callable[[Any, int], Expression]] = {
    "softmax": nn.softmax,
    "log_softmax": nn.log_softmax,
    "centred": lambda y, axis: y - nn.mean(y, axis, keepdims=True),
    "of the largest": lambda y, axis: y / (1 + nn.max(postops.abs(y), axis, keepdims=True)),
    "normed": lambda y, axis: y / postops.sqrt(1 + nn.mean(y * y, axis, keepdims=True)),
}
#: Steps and functions that f64 has.
_REAL_STEPS = ("times w", "plus s", "clip", "relu", "maximum")
_REAL_REDUCING = ("centred", "of the largest", "normed")
#: A second result: a value of each row, or of each column with ``axis=0``.
SECOND: dict[str, Callable[[Any, int], Expression]] = {
    "max": nn.max, "min": nn.min, "sum": lambda y, axis: nn.sum(y * y, axis), "mean": nn.mean,
}  # fmt: skip

#: All axes of row programs with their values.
ROW_AXES: dict[str, tuple[Level, ...]] = {
    "rows": (0, 1, 2, 5, 9, RUN_TIME),
    "columns": (1, 3, 16, 40, 63, 64, 65, 100, 128, 200, RUN_TIME),
    "row stride": (NONE, NONE, 256, RUN_TIME),
    "row type": ("f32", "f32", "f64", "bf16", "f16", "f8_e4m3", "f8_e5m2", "s8", "u8"),
    "row result": (NONE, NONE, "f32", "bf16", "f16", "f8_e5m2", "s8", "u8", "s32"),
    "reduced": ("rows", "rows", "columns"),
    "step before": (NONE, NONE, *STEPS),
    "reducing": (NONE, *REDUCING),
    "step after": (NONE, NONE, *STEPS),
    "second result": (NONE, NONE, *SECOND),
    "row schedule": (NONE, NONE, NONE, "64 columns", "two threads"),
}
_NAME = re.compile(
    rf"(?<!['\w.])(compile|network|Tensor|dim|nn|Schedule|{'|'.join(postops.NAMES)})\b(?![='])"
)


@dataclass(frozen=True, slots=True)
class RowCase:
    """One random case: a row program to be made and verified.

    ``levels`` has the value of each axis.
    """

    seed: int
    index: int
    levels: Mapping[str, str]
    arguments: Mapping[str, Any]

    @property
    def schedule(self) -> Schedule:
        """The case's schedule."""
        match self.arguments["row schedule"]:
            case "64 columns":
                return Schedule(tile=(1, 64))
            case "two threads":
                return Schedule(threads=2)
        return Schedule()

    def spec(self) -> Network:
        """Return the case's spec; SpecError if tilewright refuses it."""
        given = self.arguments
        rows, cols = (_size(given[axis], axis) for axis in ("rows", "columns"))
        type_ = given["row type"]
        real: TypeName = "f64" if type_ == "f64" else "f32"
        stride = given["row stride"]
        strides = None if stride is None else (_size(stride, "stride"), 1)
        x = Tensor(type_, (rows, cols), strides)
        operands = {"w": Tensor(real, (cols,)), "s": Tensor(real, (rows, 1))}
        used = {name: operands[name] for name in self._used}
        functions: dict[tuple[str, ...], Callable[..., Any]] = {
            (): lambda x: self._results(x, w=None),
            ("w",): lambda x, w: self._results(x, w=w),
            ("s",): lambda x, s: self._results(x, s=s),
            ("s", "w"): lambda x, w, s: self._results(x, w=w, s=s),
        }
        return network(functions[tuple(self._used)]).of(x=x, **used)

    @property
    def _steps(self) -> tuple[str | None, str | None]:
        return self.arguments["step before"], self.arguments["step after"]

    @property
    def _used(self) -> list[str]:
        """The operands that the steps read."""
        return sorted({STEPS[step][0] for step in self._steps if step is not None} - {""})

    def _results(self, x: Any, **operands: Any) -> Any:
        given = self.arguments
        axis = 0 if given["reduced"] == "columns" else -1
        y = x if given["row type"] in ("f32", "f64") else x.astype("f32")
        before, after = self._steps
        y = _stepped(before, y, operands)
        if (function := given["reducing"]) is not None:
            y = REDUCING[function](y, axis)
        y = _stepped(after, y, operands)
        result = y if given["row result"] is None else y.astype(given["row result"])
        if (second := given["second result"]) is None:
            return result
        return result, SECOND[second](y, axis)

    def python(self, target: str) -> str:
        """Return the statement that makes the kernel and verifies it as the sweep does."""
        made = [repr(self.spec())]
        if self.schedule != Schedule():
            made.append(repr(self.schedule))
        text = f"compile({', '.join(made)}, target={target!r})"
        return _NAME.sub(r"tw.\1", f"{text}.verify(cases={CASES}, seed={self.index})")


def draw_rows(seed: int, index: int) -> RowCase:
    """Return the random row program number ``index`` of a seed."""
    given = dealt(ROW_AXES, seed, index)
    applies = dict.fromkeys(given, True)
    if given["row type"] == "f64":
        applies["row result"] = False
        for axis in ("step before", "step after"):
            applies[axis] = given[axis] in (None, *_REAL_STEPS)
        applies["reducing"] = given["reducing"] in (None, *_REAL_REDUCING)
    if isinstance(given["row stride"], int):
        applies["row stride"] = given["columns"] != RUN_TIME
    if given["rows"] == 0 and given["reduced"] == "columns":
        applies["rows"] = False
    arguments = {
        axis: level if applies[axis] else 1 if axis == "rows" else None
        for axis, level in given.items()
    }
    levels = {axis: title(level) for axis, level in given.items() if applies[axis]}
    return RowCase(seed, index, levels, arguments)


def _size(level: Level, name: str) -> Any:
    return dim(name) if level == RUN_TIME else level


def _stepped(step: str | None, y: Any, operands: Mapping[str, Any]) -> Any:
    """Return a step of the chain on ``y``; ``y`` itself if ``step`` is None."""
    if step is None:
        return y
    name, function = STEPS[step]
    return function(y, operands.get(name))
