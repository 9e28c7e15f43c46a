"""Render the jinja2 templates: data in, C text out. No other module imports jinja2."""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.util import MAGIC_NUMBER
from typing import Any, NamedTuple, Protocol

import jinja2
import numpy as np
from jinja2.bccache import Bucket
from sympy import Expr

from tilewright.errors import PlanError
from tilewright.ir.nodes import Node
from tilewright.ir.ops import Broadcast, Load, Store
from tilewright.ir.values import MaskRegister, Register
from tilewright.spec.dtypes import held
from tilewright.spec.schedule import Schedule
from tilewright.spec.types import ELEMENTS, ITEMSIZE, is_integer
from tilewright.symbolic import c_text, slots

_PER_LINE = 12


class Defined(NamedTuple):
    """The facts about a generated kernel that its caller must know.

    - ``scratch``: True if the kernel takes scratch memory.
    - ``parallel``: True if the kernel has parallel loops.
    - ``configures``: True if the kernel configures a matrix unit. It then also has functions that
      keep the unit configured between calls.
    - ``stack``: maximum number of bytes of stack that a call needs.
    - ``formula``: the kernel's computation as text for people.
    - ``schedule``: the kernel's resolved schedule, or the requested one if no choice was left.
    """

    name: str
    scratch: bool
    parallel: bool
    configures: bool
    stack: int
    formula: str
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class Source:
    """C text and the kernels that it defines."""

    text: str
    kernels: tuple[Defined, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the kernels, in the order of the text."""
        return tuple(kernel.name for kernel in self.kernels)

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The resolved schedules of the kernels."""
        return tuple(kernel.schedule for kernel in self.kernels)


class Shelf(Protocol):
    """Storage that keeps compiled templates from one process to the next.

    ``template`` is the path of the template. ``name`` changes with everything on which its bytecode
    depends.
    """

    def read(self, template: str, name: str) -> bytes | None:
        """Return the bytes written under ``name``; None if there are none that may be used."""

    def write(self, template: str, name: str, data: bytes) -> None:
        """Keep ``data`` under ``name``, if that is possible."""


class _Compiled(jinja2.BytecodeCache):
    """Keeps compiled templates as bytecode: compiling takes ten times as long as reading."""

    shelf: Shelf | None = None

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Return the path of a template as the key of its bucket."""
        return filename or name

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give ``bucket`` its bytecode from the shelf, if there is any."""
        data = None if self.shelf is None else self.shelf.read(bucket.key, _name(bucket))
        if data is not None:
            bucket.bytecode_from_string(data)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the bytecode of ``bucket`` to the shelf."""
        if self.shelf is not None:
            self.shelf.write(bucket.key, _name(bucket), bucket.bytecode_to_string())


def _name(bucket: Bucket) -> str:
    return f"{bucket.key} {bucket.checksum} {jinja2.__version__} {MAGIC_NUMBER.hex()}"


_compiled = _Compiled()


def keep_compiled(shelf: Shelf) -> None:
    """Store compiled templates in ``shelf`` from now on. What is read from it is executed."""
    _compiled.shelf = shelf


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tilewright.templates", ""),
        bytecode_cache=_compiled,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "c": c_text,
        "ctype": lambda name: ELEMENTS[name].ctype,
        "itemsize": ITEMSIZE.__getitem__,
        "named": _named,
        "spell": _spell,
        "within": _within,
        "unsigned": _unsigned,
        "group_bytes": _group_bytes,
        "number": _number,
        "exact": _exact,
        "data": _data,
        "held_bits": _held_bits,
        "slots": slots,
        "quoted": json.dumps,
        "unspelled": _unspelled,
    }
    return environment


def _unspelled(node: Node) -> str:
    """Raise PlanError for a node of a kind that the templates do not know."""
    raise PlanError(
        f"{node.kind} cannot be written in C",
        got=node,
        expected="a kind with a branch in templates/kernel/ops.c.j2 or nest.c.j2",
    )


def _named(operand: Register | MaskRegister | Expr | int | None) -> str:
    """Return the C text of an operation's operand: a register's name, or a formula."""
    return operand.name if isinstance(operand, Register | MaskRegister) else str(operand)


def _group_bytes(op: Load | Store | Broadcast) -> int:
    """Return the bytes of the group of elements that ``op`` moves for one lane or one factor."""
    return op.group * ITEMSIZE[op.memory] if op.memory else 0


def _unsigned(count: Expr) -> str:
    """Return ``count`` as C text of type size_t, to be multiplied by the size of an element."""
    return f"(size_t){_within(c_text(count))}" if slots(count) else c_text(count)


_SIMPLE = re.compile(r"\w+\Z")
_ELEMENT = re.compile(r"(\w+) \+ (.+)\Z")
#: Matches an operand with its own parentheses in the C code of an instruction, such as ``({x})`` or
#: ``*({p})``. The parentheses of a function call do not match.
_ENCLOSED = re.compile(r"(?<!\w)(\*?)\(\{(\w+)\}\)")


def _spell(spelling: str, **operands: object) -> str:
    """Return the C text of ``spelling`` with its operands, without needless parentheses."""

    def enclosed(found: re.Match[str]) -> str:
        star, operand = found[1], str(operands[found[2]])
        if _SIMPLE.match(operand):
            text = star + operand
        elif star and (place := _ELEMENT.match(operand)):
            text = f"{place[1]}[{place[2]}]"
        else:
            text = f"{star}({operand})"
        return re.sub(r"[{}]", r"\g<0>\g<0>", text)  # double the braces for format_map below

    return _ENCLOSED.sub(enclosed, spelling).format_map(operands)


def _within(text: str) -> str:
    """Return the C expression ``text`` as the operand of a cast, for example ``(x + 1)`` for ``x +
    1``.
    """
    return text if _SIMPLE.match(text) else f"({text})"


def _number(source: float | str | Expr | Register, element: str) -> str:
    """Return ``source`` as a C literal of type ``element``, in digits that C reads back exactly.

    Names of parameters and registers are returned unchanged.
    """
    if isinstance(source, str):
        return source
    if isinstance(source, Register):
        return source.name
    if isinstance(source, Expr):
        return f"({ELEMENTS[element].ctype})({c_text(source)})"
    if is_integer(element) or not math.isfinite(source):
        return _special(source, element)
    return str(np.float32(source)) + "f" if element == "f32" else repr(float(source))


def _special(source: float, element: str) -> str:
    """Return the C text of an integer, an infinity or a NaN, for example ``(1.0f / 0.0f)``."""
    if is_integer(element):
        least = {-(2**31): "(-2147483647 - 1)", -(2**63): "(-9223372036854775807 - 1)"}
        return least.get(int(source), str(int(source)))
    end = "f" if element == "f32" else ""
    return f"({0.0 if math.isnan(source) else math.copysign(1, source)}{end} / 0.0{end})"


def _hexadecimal(source: float, element: str) -> str:
    """Return a C literal that is exact to the bit, for example ``0x1.99999a0000000p-4f``."""
    if is_integer(element) or not math.isfinite(source):
        return _special(source, element)
    end = "f" if element == "f32" else ""
    return float(_single(source) if end else source).hex() + end


def _exact(source: float | int, element: str) -> str:
    """Return the exact value of a literal, for example ``0x1.99999ap-4`` for ``0.1f``; "" if the
    decimal digits are exact.
    """
    if is_integer(element) or not math.isfinite(source):
        return ""
    value = _single(source) if element == "f32" else float(source)
    decimal = Fraction(_number(source, element).rstrip("f"))
    return "" if decimal == Fraction(value) else _short(value.hex())


def _short(hexadecimal: str) -> str:
    """Remove trailing zeros of a hexadecimal fraction, for example ``0x1.8p+0`` for
    ``0x1.8000p+0``.
    """
    mantissa, power, exponent = hexadecimal.partition("p")
    return mantissa.rstrip("0").removesuffix(".") + power + exponent


def _single(number: float) -> float:
    """Return the f32 number that is nearest to ``number``."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _data(numbers: list[float], element: str) -> str:
    """Return the elements of a C array, exact to the bit, ``_PER_LINE`` in a line."""
    literals = [_literal(number, element) for number in numbers]
    lines = (literals[i : i + _PER_LINE] for i in range(0, len(literals), _PER_LINE))
    return ",\n".join("    " + ", ".join(line) for line in lines)


def _held_bits(numbers: tuple[float, ...], element: str) -> str:
    """Return the bits of ``numbers`` of type ``element`` as C text: a list of signed integers."""
    found = held(numbers, element)
    return ", ".join(map(str, found.view(f"i{found.itemsize}")))


def _literal(number: float, element: str) -> str:
    if isinstance(number, int):
        return hex(number) if ELEMENTS[element].bits else _number(number, "s32")
    if abs(number) < 2**31 and number.is_integer() and str(number) != "-0.0":
        return str(int(number))
    literal = _hexadecimal(number, element)
    return _short(literal) if "p" in literal else literal


def render(template: str, **context: Any) -> str:
    """Return the text of ``templates/<template>``; an undefined name is an error."""
    return _environment().get_template(template).render(**context)
