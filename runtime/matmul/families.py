"""Find the class of sizes that a product belongs to, and the spec, schedule and kernel of a
class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tilewright.runtime.driver import compile
from tilewright.runtime.machine.host import identify, usable_cpus
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix, Strided
from tilewright.spec.schedule import (
    FEW_ALONG_K,
    FEW_IN_MATRICES,
    FEW_ROWS,
    HALF_ROWS,
    LARGE,
    LINES,
    MANY_ROWS,
    NEAR_LINES,
    STEPS_AHEAD,
    THIN,
    Schedule,
    converted_work,
    large_converted,
    large_work,
    line_in_place,
    of_shares,
    of_short_sums,
    of_thin,
    streams,
)
from tilewright.spec.sizes import Dim, dim
from tilewright.spec.sums import SUM_OUTPUTS
from tilewright.spec.types import ITEMSIZE, accumulator, is_integer, type_name

from .arrays import ORDERS
from .classes import (
    UNBOUNDED,
    Axes,
    Class,
    Family,
    Options,
    Shape,
    crosses,
    in_place,
    short_line,
    small_line,
)
from .target_facts import few_along_k, least_parallel, panel, second_cache

if TYPE_CHECKING:
    from tilewright.runtime.kernel import Kernel

__all__ = [
    "CUBES",
    "EVEN_ROWS",
    "FIXED_STEPS",
    "IN_PLACE",
    "SHARE",
    "SHORT",
    "SHORT_LINE",
    "STREAMED",
    "TALL",
    "TINY",
    "UNBOUNDED",
    "Axes",
    "Class",
    "Family",
    "Options",
    "Shape",
    "call_product",
    "class_of",
    "crosses",
    "in_place",
    "kernel_of",
    "output_of",
    "schedule_of",
    "short_line",
    "small_line",
    "spec_of",
    "stack_class_of",
]

#: Element types that most targets convert to f32 before they multiply.
_WIDENED = ("f16", "f8_e4m3", "f8_e5m2")
#: Largest m, n and k for which a vector may hold several products of a stack, by the sums' type.
TINY = {"f32": 4, "f64": 3, "s32": 0}
#: Largest n for which a kernel is compiled for stacks of n x n x n products. On Zen 4 in f32, it is
#: 1.5 to 2.5 times as fast for n of 5 to 9 as the kernel for any size.
CUBES = 16
#: Minimum number of elements of a matrix, multiplied by a vector, that fits neither L1 nor L2.
STREAMED = 1 << 16
#: Columns of C for each thread if C has few rows: each thread then reads long parts of B's rows.
SHARE = 1024
#: Maximum length in bytes of a row or column of C that does not fill a vector.
SHORT = 32
#: Minimum number of rows (columns) of a small operand that is transposed for vectors along them.
TALL = 6
#: Numbers of rows (or columns) for which a small operand is not transposed to get vectors along K,
#: as half-open ranges: 8 and 16. So many fill vectors without a transposition.
FILLED = (8, 9, 16, 17)
#: Steps of K in a block of an operand read in place. Its rows stay in cache and TLB between tiles.
IN_PLACE = 64
#: Steps of K in a block of an operand read in place, for few rows of up to ``SHORT_LINE`` bytes.
IN_PLACE_SHORT = 128
#: Steps of K in a block of an operand that is read in place, if C has many rows and the other
#: operand is contiguous along K. Otherwise ``IN_PLACE`` is faster, for example 1.5 times for
#: 2048x40x2048 in f32 on Emerald Rapids.
IN_PLACE_MANY = 256
#: Number of steps of K that a deterministic product sums before it adds them to the total, for any
#: layout and with packed or unpacked B.
FIXED_STEPS = 256
#: Maximum length in bytes of a row of C for which B is read in blocks of 128 steps of K, not of 64.
#: For example, this makes 49x160x576 in f32 1.04 times as fast on Emerald Rapids.
SHORT_LINE = 2048
#: Minimum number of rows of C for each thread with which the threads share C's rows evenly.
EVEN_ROWS = 256
#: Minimum number of rows of C with which any number of threads share rows. Threads that share
#: columns read all of A for each panel of B, so A must be small.
MOST_ROWS = 1024
#: Threads that share columns need at least this number of times as many columns as rows.
WIDE = 2
#: Shapes with one row or column, each with its name if the matrix fits neither L1 nor L2.
_STREAMED: dict[Shape, Shape] = {"column": "column stream", "row": "row stream"}
#: Shapes with few rows or columns, each with its name if vectors run along K.
_ALONG_K: dict[Shape, Shape] = {
    "column": "column along k", "row": "row along k", "matrix": "along k"
}  # fmt: skip


def _has_d(types: tuple[str, str, str], options: Options) -> bool:
    """Return True if the output is D: it has an epilogue, or a type that C cannot have."""
    return options.epilogue is not None or types[2] not in SUM_OUTPUTS[accumulator(*types[:2])]


def _lying_across(axes: Axes, short: int) -> Iterator[tuple[Shape, int, tuple[int, ...]]]:
    """Yield the shapes that operands of different orders allow, and the sizes that each needs.

    Yields a shape, the small dimension (m or n), and its ranges: first to second number, and so on.
    """
    a, b, c = axes
    if (a, b) != (0, 1):
        edges = (2, short) if c == a else (2, *FILLED, LARGE[0])
        yield "turned", small_line(axes), (TALL, LARGE[0]) if a != b else edges
    few = short_line(axes)
    if few is not None:
        yield "across", few, (2, short if in_place(axes) else LARGE[0])


def class_of(
    m: int,
    n: int,
    k: int,
    types: tuple[str, str, str],
    options: Options,
    axes: Axes = (0, 1, 1),
) -> Class:
    """Return the class of a product with these sizes and types; classes do not overlap.

    ``axes`` tells the contiguous axis of A, B and C. Without ``threads`` there is one thread if the
    process may use one CPU now. The class of a deterministic product depends only on n, k and the
    types, because the order of its sums must not depend on m, the axes or the threads.
    """
    given = m, n, k, m * n * k
    by_rows, along_k = axes[2] == 1, not in_place(axes)
    along, across = (1, 0) if by_rows else (0, 1)
    limits: tuple[int, ...] = ()
    bounds = _Bounds([0, 0, 0, 0], [UNBOUNDED] * 4)
    alike = types[0] == types[1] == accumulator(*types[:2])
    converted = not alike or options.math is not None
    alone = options.threads == 1 or (options.threads is None and usable_cpus() == 1)
    unit = converted and identify(options.target).unit
    if options.deterministic:
        return bounds.fixed(given, converted=converted, unit=bool(unit), parallel=not alone)
    shape = bounds.line(given)
    alone = alone or not bounds.cut(3, given[3], least_parallel(*types[:2], options.target))
    one_by_one = alone and not (converted or along_k)
    if converted and axes[:2] == (1, 0) and options.math is None:
        shape = bounds.along_k(given, shape, types, options.target)
        by_matrices = unit and shape == "matrix"
        if by_matrices and not bounds.cut(across, given[across], FEW_IN_MATRICES + 1):
            shape = "in matrices"
    if shape == "matrix" and not converted:
        shape = bounds.across(given, axes, ITEMSIZE[types[0]])
    if shape == "matrix":
        bounds.cut(across, given[across], MANY_ROWS)
    if converted and (shape == "matrix" or (along_k and shape == ("row", "column")[across])):
        least = large_converted(unit=bool(unit))
        limits = bounds.converted(given, across, types[along], least, turned=along_k)
    elif shape == "matrix":
        limits = (*LARGE, large_work(given[across]))
        if one_by_one:
            limits = bounds.beyond_place(given, across, ITEMSIZE[types[0]], options.target)
    if limits and all(bounds.cut(i, given[i], limits[i]) for i in range(4)):
        shape = "blocks"
    if shape in _STREAMED and bounds.cut(3, given[3], STREAMED):
        shape = _STREAMED[shape]
    if shape == "matrix" and not converted:
        shape = bounds.few(given, across, ITEMSIZE[types[0]])
    if unit and shape in ("matrix", "blocks"):
        bounds.cut(0, given[0], NEAR_LINES + 1)
        bounds.cut(1, given[1], NEAR_LINES + 1)
    if shape == "blocks" and not (crosses(axes) or converted):
        shape = "blocks" if bounds.cut(along, given[along], THIN + 1) else "thin"
    if shape == "blocks" and not (alone or crosses(axes) or converted):
        shape = bounds.shares(given, across, options.threads or usable_cpus())
    if shape == "matrix" and one_by_one:
        few = given[across] < MANY_ROWS
        longest = SHORT_LINE // ITEMSIZE[types[0]] if few else THIN
        bounds.cut(along, given[along], longest + 1)
    return Class(shape, not alone, tuple(bounds.least), tuple(bounds.most))  # type: ignore[arg-type]


class _Bounds(NamedTuple):
    """Bounds of m, n, k and m * n * k, while a class is being found."""

    least: list[int]
    most: list[int]

    def cut(self, i: int, given: int, limit: int) -> bool:
        """Cut the range of size ``i`` at ``limit``, keep the part with ``given``; True if upper."""
        if given >= limit:
            self.least[i] = max(self.least[i], limit)
        else:
            self.most[i] = min(self.most[i], limit - 1)
        return given >= limit

    def fixed(
        self, given: tuple[int, ...], *, converted: bool, unit: bool, parallel: bool
    ) -> Class:
        """Return the class of a deterministic product."""
        least = large_converted(unit=unit) if converted else LARGE
        blocks = all(self.cut(i, given[i], least[i]) for i in (1, 2))
        shape: Shape = "blocks" if blocks else "matrix"
        return Class(shape, parallel, tuple(self.least), tuple(self.most))  # type: ignore[arg-type]

    def converted(
        self, given: tuple[int, ...], across: int, type_: str, least: tuple[int, int, int],
        *, turned: bool,
    ) -> tuple[int, ...]:  # fmt: skip
        """Return the least m, n, k and m * n * k for which operands are converted in blocks.

        ``least`` has C's least number of rows (columns in order F), their least length, least K.
        """
        itemsize = ITEMSIZE["f32"] if type_ in _WIDENED else ITEMSIZE[type_]
        first, most, work = converted_work(given[across], itemsize, turned=turned)
        self.cut(across, given[across], first)
        self.cut(across, given[across], most + 1)
        few, many, deep = least
        few = 0 if turned else few
        return (few, many, deep, work) if across == 0 else (many, few, deep, work)

    def beyond_place(
        self, given: tuple[int, ...], across: int, itemsize: int, target: str
    ) -> tuple[int, ...]:
        """Return the least m, n, k and m * n * k for which operands are packed in blocks.

        On one thread, an operand is read in place if its rows are short, compared with L2, and C is
        small in one dimension. L2 is looked up only for large products.
        """
        least = [*LARGE, large_work(given[across])]
        if given[across] < MANY_ROWS and self.cut(3, given[3], least[3]):
            self.cut(across, given[across], HALF_ROWS + 1)
            longest = line_in_place(given[across], second_cache(target)) // itemsize
            least[1 - across] = max(least[1 - across], longest + 1)
        return tuple(least)

    def shares(self, given: tuple[int, ...], across: int, threads: int) -> Shape:
        """Return "shares" for a large product with few rows (or columns) of C, else "blocks".

        ``threads`` is the maximum number of threads.
        """
        even = min(EVEN_ROWS * threads, MOST_ROWS)
        if self.cut(across, given[across], even):
            return "blocks"
        most = even // 4
        while self.cut(across, given[across], most):
            most *= 2
        return "shares" if self.cut(1 - across, given[1 - across], WIDE * most) else "blocks"

    def few(self, given: tuple[int, ...], across: int, itemsize: int) -> Shape:
        """Return "few" if C has so few rows or columns that one operand is read once."""
        found = streams(given[across], itemsize)
        if found is None:
            self.cut(across, given[across], FEW_ROWS + 1)
            return "matrix"
        first, most, work = found
        self.cut(across, given[across], first)
        self.cut(across, given[across], most + 1)
        return "few" if self.cut(3, given[3], work) else "matrix"

    def across(self, given: tuple[int, ...], axes: Axes, itemsize: int) -> Shape:
        """Return "turned" or "across" if a small operand or C has another order, else "matrix"."""
        for shape, few, edges in _lying_across(axes, SHORT // itemsize + 1):
            passed = sum(self.cut(few, given[few], edge) for edge in edges)
            large = passed % 2 == 1 and self.cut(1 - few, given[1 - few], LARGE[1])
            if large and self.cut(2, given[2], LARGE[2]):
                return shape
        return "matrix"

    def along_k(
        self, given: tuple[int, ...], shape: Shape, types: tuple[str, str, str], target: str
    ) -> Shape:
        """Return the shape of a product of converted types with A and B contiguous along K."""
        most = few_along_k(*types[:2], target)
        if not most:
            return shape
        for few in range(2):
            lines = not self.cut(few, given[few], most + 1) and self.cut(few, given[few], 1)
            large = lines and self.cut(1 - few, given[1 - few], LARGE[1])
            if large and self.cut(2, given[2], LARGE[2]):
                return _ALONG_K[shape]
        return shape

    def line(self, given: tuple[int, ...]) -> Shape:
        """Return "column" or "row" for a product with one column or row, else "matrix"."""
        names: tuple[tuple[int, Shape], ...] = ((1, "column"), (0, "row"))
        for i, name in names:
            if given[i] < 2:
                self.least[i] = self.most[i] = given[i]
                return name if given[i] else "matrix"
            self.least[i] = 2
        return "matrix"


def stack_class_of(
    m: int, n: int, k: int, count: int, types: tuple[str, str, str], options: Options, c: int, *,
    tight: bool,
) -> Class | None:  # fmt: skip
    """Return the class of a stack of ``count`` products, None if they are computed one by one.

    ``c`` is the contiguous axis of C. ``tight`` is True if each matrix is contiguous. Each thread
    computes whole products.
    """
    # With these axes of A, B and C, no operand is transposed.
    axes = 0, 1, c
    one = class_of(m, n, k, types, options._replace(threads=1), axes)
    if one.shape in ("thin", "blocks"):
        return None
    plain = types in (("f32",) * 3, ("f64",) * 3) and options.epilogue is None
    plain = plain and options.math is None
    limit = TINY[types[2]] if plain and not (options.scaled or options.deterministic) else 0
    if limit and m == n == k and 0 < m <= CUBES and tight:
        one = Class("matrix", False, (m, m, m, 0), (m, m, m, UNBOUNDED), tiny=m)
    elif 0 < max(m, n, k) <= limit and min(m, n, k) > 0 and tight:
        one = Class("matrix", False, (1, 1, 1, 0), (limit,) * 3 + (UNBOUNDED,), tiny=limit)
    elif limit:
        small = max(m, n, k) <= limit
        one = one._replace(loose=True) if small else one._replace(above=limit)
    work = m * n * k * count
    if not plain or options.threads == 1:
        return one._replace(stacked=True, parallel=False, total=(0, UNBOUNDED))
    enough = least_parallel(*types[:2], options.target)
    parallel = work >= enough
    total = (enough, UNBOUNDED) if parallel else (0, enough - 1)
    return one._replace(stacked=True, parallel=parallel, total=total)


@lru_cache(maxsize=256)
def kernel_of(family: Family) -> Kernel:
    """Return the family's kernel, compiled or taken from the cache at the first request."""
    return compile(spec_of(family), schedule_of(family), family.options.target)


