"""The table of a kernel's arrays, as checks in compiled code read it: a row of numbers for each."""

from __future__ import annotations

#: Columns: sizes of up to three axes, the leading dimension, the distance of matrices of a stack
#: (TIGHT: one behind the other), bytes of an element, the contiguous axis from the last, whether
#: it is written, and the number of bytes of which its address is a multiple.
AXES, LEADING, STEP, ITEM, LINE, WRITTEN, ALIGNED = 3, 3, 4, 5, 6, 7, 8
TIGHT = -1
#: A size below it is a dim: its number is what is missing.
DIM = -(1 << 60)
