"""Kernels that pack: called on B they return a PackedMatrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.pack import Pack

from .abi import aligned
from .kernel import Kernel
from .packed import PackedMatrix


class Packer(Kernel):
    """A ``tw.Pack`` compiled: ``packer(b)`` is a PackedMatrix.

    ``packer(b, out)`` writes the bytes of one matrix to each line of ``out``, an array of uint8.
    """

    __slots__ = ()

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Pack B: k x n, or with a batch count x k x n."""
        if len(arrays) != 1 or out is not None or named:
            return super().__call__(*arrays, out=out, **named)
        from tilewright.packed_format import format_of

        spec, b = self.spec, arrays[0]
        assert isinstance(spec, Pack)
        form = format_of(spec, self.isa)
        count = len(b) if spec.batch is not None and isinstance(b, np.ndarray) and b.ndim else 1
        data = aligned(count * form.nbytes)
        super().__call__(b, data.reshape(count, form.nbytes))
        return PackedMatrix(form.text, b.shape, data)
