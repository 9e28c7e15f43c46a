"""jinja2 stands here and nowhere else: templates in, C text out."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache
from importlib.util import MAGIC_NUMBER
from typing import Any, Protocol

import jinja2
from jinja2.bccache import Bucket
from sympy import Expr

from tilewright.ir.ops import Register
from tilewright.spec.types import ELEMENTS, ITEMSIZE
from tilewright.symbolic import c_text, slots

_PER_LINE = 12


@dataclass(frozen=True, slots=True)
class Source:
    """C text and the names of the kernels it defines."""

    text: str
    names: tuple[str, ...]


class Shelf(Protocol):
    """Keeps bytes by name from one process to the next."""

    def read(self, name: str) -> bytes | None:
        """What was written under ``name``; None where nothing is there that may be used."""

    def write(self, name: str, data: bytes) -> None:
        """Keep ``data`` under ``name``, if that is possible."""


class _Compiled(jinja2.BytecodeCache):
    """The templates as Python bytecode: compiling them takes ten times as long as reading it."""

    shelf: Shelf | None = None

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give ``bucket`` the bytecode that was kept, if there is any."""
        data = None if self.shelf is None else self.shelf.read(_name(bucket))
        if data is not None:
            bucket.bytecode_from_string(data)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the bytecode of ``bucket``."""
        if self.shelf is not None:
            self.shelf.write(_name(bucket), bucket.bytecode_to_string())


def _name(bucket: Bucket) -> str:
    return f"{bucket.key} {bucket.checksum} {jinja2.__version__} {MAGIC_NUMBER.hex()}"


_compiled = _Compiled()


def keep_compiled(shelf: Shelf) -> None:
    """Keep compiled templates in ``shelf`` from now on: what it returns is executed."""
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
        "spell": lambda spelling, **operands: spelling.format_map(operands),
        "number": _number,
        "data": _data,
        "slots": slots,
    }
    return environment


def _named(operand: Register | int | None) -> str:
    """An operation's argument in C."""
    return operand.name if isinstance(operand, Register) else str(operand)


def _number(source: float | str | Expr | Register, element: str) -> str:
    """A literal of ``element``'s type, exact to the bit; names stay as they are."""
    if isinstance(source, str):
        return source
    if isinstance(source, Register):
        return source.name
    if isinstance(source, Expr):
        return f"({ELEMENTS[element].ctype})({c_text(source)})"
    if element == "s32":
        return "(-2147483647 - 1)" if source == -(2**31) else str(int(source))
    if element == "f32" and math.isfinite(source):
        source = _single(source)
    end = "f" if element == "f32" else ""
    if math.isfinite(source):
        return float(source).hex() + end
    return f"({0.0 if math.isnan(source) else math.copysign(1, source)}{end} / 0.0{end})"


def _single(number: float) -> float:
    """The nearest number of 32 bits, which C may write in any way."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _data(numbers: list[float], element: str) -> str:
    """The elements of an array in C, exact to the bit, ``_PER_LINE`` to a line."""
    literals = [_literal(number, element) for number in numbers]
    lines = (literals[i : i + _PER_LINE] for i in range(0, len(literals), _PER_LINE))
    return ",\n".join("    " + ", ".join(line) for line in lines)


def _literal(number: float, element: str) -> str:
    if isinstance(number, int):
        return hex(number) if ELEMENTS[element].bits else _number(number, "s32")
    if abs(number) < 2**31 and number.is_integer() and str(number) != "-0.0":
        return str(int(number))
    mantissa, power, exponent = _number(number, element).partition("p")
    return mantissa.rstrip("0").removesuffix(".") + power + exponent if power else mantissa


def render(template: str, **context: Any) -> str:
    """The text of ``templates/<template>`` with ``context``; an undefined name is an error."""
    return _environment().get_template(template).render(**context)
