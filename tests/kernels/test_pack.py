"""Packing kernels: every byte of every format, against the layout in numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases, sampled
from support.products.packed import DTYPES, convert, differing, draw, layout
from support.products.space import rng_of
from support.products.trial import Lab, lab

from tilewright.generate import Request, generate
from tilewright.isa.target import Target
from tilewright.plan.formats.lookup import format_of
from tilewright.runtime.machine.host import resolve
from tilewright.spec.operands import Strided
from tilewright.spec.pack import Pack
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim, Size, dim

TARGETS = (
    "scalar", "avx2", "avx2+vnni", "avx512", "avx512+vnni+bf16", "amx", "neon", "neon+dotprod",
    "neon+dotprod+i8mm+bf16+fp16fml",
)  # fmt: skip
#: Types of A and B: every instruction, every shift, every conversion.
PAIRS: Any = (
    ("u8", "s8"), ("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("bf16", "bf16"), ("f16", "f16"),
    ("f32", "bf16"), ("f32", "f32"), ("f64", "f64"), ("f8_e4m3", "f8_e5m2"), ("f32", "f8_e4m3"),
)  # fmt: skip
POISON = 0xFF


@dataclass(frozen=True)
class Case:
    """A packing, and the values of its dims in one call."""

    spec: Pack
    sizes: dict[str, int]

    def size(self, size: Size | None, absent: int) -> int:
        if size is None:
            return absent
        return self.sizes[size.name] if isinstance(size, Dim) else size

    @property
    def lines(self) -> tuple[int, int]:
        """How many contiguous lines B has, and their length."""
        k, n = self.spec.k, self.spec.n
        assert isinstance(k, int) and isinstance(n, int)
        return (k, n) if self.spec.order == "C" else (n, k)

    @property
    def leading(self) -> int:
        return self.size(self.spec.ldb, self.lines[1])

    @property
    def count(self) -> int:
        return 1 if self.spec.batch is None else self.size(self.spec.batch.count, 1)

    @property
    def stride(self) -> int:
        tight = self.lines[0] * self.leading
        return tight if self.spec.batch is None else self.size(self.spec.batch.b, tight)


def cases_of(target: Target) -> Iterator[Case]:
    """Every pair of types in both orders, half of them converted; the rest by chance."""
    for index, (a, b) in enumerate(PAIRS * 2):
        rng = rng_of(target.name, index)
        k, n = int(rng.integers(1, 70)), int(rng.integers(0, 35)) * 2 + 1
        order = "CF"[index // len(PAIRS)]
        converted = b not in ("f32", "f64") and index % 3 == 0
        line = n if order == "C" else k
        batch = (None, Strided(2), Strided(dim("count")), Strided(2, b=dim("apart")))[index % 4]
        spec: Any = Pack(
            k if index % 7 else 1300,
            n,
            b,
            a=a,
            nb=(None, 16, 1, 20, 33)[index % 5],
            source="f32" if converted else b,
            order=order,  # type: ignore[arg-type]
            ldb=(None, line + 3 if index % 7 else 1400, dim("ldb"))[index % 3],
            batch=batch,
        )
        leading = max(spec.k, spec.n) + int(rng.integers(0, 9))
        apart = 1410 * (leading + 9)
        yield Case(spec, {"ldb": leading, "count": int(rng.integers(0, 4)), "apart": apart})


#: Types of A and B, what is given, k, n and nb: beyond the columns and lines that one call takes.
COLUMNS: Any = (
    ("u8", "s8", "s8", 300, 290, None), ("s8", "s8", "s8", 139, 530, 272),
    ("u8", "u8", "f32", 130, 300, 144), ("bf16", "bf16", "bf16", 150, 290, None),
    ("bf16", "bf16", "f32", 97, 530, 272), ("f16", "f16", "f16", 67, 131, 48),
    ("f32", "f32", "f32", 70, 530, None), ("f64", "f64", "f64", 35, 140, 72),
    ("f32", "f8_e4m3", "f8_e4m3", 131, 70, None), ("bf16", "bf16", "bf16", 520, 520, None),
)  # fmt: skip


def columns_of(target: Target) -> Iterator[Case]:
    """Contiguous columns, many and long, tight or with a few elements between them."""
    for index, (a, b, source, k, n, nb) in enumerate(COLUMNS):
        rng = rng_of(target.name, "columns", index)
        ldb = (None, k + int(rng.integers(1, 70)))[index % 2]
        yield Case(Pack(k, n, b, a=a, nb=nb, source=source, order="F", ldb=ldb), {})


def column_of(target: Target) -> Iterator[Case]:
    """A column alone of every type: along K or apart, longer than what is packed at once."""
    for index, (a, b) in enumerate(PAIRS):
        rng = rng_of("columns", target.name, index)
        k = (int(rng.integers(1, 200)), 20001)[index % 5 == 0]
        order, converted = "CF"[index % 2], b not in ("f32", "f64") and index % 3 == 0
        spec: Any = Pack(
            k,
            1,
            b,
            a=a,
            source="f32" if converted else b,
            order=order,  # type: ignore[arg-type]
            ldb=(None, dim("ldb"))[index // 2 % 2],
            batch=(None, Strided(2, b=dim("apart")))[index // 4 % 2],
        )
        leading = 3 if order == "C" else k + 2
        yield Case(spec, {"ldb": leading, "count": 2, "apart": 4 * k})


def given(case: Case, rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """The memory of B, all else in it poison, and its matrices."""
    (lines, line), dtype = case.lines, DTYPES[case.spec.source]
    elements = (lines - 1) * case.leading + line + (case.count - 1) * case.stride
    memory = np.full(max(elements, 0) * dtype.itemsize, POISON, np.uint8)
    matrices = []
    for index in range(case.count):
        start = index * case.stride * dtype.itemsize
        steps = (case.leading * dtype.itemsize, dtype.itemsize)
        rows: Any = np.ndarray((lines, line), dtype, memory.data, start, steps)
        rows[...] = draw(case.spec.source, (lines, line), rng)
        matrices.append((rows if case.spec.order == "C" else rows.T).copy())
    return memory, matrices


def check(one: Lab, case: Case, target: Target, name: str, flush: Any) -> None:
    form = format_of(case.spec, target)
    memory, matrices = given(case, rng_of(name, flush))
    out = np.full(case.count * form.nbytes, 0xA5, np.uint8)
    sizes = [case.sizes[size.name] for _, size in case.spec.runtime_sizes()]
    (data,) = one.runner.call(
        name, [memory, out], sizes, [], [False, True], names=("b", "out"), flush=flush
    )
    packed = [layout(form, convert(matrix, case.spec.type)) for matrix in matrices]
    expected = np.concatenate(packed or [np.empty(0, np.uint8)])
    wrong = differing(form, np.frombuffer(data, np.uint8), expected)
    assert not wrong.size, f"{case.spec} as {form.text}: byte {wrong[0]} of {expected.size}"


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "which", [cases_of, columns_of, column_of], ids=["any", "columns", "column"]
)
def test_every_byte_of_every_format(
    name: str, which: Callable[[Target], Iterator[Case]], tmp_path: Path, cases: Cases
) -> None:
    target = resolve(name)
    every = [(f"pack{i}", case) for i, case in enumerate(sampled(name, which(target)))]
    requests = [Request(kernel, case.spec, Schedule(), target) for kernel, case in every]
    names = [kernel for kernel, _ in every]
    one = lab([generate(requests).text], names, target, tmp_path, flags=("-O0",))
    for kernel, case in every:
        for flush in ("front", "rear"):
            check(one, case, target, kernel, flush)
    cases.count(target.name, one.means, len(every))
