"""Which kernel computes a product of given arrays: one serves all sizes of a class."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tilewright.runtime.driver import compile
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim, dim
from tilewright.spec.types import accumulator

from .lines import ORDERS

if TYPE_CHECKING:
    from tilewright.runtime.kernel import Kernel
    from tilewright.spec.expression import Expression

#: What C may be where it is no more than the sum: as ``Gemm`` has it.
_SUMS = {"f32": ("f32", "f16", "bf16"), "s32": ("s32",), "f64": ("f64",)}
#: Multiply-adds from which on a product is offered to several threads.
PARALLEL_WORK = 1 << 20
#: More than any product has.
UNBOUNDED = (1 << 62) - 1


class Options(NamedTuple):
    """What a caller asks for beside the product; ``scaled``: alpha and beta are of the call."""

    scaled: bool = False
    epilogue: Expression | None = None
    threads: int | None = None
    deterministic: bool = False
    target: str = "host"


class Class(NamedTuple):
    """Sizes that one kernel serves: m, n, k and their product from ``least`` to ``most``."""

    shape: Literal["column", "matrix"]
    parallel: bool
    least: tuple[int, int, int, int]
    most: tuple[int, int, int, int]


class Family(NamedTuple):
    """Products that one kernel computes.

    ``types`` and ``axes`` are of a, b and what is written: their elements', and which axis of each
    has contiguous lines.
    """

    types: tuple[str, str, str]
    axes: tuple[int, int, int]
    sizes: Class
    options: Options


def class_of(m: int, n: int, k: int, options: Options) -> Class:
    """The class of a product of those sizes.

    Deterministic ones have a single class for each n and k: which multiply-adds are summed first
    must not depend on m, nor on the threads.
    """
    column = n == 1 and not options.deterministic
    shape: Literal["column", "matrix"] = "column" if column else "matrix"
    columns = (1, 1) if column else (0 if options.deterministic else 2, UNBOUNDED)
    if n == 0 and not options.deterministic:
        columns = (0, 0)
    parallel = options.threads != 1 and (options.deterministic or m * n * k >= PARALLEL_WORK)
    least_work, most_work = 0, UNBOUNDED
    if options.threads != 1 and not options.deterministic:
        least_work = PARALLEL_WORK if parallel else 0
        most_work = UNBOUNDED if parallel else PARALLEL_WORK - 1
    least, most = (0, columns[0], 0, least_work), (UNBOUNDED, columns[1], UNBOUNDED, most_work)
    return Class(shape, parallel, least, most)


@lru_cache(maxsize=256)
def kernel_of(family: Family) -> Kernel:
    """The family's kernel; compiled, or taken from the cache, when first asked for."""
    return compile(spec_of(family), schedule_of(family), family.options.target)


def spec_of(family: Family) -> Gemm:
    """What a product of the family computes."""
    (a, b, written), options = family.types, family.options
    orders = [ORDERS[axis] for axis in family.axes]
    n: int | Dim = 1 if family.sizes.shape == "column" else dim("n")
    out = Matrix(written, orders[2])
    given: dict[str, Any] = {"epilogue": options.epilogue}
    if options.epilogue is None and written in _SUMS[accumulator(a, b)]:
        given |= {"c": out, "ldc": dim("ldc")}
    else:
        given |= {"d": out, "ldd": dim("ldc")}
    if options.scaled:
        given |= {"alpha": "scalar", "beta": "scalar"}
    return Gemm(
        dim("m"), n, dim("k"), a=Matrix(a, orders[0]), b=Matrix(b, orders[1]),
        lda=dim("lda"), ldb=dim("ldb"), **given,
    )  # fmt: skip


def schedule_of(family: Family) -> Schedule:
    """How: in parallel where that may pay, and one chain of sums for each element if it must."""
    threads = family.options.threads
    loops = "NMk" if family.sizes.parallel and threads is None else None
    asked = threads if family.sizes.parallel else None
    if not family.options.deterministic:
        return Schedule(loops=loops, threads=asked)
    along: Literal["m", "n"] = "n" if family.axes[2] else "m"
    return Schedule(loops=loops, threads=asked, vectorize=along, k_split=1)