def spec_of(family: Family) -> Gemm:
    """Return the spec of a family's kernel."""
    (a, b, written), options = family.types, family.options
    orders = [ORDERS[axis] for axis in family.axes]
    m, n = _rows_and_columns(family)
    given = output_of(a, b, Matrix(type_name(written), orders[2]), options)
    if family.sizes.stacked:
        given["batch"] = Strided(dim("count"), **{x: dim(f"stride_{x}") for x in "abc"})
    if most := family.sizes.tiny:
        given.pop("ldc")
        cube = family.sizes.cube
        sizes: list[int | Dim] = [most if cube else dim(name, max=most) for name in "mnk"]
        return Gemm(
            *sizes, a=Matrix(type_name(a), orders[0]), b=Matrix(type_name(b), orders[1]), **given
        )
    return Gemm(
        m, n, dim("k"), a=Matrix(type_name(a), orders[0]), b=Matrix(type_name(b), orders[1]),
        lda=dim("lda"), ldb=dim("ldb"), **given,
    )  # fmt: skip


def _rows_and_columns(family: Family) -> tuple[int | Dim, int | Dim]:
    """Return m and n for the spec of a family's kernel, with their maximum if the class has one."""
    sizes, across = family.sizes, 0 if family.axes[2] == 1 else 1
    most = [NEAR_LINES if limit == NEAR_LINES else None for limit in sizes.most[:2]]
    if sizes.shape in ("turned", "across"):
        few = small_line(family.axes) if sizes.shape == "turned" else family.axes[2]
        short = SHORT // ITEMSIZE[family.types[0]]
        most[few] = short if sizes.most[few] <= short else LARGE[0] - 1
    elif sizes.shape == "along k":
        most[0 if sizes.most[0] <= FEW_ALONG_K else 1] = FEW_ALONG_K
    elif sizes.shape == "in matrices":
        most[across] = FEW_IN_MATRICES
    elif _streamed(family):
        most[across] = FEW_ROWS
    elif sizes.most[across] < MANY_ROWS and sizes.shape != "shares":
        most[across] = MANY_ROWS - 1
    kept = [
        None if limit is None or sizes.most[i] > limit else limit for i, limit in enumerate(most)
    ]
    m, n = (dim(name, max=limit) for name, limit in zip("mn", kept, strict=True))
    return 1 if sizes.shape.startswith("row") else m, 1 if sizes.shape.startswith("column") else n


