"""Define ``Transpose``, the spec of a kernel that transposes a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from .sizes import Dim, Size, Spec, check_dims, check_extent, check_size, sizes_word
from .types import ITEMSIZE, type_name


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True)
class Transpose(Spec):
    """A transposition: ``out[j, i] = x[i, j]`` for x of shape (rows, cols), both in C order.

    A square matrix may be transposed in place (``out is x``).

    Parameters
    ----------
    rows, cols : int or Dim
        Sizes of x.
    type : str or numpy type
        Element type.
    ldx, ldout : int or Dim, optional
        Leading dimensions in elements; by default tight.

    Raises
    ------
    SpecError
        The type or a size is not possible.

    Examples
    --------
    >>> turn = tw.compile(tw.Transpose(2, 3, "f32"))
    >>> turn(np.float32([[1, 2, 3], [4, 5, 6]]))
    array([[1., 4.], [2., 5.], [3., 6.]], dtype=float32)
    """

    routine: ClassVar[str] = "tilewright.routines.transpose"

    rows: Size
    cols: Size
    type: str = "f32"
    ldx: Size | None = None
    ldout: Size | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", type_name(self.type))
        for name in ("rows", "cols"):
            object.__setattr__(self, name, check_size(getattr(self, name), name))
        for name, line, lines in (
            ("ldx", self.cols, self.rows), ("ldout", self.rows, self.cols)
        ):  # fmt: skip
            ld = line
            if getattr(self, name) is not None:
                ld = check_size(getattr(self, name), name, least=1)
                object.__setattr__(self, name, ld)
            if isinstance(ld, int) and isinstance(line, int) and ld < line:
                raise SpecError(f"{name} is smaller than a row", got=ld, expected=f"{line} or more")
            check_extent((lines, ld), ITEMSIZE[self.type], "x" if name == "ldx" else "out")
        check_dims(self.runtime_sizes())

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Return (C parameter, dim) for each size known only at the call, in parameter order."""
        slots = ("rows", "cols", "ldx", "ldout")
        return tuple((s, getattr(self, s)) for s in slots if isinstance(getattr(self, s), Dim))

    def words(self) -> list[str]:
        """Return the words with which the names of such kernels begin."""
        return ["transpose", self.type, sizes_word(("rows", self.rows), ("cols", self.cols))]
