"""Pack the checked arguments of a call into the struct that the C dispatcher takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.arrays.memory import ALIGNMENT, address

from .argument_checks import Checked
from .bound_sizes import Array
from .packed_matrix import memory


class Frame:
    """Checked arguments of a call as the C struct tw_frame, at ``address``.

    The object keeps everything alive that the struct points to. ``sizes`` and ``scalars`` are the
    integers and doubles that C gets. ``owners`` are the caller's arrays if the checked ones are
    views of them. ``functions`` are the addresses of the kernel's C functions ``<name>_invoke`` and
    ``<name>_scratch_bytes``.
    """

    __slots__ = ("_blocks", "_checked", "address", "arrays", "scalars", "sizes", "words")

    def __init__(
        self, functions: tuple[int, int], checked: Checked, scalars: tuple[float, ...],
        owners: tuple[Any, ...] = (),
    ) -> None:  # fmt: skip
        pointers: list[int] = []
        lists: list[Array] = []
        for given in checked.arrays:
            if isinstance(given, tuple):
                given = np.array([address(memory(item)) for item in given], np.int64)
                lists.append(given)
            pointers.append(address(memory(given)))
        blocks: tuple[Array, ...] = (
            np.array(pointers, np.int64),
            np.array(checked.sizes, np.int64),
            np.array(scalars, np.float64),
        )
        self.sizes: tuple[int, ...] = checked.sizes
        self.scalars: tuple[float, ...] = scalars
        self.words: Array = np.array([*functions, *map(address, blocks), 0, 0], np.int64)
        self.address: int = address(self.words)
        self.arrays: tuple[Any, ...] = owners or checked.arrays
        self._checked = checked.arrays
        self._blocks = (*blocks, *lists)

    def own_scratch(self) -> None:
        """Allocate scratch memory that belongs to this frame, and is used at each run of it.

        A run that finds it in use by another thread, or too small because the number of threads
        has grown, takes other memory.
        """
        from .dispatch_python import scratch_bytes

        size = scratch_bytes(self.address)
        if size > 0:
            memory = np.empty(size + ALIGNMENT, np.uint8)
            self.words[-2:] = -(-address(memory) // ALIGNMENT) * ALIGNMENT, size
            self._blocks = (*self._blocks, memory)

    def touch(self) -> None:
        """Read the pointers and sizes into the caches, without the data that they point to."""
        for block in self._blocks[:3]:
            block.sum()