def _plain(family: Family) -> bool:
    """Return True if elements are multiplied without conversion."""
    a, b, _ = family.types
    return a == b == accumulator(a, b) and family.options.math is None


def _streamed(family: Family) -> bool:
    """Return True if C has few rows and B's rows are read once, or few columns and A's columns."""
    return family.sizes.shape == "few" and in_place(family.axes)


def output_of(a: str, b: str, out: Matrix, options: Options) -> dict[str, Any]:
    """Return the arguments of ``Gemm`` for the output: C if it is only the sum, else D.

    If there is a D and beta is not 0, C is the same array, which ``call_product`` passes twice.
    There is also a C if alpha multiplies sums of integers and D is floating point. Then alpha is
    applied in f32.
    """
    given: dict[str, Any] = {"epilogue": options.epilogue, "math": options.math}
    sums = not _has_d((a, b, out.type), options)
    real = options.scaled and accumulator(a, b) == "s32" and not is_integer(out.type)
    has_c = sums or options.reads or real
    if has_c:
        given |= {"c": out, "ldc": dim("ldc")}
    if not sums:
        given |= {"d": out, "ldd": dim("ldc")}
    if options.scaled:
        given["alpha"] = "scalar"
    if options.scaled and has_c:
        given["beta"] = "scalar"
    return given


