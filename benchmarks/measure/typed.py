"""Products of any types with a packed B: C = A B, checked against numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.runtime.arrays.elements import INTEGERS, decode, encode
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.types import accumulator, is_integer, type_name

from . import kernels, machine
from .native import Call
from .operands import OFFSETS, WrongResultError, placed
from .shapes import Shape

#: The largest magnitude of B's integers: sums of two products of bytes then fit 16 bits, for the
#: sake of libraries that saturate there.
LARGEST = 64


@dataclass(frozen=True, slots=True)
class Product:
    """Sizes, and the types of A and B."""

    shape: Shape
    a: str
    b: str

    @property
    def spec(self) -> tw.Gemm:
        """C = A B with everything fixed and B packed: the C function is (a, b, C *)."""
        shape = self.shape
        batch = tw.Strided(shape.count) if shape.count > 1 else None
        b = tw.Packed(type_name(self.b))
        return tw.Gemm(shape.m, shape.n, shape.k, a=type_name(self.a), b=b, batch=batch)

    @property
    def types(self) -> str:
        """For people."""
        return self.a if self.a == self.b and not is_integer(self.a) else f"{self.a} x {self.b}"


@dataclass(frozen=True, slots=True)
class Operands:
    """A (count x m x k), B (count x k x n) and C (m x n, of the sums' type)."""

    product: Product
    a: Any
    b: Any
    c: Any

    @classmethod
    def random(cls, product: Product, rng: np.random.Generator) -> Operands:
        """Uniform in -1..1, integers over their range, but of B's within ``LARGEST``."""
        shape = product.shape
        a = _drawn(product.a, (shape.count, shape.m, shape.k), rng, 255)
        b = _drawn(product.b, (shape.count, shape.k, shape.n), rng, LARGEST)
        held = np.dtype(DTYPES[accumulator(product.a, product.b)])
        return cls(product, put(a, 0), b, placed((shape.m, shape.n), OFFSETS[2], held))

    def check(self, call: Call) -> None:
        """Run the call once and compare with numpy; WrongResultError if it differs.

        Integers must be equal, others within (k * count + 4) * eps * |A| |B|, elementwise.
        """
        self.c.fill(3)
        call.once()
        a, b = decode(self.a, self.product.a), decode(self.b, self.product.b)
        error = np.abs(self.c - (a @ b).sum(0))
        bound: Any = 0
        if self.c.dtype == np.float32:
            terms = a.shape[0] * a.shape[2] + 4
            bound = terms * np.finfo(np.float32).eps * (abs(a) @ abs(b)).sum(0)
        if not (error <= bound).all():
            raise WrongResultError(
                f"{call.name}, {self.product.types}, {self.product.shape}: "
                f"an element is off by {np.max(error):.3g}"
            )


def compiled(products: Sequence[Product], target: str) -> dict[Product, tw.Kernel]:
    """A kernel of the default schedule for each product, in one library."""
    with machine.every_core():
        made = tw.compile_many([(product.spec, None, target) for product in products])
    return dict(zip(products, made, strict=True))


def call(kernel: tw.Kernel, operands: Operands, name: str) -> Call:
    """The kernel on these operands, B packed for it."""
    b = operands.b if operands.product.shape.count > 1 else operands.b[0]
    packed = put(np.asarray(kernel.pack_b(b).data), 1)
    flops = operands.product.shape.flops
    return kernels.called(name, kernel, (operands.a, packed, operands.c), flops)


def put(array: Any, place: int) -> Any:
    """A copy that begins where operands of that number begin in their pages."""
    copy = placed(array.shape, OFFSETS[place], array.dtype)
    copy[...] = array
    return copy


def _drawn(type_: str, shape: tuple[int, ...], rng: np.random.Generator, largest: int) -> Any:
    if not is_integer(type_):
        return encode(rng.uniform(-1, 1, shape), type_)
    low, high = INTEGERS[type_]
    return encode(rng.integers(max(low, -largest), min(high, largest), shape, endpoint=True), type_)
