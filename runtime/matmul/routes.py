"""The table in which C looks for the kernel of a product, so that Python need not decide again."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from tilewright.runtime.arrays.dtypes import loaded
from tilewright.runtime.call import dispatch
from tilewright.runtime.kernel import Kernel
from tilewright.spec.types import ITEMSIZE

from .families import CUBES, Class, Family

#: The sizes of a route in the order of its struct, and the words before and in each route.
SIZES = ("m", "n", "k", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c", "count")
_HEAD, _WORDS = 4, 2 + 9 + 8 + 6 + 1 + len(SIZES)
#: Products of more kinds than these are decided in Python each time.
_MOST = 256


class Routes:
    """Kernels by the arrays that they serve; ``decide`` runs the one that serves a tuple of three.

    Routes are added and never changed: a call may read the table while another one adds to it.
    """

    def __init__(self) -> None:
        self._words: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(
            _HEAD + _MOST * _WORDS, np.int64
        )
        self._words[:_HEAD] = (
            id(np.ndarray), object.__basicsize__, tuple.__basicsize__, 0
        )  # fmt: skip
        self._lock, self._known = Lock(), dict[Family, Kernel]()
        self.decide: Callable[[tuple[Any, ...]], int] = self._load

    def _load(self, arrays: tuple[Any, ...]) -> int:
        """What ``decide`` is first: the dispatcher is loaded when it is first asked."""
        self.decide = dispatch.dispatcher().matmul(self._words)
        return self.decide(arrays)

    def add(self, family: Family, kernel: Kernel) -> None:
        """Have C call ``kernel`` for products of ``family`` from now on."""
        if (
            kernel.emulated is not None
            or kernel.signature.scalars
            or len(kernel.signature.arrays) > 3
        ):
            return
        with self._lock:
            count = len(self._known)
            if family in self._known or count == _MOST:
                return
            self._known[family] = kernel  # which keeps its library loaded
            start = _HEAD + count * _WORDS
            self._words[start : start + _WORDS] = _route(family, kernel)
            self._words[3] = count + 1


def _route(family: Family, kernel: Kernel) -> list[int]:
    """The fields of struct tw_route."""
    slots = [_size_of(parameter.slot) for parameter in kernel.signature.sizes]
    return [
        *kernel.functions,
        *(id(loaded(type_).type) for type_ in family.types),
        *(ITEMSIZE[type_] for type_ in family.types),
        *family.axes,
        *family.sizes.least, *family.sizes.most,
        _takes(family), *family.sizes.total, *_lies(family.sizes), family.sizes.above,
        len(slots), *slots, *[0] * (len(SIZES) - len(slots)),
    ]  # fmt: skip


def _takes(family: Family) -> int:
    """What the kernel takes: TW_ONE, TW_STACK or TW_ANY."""
    return 1 if family.sizes.stacked else 2 if family.sizes.shape in ("thin", "blocks") else 0


def _lies(sizes: Class) -> tuple[int, int]:
    """How matrices of a stack lie, TW_ANYHOW, TW_TIGHT or TW_LOOSE; and up to which number cubes
    in one piece have another kernel.
    """
    lies = 1 if sizes.tiny else 2 if sizes.loose else 0
    others = (sizes.tiny or sizes.above > 0) and not sizes.cube
    return lies, CUBES if others else 0


def _size_of(slot: str) -> int:
    return SIZES.index("ldc" if slot == "ldd" else slot)