def call_product(kernel: Kernel, a: Any, b: Any, out: Any, named: dict[str, Any]) -> None:
    """Call a kernel whose output ``output_of`` described; ``out`` is its C, its D, or both.

    ``named`` holds the arguments besides arrays. beta is dropped if the kernel takes none.
    """
    spec = kernel.spec
    assert isinstance(spec, Gemm)
    if spec.beta == 0:
        named = {name: value for name, value in named.items() if name != "beta"}
        kernel(a, b, out=out, **named)
    elif spec.d is None:
        kernel(a, b, c=out, **named)
    else:
        kernel(a, b, c=out, out=out, **named)


def schedule_of(family: Family) -> Schedule:
    """Return the schedule of a family's kernel: in blocks or not, with threads if they may pay.

    A deterministic product has one chain of sums for each element, or one for each block of K.
    """
    options, shape = family.options, family.sizes.shape
    if family.sizes.stacked:
        return _of_stack(family)
    parallel, by_rows = family.sizes.parallel, family.axes[2] == 1
    if (shape == "row stream" and family.axes[1] == 1) or (
        shape == "column stream" and family.axes[0] == 0
    ):
        # For example, a row of x times a B whose rows are contiguous. The loops read LINES rows of
        # B at the same time, each from its first element to its last.
        return Schedule(loops="knmk" if shape == "row stream" else "kmnk", block={"k": LINES})
    along: Literal["m", "n"] = "n" if by_rows else "m"
    nest = _nest(family)
    return replace(
        nest,
        loops=nest.loops if parallel or nest.loops is None else nest.loops.lower(),
        threads=options.threads if parallel else None,
        vectorize=along if options.deterministic else nest.vectorize,
        k_split=1 if options.deterministic else None,
    )


