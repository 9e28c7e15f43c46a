"""Random batch-reduce products run by the interpreter, and compared with numpy."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import SpecError
from tilewright.generate import interpret_kernel, plan_for, program_for
from tilewright.interpret.run import Counts, interpret
from tilewright.ir.nest import Program
from tilewright.isa.target import Target
from tilewright.plan.formats.lookup import format_of, formats_of
from tilewright.plan.formats.quantized_a import rows_format
from tilewright.plan.formats.quantized_b import quantized_format
from tilewright.runtime.call.pack_source import pack_a_for
from tilewright.runtime.fuzz.cases import draw
from tilewright.runtime.quantized.matrix import QuantizedMatrix, quantized_bytes
from tilewright.runtime.reference.arguments import Sample, gain, matrices, sample
from tilewright.runtime.reference.gemm import expected
from tilewright.runtime.reference.packed_d import packed_expected
from tilewright.runtime.reference.quantized import packed_rows
from tilewright.spec.gemm import Gemm
from tilewright.spec.pack import Pack, QuantizeRows
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import ArrayParameter, packs, signature

#: Multiply-adds of one element that a case may take, and what a size of the call counts as.
MOST, USUAL = 40_000, 35


def small_cases(seed: int, count: int) -> Iterator[tuple[Gemm, Schedule]]:
    """The first ``count`` of a seed's products that are legal and not too large."""
    index = found = 0
    while found < count:
        one = draw(seed, index)
        index += 1
        try:
            spec = one.spec()
        except SpecError:
            continue
        sizes = [spec.m, spec.n, spec.k, spec.batch.count if spec.batch else 1]
        if prod(size if isinstance(size, int) else USUAL for size in sizes) <= MOST:
            found += 1
            yield spec, one.schedule


class Interpreted:
    """A product's plan and program, and calls of it."""

    def __init__(self, spec: Gemm, schedule: Schedule, target: Target) -> None:
        self.spec, self.target = spec, target
        self.plan = plan_for(spec, schedule, target)
        self.program: Program = program_for(self.plan)
        self.signature = signature(spec, formats_of(spec, target))

    def sample(self, seed: int, *, whole: bool) -> Sample:
        """Arguments of one call, small whole numbers or any."""
        rng = np.random.default_rng(seed)
        return sample(self.signature, rng, varied=True, whole=whole, gain=gain(self.spec))

    def sizes(self, held: Sample) -> dict[str, int]:
        """The run-time sizes by slot."""
        return {size.slot: held.size(size.dim) for size in self.signature.sizes}

    def run(self, held: Sample) -> Counts:
        """Run on ``held``; AssertionError that names the first element that is not numpy's."""
        pairs = list(zip(self.signature.arrays, held.arrays, strict=True))
        named = {parameter.name: array for parameter, array in pairs}
        got = named[self.signature.output.name]
        for name in (name for name in ("a", "b", "b2") if name in named):
            named[name] = list(matrices(self.signature.array(name), held, self.signature))
        if packs(self.spec):
            named["out"] = np.zeros((held.size(self.spec.m), held.size(self.spec.n)))
        right = expected(self.spec, {"out": got, **named, **held.scalars})
        scalars = [held.scalars[scalar.name] for scalar in self.signature.scalars]
        given = [self._given(parameter, array) for parameter, array in pairs]
        sizes = [*self.sizes(held).values()]
        counts = interpret(self.plan, self.program, given, sizes, scalars)
        if packs(self.spec):
            right, got = packed_expected(right, self.spec, self.target).shown(got)
        if (wrong := np.argwhere(right.wrong(got))).size:
            at = tuple(map(int, wrong[0]))
            raise AssertionError(
                f"{len(wrong)} of {got.size} elements are wrong; {at} is {got[at]!r}, "
                f"expected {right.values.value[at]!r}, with {dict(held.sizes)}"
            )
        return counts

    def _given(self, parameter: ArrayParameter, array: Any) -> Any:
        if not parameter.packed:
            return array
        if parameter.name == "a":
            return self._packed_a(array)
        if parameter.kind == "sequence":
            return [self._packed(one) for one in array]
        packed = [self._packed(one) for one in (array if array.ndim == 3 else [array])]
        return np.concatenate([np.empty(0, np.uint8), *packed])  # none in an empty batch

    def _packed_a(self, a: Any) -> Any:
        """What ``kernel.pack_a`` makes of A, interpreted."""
        packing, turned = pack_a_for(self.spec, a)
        if isinstance(packing, QuantizeRows):
            rows = rows_format(self.spec, self.target).of(packing.k, len(turned))
            record = np.full((1, rows.nbytes), 255, np.uint8)
            sizes = {"m": len(turned), "lda": packing.k}
            slots = [sizes[slot] for slot, _ in packing.runtime_sizes()]
            given = np.ascontiguousarray(turned).ravel()
            interpret_kernel(packing, Schedule(), self.target, [given, record], slots)
            assert (record == packed_rows(packing, self.target, turned)).all()
            return record[0]
        sizes = {"k": turned.shape[0], "n": turned.shape[1]}
        sizes["ldb"] = sizes["n" if packing.order == "C" else "k"]
        form = format_of(packing, self.target).of(sizes["k"], sizes["n"])
        out = np.zeros((1, form.nbytes), np.uint8)
        lie = np.ascontiguousarray if packing.order == "C" else np.asfortranarray
        slots = [sizes[slot] for slot, _ in packing.runtime_sizes()]
        given = lie(turned).ravel(order="K")
        interpret_kernel(packing, Schedule(), self.target, [given, out], slots)
        return out[0]

    def _packed(self, b: Any) -> Any:
        """What ``tw.Pack`` makes of B, interpreted as well; of few bits the bytes by numpy."""
        spec = self.spec
        if isinstance(b, QuantizedMatrix):
            return quantized_bytes(b, quantized_format(spec, self.target))
        nb = getattr(spec.b, "nb", None)
        packing = Pack(
            *spec.sizes_of_b, spec.rounded[1], a=spec.rounded[0], nb=nb, source=spec.b.type,
            sums=spec.sum_type,
        )  # fmt: skip
        k, n = b.shape
        sizes = [{"k": k, "n": n}[slot] for slot, _ in packing.runtime_sizes()]
        out = np.zeros((1, format_of(packing, self.target).of(k, n).nbytes), np.uint8)
        interpret_kernel(packing, Schedule(), self.target, [np.ascontiguousarray(b), out], sizes)
        return out[0]
