"""What is computed when a matrix is transposed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.errors import SpecError

from .sizes import Dim, Size, check_size
from .types import ITEMSIZE, type_name

if TYPE_CHECKING:  # specs without expressions do without their modules
    pass


@dataclass(frozen=True, slots=True)
class Transpose:
    """``out[j, i] = x[i, j]``: x is rows x cols, out cols x rows, both C order.

    ``ldx`` and ``ldout`` count elements and default to tight. A square transposition may be
    done in place (``out is x``).
    """

    rows: Size
    cols: Size
    type: str = "f32"
    ldx: Size | None = None
    ldout: Size | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", type_name(self.type))
        if ITEMSIZE[self.type] < 4:
            raise SpecError("only elements of 4 and 8 bytes are transposed", got=self.type)
        check_size(self.rows, "rows")
        check_size(self.cols, "cols")
        for name, line in (("ldx", self.cols), ("ldout", self.rows)):
            ld = getattr(self, name)
            if ld is None:
                continue
            check_size(ld, name, least=1)
            if isinstance(ld, int) and isinstance(line, int) and ld < line:
                raise SpecError(f"{name} is smaller than a row", got=ld, expected=f"{line} or more")

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Every size known only at the call, by its C parameter's name, in C order."""
        slots = ("rows", "cols", "ldx", "ldout")
        return tuple((s, getattr(self, s)) for s in slots if isinstance(getattr(self, s), Dim))