def _nest(family: Family) -> Schedule:
    """Return the loops (upper case may be parallel), the packed operands, and the block of K."""
    sizes, by_rows = family.sizes, family.axes[2] == 1
    along: Literal["m", "n"] = "n" if by_rows else "m"
    across: Literal["m", "n"] = "m" if by_rows else "n"
    if sizes.shape == "blocks":
        steps = {"k": FIXED_STEPS} if family.options.deterministic else None
        loops = f"{along}k{across.upper()}{across}{along}k"
        return Schedule(loops=loops, pack="ab", block=steps)
    if sizes.shape == "shares":
        return of_shares(along, *panel(family.types[0], along, family.options.target))
    if sizes.shape == "thin":
        return of_thin(along)
    if sizes.shape.endswith("along k"):
        return Schedule(loops="NMk", vectorize="k")
    if sizes.shape == "in matrices":
        return Schedule(loops=f"{across}{along}".upper() + "k")
    if sizes.shape == "turned":
        return _turned(family)
    if sizes.shape == "across":
        return Schedule(loops=f"{across}{along}".upper() + "k", vectorize=across)
    if _streamed(family):
        nest, block = f"k{along}{across}k", {"k": LINES}
        if sizes.parallel:
            nest, block = f"{along.upper()}{nest}", {**block, along: SHARE}
        return Schedule(loops=nest, block=block)
    if in_place(family.axes):
        return _in_place(family, along, across)
    if sizes.shape == "matrix" and sizes.most[2] < LARGE[2] and _plain(family):
        # Such a short K does not fill vectors, so vectors run along C. The operand that is not
        # contiguous in this direction is packed.
        turned: Literal["a", "b"] = "b" if by_rows else "a"
        return Schedule(loops=f"{across}{along}".upper() + "k", pack=turned, vectorize=along)
    return Schedule(loops="NMk")


