"""Classes of kernels that pack a matrix, or copy it: a call without an output makes one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.plan.formats.named import format_named
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.call.bound_sizes import Known
from tilewright.runtime.call.packed_matrix import PackedMatrix, matrix_in, new_block, packed_row
from tilewright.runtime.call.scalars import is_number
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.pack import Copy, Pack, PackQuantized, QuantizeRows
from tilewright.spec.signature import ArrayParameter, PackedBytes, has_formats, packs
from tilewright.spec.sizes import Size

from .kernel import Kernel


def _format_of(p: ArrayParameter) -> Any:
    """Return the format of a packed matrix that a kernel reads or writes."""
    form = format_named(p.format)
    assert form is not None, "a kernel knows its formats"
    return form


def into(kernel: Kernel, arrays: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Pack into an array that the call passes."""
    if any(isinstance(s, PackedBytes) for s in kernel.signature.output.shape):
        held, _ = kernel._arrange(arrays, named)
        kernel._check(held)  # Python alone checks bytes that depend on the sizes of the call
    return Kernel.__call__(kernel, *arrays, **named)


class Packer(Kernel):
    """A compiled ``tw.Pack``: ``packer(b)`` returns a PackedMatrix.

    ``packer(b, out)`` writes the bytes of each matrix to a row of ``out``, an array of uint8.
    """

    __slots__ = ()

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Return a matrix B packed. B is k x n, or count x k x n for a batch."""
        if len(arrays) != 1 or out is not None or named:
            return into(self, arrays, named if out is None else {"out": out, **named})
        spec, b = self.spec, as_array(arrays[0], "b")
        assert isinstance(spec, Pack)
        k, n = b.shape[-2:] if isinstance(b, np.ndarray) and b.ndim > 1 else (0, 0)
        form = _format_of(self.signature.output).of(k, n)
        count = len(b) if spec.batch is not None and isinstance(b, np.ndarray) and b.ndim else 1
        block = new_block(count * form.nbytes)
        super().__call__(b, matrix_in(block).reshape(count, form.nbytes))
        shape = (*b.shape[:-2], n, k) if spec.rows else b.shape
        return PackedMatrix.owning(form.text, shape, block)


class QuantizedPacker(Kernel):
    """A compiled ``tw.PackQuantized``: ``packer(b)`` returns the PackedMatrix of a QuantizedMatrix.

    ``packer(q, scales, zeros, out)`` writes the bytes to ``out``, an array of uint8 with one row.
    ``zeros`` is left out if the format has no zero points for each block.
    """

    __slots__ = ()

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Return a matrix B packed. B is a QuantizedMatrix of k x n."""
        if len(arrays) != 1 or out is not None or named:
            return super().__call__(*arrays, out=out, **named)
        from .call.pack_source import parts_of

        spec = self.spec
        assert isinstance(spec, PackQuantized)
        form = _format_of(self.signature.output)
        parts = parts_of(spec, arrays[0])
        block = new_block(form.nbytes)
        super().__call__(*parts, matrix_in(block).reshape(1, form.nbytes))
        return PackedMatrix.owning(form.text, arrays[0].shape, block)


class RowQuantizer(Kernel):
    """A compiled ``tw.QuantizeRows``: ``quantizer(a)`` returns a PackedMatrix.

    ``quantizer(a, out)`` writes the bytes to ``out``, an array of uint8 with one row.
    """

    __slots__ = ()

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Return a matrix A quantized and packed. A is m x k."""
        if len(arrays) != 1 or out is not None or named:
            return into(self, arrays, named if out is None else {"out": out, **named})
        spec, a = self.spec, as_array(arrays[0], "a")
        assert isinstance(spec, QuantizeRows)
        rows = a.shape[0] if isinstance(a, np.ndarray) and a.ndim == 2 else 0
        form = _format_of(self.signature.output).of(spec.k, rows)
        block = new_block(form.nbytes)
        super().__call__(a, matrix_in(block).reshape(1, form.nbytes))
        return PackedMatrix.owning(form.text, a.shape, block)


class Copier(Kernel):
    """A compiled ``tw.Copy``: ``copier(a, out=d)`` returns d; a packed matrix is a PackedMatrix.

    The bytes of a packed matrix may also be passed as an array of uint8 with one row.
    """

    __slots__ = ()

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Return the matrix in the layout and type of the output."""
        spec = self.spec
        assert isinstance(spec, Copy)
        if not has_formats(spec) or len(arrays) != 1 or named:
            return super().__call__(*arrays, out=out, **named)
        a, d = self.signature.arrays
        given = arrays[0]
        if a.format and isinstance(given, PackedMatrix):
            given = packed_row(given, a.format)
        if out is not None or not d.format:
            return super().__call__(given, out=out)
        form = _format_of(d)
        block = new_block(form.nbytes)
        super().__call__(given, out=matrix_in(block).reshape(1, form.nbytes))
        return PackedMatrix.owning(form.text, (form.k, form.n), block)


class PackingProduct(Kernel):
    """A compiled ``tw.Gemm`` whose D is packed: ``kernel(a, b)`` returns a PackedMatrix.

    ``kernel(a, b, out=d)`` writes the bytes to ``d``, an array of uint8 with one row.
    """

    __slots__ = ()

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Return D packed, as ``pack_a`` of the next kernel returns it."""
        if out is not None:
            return into(self, arrays, {"out": out, **named})
        from tilewright.plan.formats.lookup import format_of_d

        spec = self.spec
        assert isinstance(spec, Gemm)
        n, m = self._sizes(arrays, named, (spec.n, spec.m))
        form: Any = format_of_d(spec, self.isa).of(n, m)
        block = new_block(form.nbytes)
        found = super().__call__(*arrays, out=matrix_in(block).reshape(1, form.nbytes), **named)
        packed = PackedMatrix.owning(form.text, (m, n), block)
        return (packed, *found[1:]) if isinstance(found, tuple) else packed

    def _sizes(
        self, arrays: tuple[Any, ...], named: dict[str, Any], wanted: tuple[Size, ...]
    ) -> list[int]:
        """Return the values of ``wanted`` in a call; 0 for sizes that its arguments do not tell."""
        if all(isinstance(size, int) for size in wanted):
            return [size for size in wanted if isinstance(size, int)]
        from .call.argument_checks import learn, seen

        given = {**dict(zip(self.signature.positional, arrays, strict=False)), **named}
        inputs = [
            p
            for p in self.signature.arrays
            if not is_number(given.get(p.name, 0)) and p.role == "in"
        ]
        known = Known()
        learn(inputs, seen(inputs, [given[p.name] for p in inputs]), known)
        return [known.value(size) if known.has(size) else 0 for size in wanted]


#: Kernel classes for specs whose calls differ from those of a product.
_PACKERS: dict[type[Any], type[Kernel]] = {
    Pack: Packer,
    PackQuantized: QuantizedPacker,
    QuantizeRows: RowQuantizer,
    Copy: Copier,
}


def packer_of(spec: Spec) -> type[Kernel]:
    """Return the class of the kernels of ``spec``: ``Kernel`` if they write no packed matrix."""
    if isinstance(spec, Gemm):
        return PackingProduct if packs(spec) else Kernel
    return _PACKERS.get(type(spec), Kernel)