def _turned(family: Family) -> Schedule:
    """Return the schedule of a product whose small operand is transposed."""
    (a, b, _), few = family.axes, small_line(family.axes)
    small: Literal["a", "b"] = "b" if few else "a"
    lines: Literal["m", "n"] = "n" if few else "m"
    loops = "MNk" if few else "NMk"
    return Schedule(loops=loops, pack=small, vectorize="k" if a == b else lines)


def _in_place(family: Family, along: Literal["m", "n"], across: str) -> Schedule:
    """Return the schedule of a product that reads an operand in place, in the order of C."""
    sizes, (a, _, sums) = family.sizes, family.types
    short, many = sizes.most[2] < LARGE[2], sizes.least["mn".index(across)] >= MANY_ROWS
    in_panels, in_lines = (f"{x}{y}".upper() + "k" for x, y in ((along, across), (across, along)))
    if sizes.shape != "matrix" or not _plain(family):
        wide = sizes.least["mn".index(along)] >= THIN
        alone = not (sizes.parallel or family.options.deterministic)
        if sizes.shape == "matrix" and alone and wide:
            # Operands of a matrix unit are copied and converted block by block anyway.
            return Schedule()
        near = short or sizes.most["mn".index(along)] <= THIN
        passing = sizes.shape == "matrix" and many and near
        return Schedule(loops=in_lines if passing else in_panels)
    ahead = None if short or (many and sizes.parallel) else STEPS_AHEAD
    if sizes.parallel:
        return Schedule(loops=in_lines, prefetch=ahead)
    if short and many and sizes.least["mn".index(along)] >= LARGE[1]:
        return of_short_sums(along)
    if short or family.options.deterministic or sums != a:
        return Schedule(loops=in_panels, prefetch=ahead)
    near = sizes.most["mn".index(along)] * ITEMSIZE[a] <= SHORT_LINE
    if many:
        steps = IN_PLACE if crosses(family.axes) else IN_PLACE_MANY
    else:
        steps = IN_PLACE_SHORT if near else IN_PLACE
    thin = many and not crosses(family.axes) and sizes.most["mn".index(along)] <= THIN
    tiles = f"{across}{along}" if thin else f"{along}{across}"
    return Schedule(loops=f"k{tiles}k", block={"k": steps}, prefetch=ahead)


def _of_stack(family: Family) -> Schedule:
    """Return the schedule of a stack: products in parallel, each by one thread."""
    sizes = family.sizes
    alone = sizes._replace(stacked=False, parallel=False)
    one = Schedule() if sizes.tiny else schedule_of(family._replace(sizes=alone))
    if sizes.shape == "matrix" and not sizes.tiny:
        one = replace(one, loops="nmk", block=(), prefetch=None)
        by_rows = family.axes[2] == 1
        many = sizes.least[0 if by_rows else 1] >= MANY_ROWS and not family.options.deterministic
        if many and _plain(family) and not in_place(family.axes):
            # One transposition of the operand that is contiguous along K pays for many rows. For
            # example, 12 products of 128x128x64 in f32 take 105 us on Zen 5, and 184 us in place.
            one = replace(one, pack="b" if by_rows else "a", vectorize="n" if by_rows else "m")
    threads = family.options.threads if sizes.parallel else None
    loops = one.loops or ("mnk" if sizes.parallel else None)
    first = "B" if sizes.parallel else "b"
    return replace(one, loops=None if loops is None else first + loops, threads=threads)
