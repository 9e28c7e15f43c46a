"""Which kernel serves which sizes: every product one class, every class a box of sizes."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from support.processes import python

import tilewright as tw
from tilewright.runtime.call.overlap import disjoint
from tilewright.runtime.matmul import families
from tilewright.runtime.matmul.arrays import contiguous_axis
from tilewright.runtime.matmul.families import (
    CUBES,
    EVEN_ROWS,
    SHORT,
    Axes,
    Class,
    Family,
    Options,
    class_of,
    schedule_of,
    spec_of,
    stack_class_of,
)
from tilewright.runtime.matmul.target_facts import least_parallel
from tilewright.spec.schedule import (
    CONVERTED_WORK,
    FEW_ALONG_K,
    LARGE,
    MANY_ROWS,
    THIN,
    large_converted,
    large_work,
)

F32, BF16 = ("f32",) * 3, ("bf16", "bf16", "f32")
SIZES = [
    *product((0, 1, 2, 31, 32, 127, 128, 500), (0, 1, 2, 31, 32, 500), (0, 1, 63, 64, 500)),
    (4096, 4096, 4096), (1, 4096, 4096), (4096, 1, 4096), (64, 2048, 2048), (4096, 128, 128),
    (128, 4096, 128), (4096, 129, 128),
]  # fmt: skip
AXES = list(product((0, 1), repeat=3))
#: A, B and C in whose order rows of B are read along C's, columns of A, and rows of B along K.
ROWS, COLUMNS, ALONG_K = (0, 1, 1), (0, 1, 0), (1, 0, 1)
OPTIONS = (Options(), Options(threads=1), Options(threads=3), Options(deterministic=True))


def holds(one: Class, sizes: tuple[int, int, int]) -> bool:
    m, n, k = sizes
    bounds = zip(one.least, (m, n, k, m * n * k), one.most, strict=True)
    return all(least <= size <= most for least, size, most in bounds)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("types", [F32, BF16])
@pytest.mark.parametrize("axes", AXES)
def test_classes_share_no_sizes(
    types: tuple[str, str, str], options: Options, axes: tuple[int, int, int]
) -> None:
    found = {sizes: class_of(*sizes, types, options, axes) for sizes in SIZES}
    for sizes, mine in found.items():
        assert holds(mine, sizes)
        for other in set(found.values()) - {mine}:
            assert not holds(other, sizes), (sizes, mine, other)


def turned(sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """m, n and k of the same product, transposed."""
    m, n, k = sizes
    return n, m, k


def test_large_products_are_packed() -> None:
    least = (MANY_ROWS, LARGE[1], -(-large_work(MANY_ROWS) // (MANY_ROWS * LARGE[1])))
    assert class_of(*least, F32, Options(), (1, 1, 1)).shape == "thin"
    assert class_of(*turned(least), F32, Options(), (0, 0, 0)).shape == "thin"
    assert class_of(*least, F32, Options(), ROWS).shape == "blocks", "A lies across K"
    assert class_of(*turned(least), F32, Options(), COLUMNS).shape == "blocks"
    longer = (MANY_ROWS + 1, THIN + 1, least[2])
    assert class_of(*longer, F32, Options()).shape == "blocks"
    assert class_of(*turned(longer), F32, Options(), COLUMNS).shape == "blocks"
    assert class_of(*least, BF16, Options()).shape == "matrix"
    work, columns = CONVERTED_WORK, large_converted(unit=False)[1]
    wide = (MANY_ROWS, columns, -(-work // (MANY_ROWS * columns)))
    assert class_of(*wide, BF16, Options()).shape == "blocks"
    assert class_of(*wide[:2], wide[2] - 1, BF16, Options()).shape == "matrix"
    assert class_of(*wide, ("bf16",) * 3, Options(epilogue=tw.relu(tw.acc))).shape == "blocks"
    assert class_of(*least[:2], least[2] - 1, F32, Options()).shape == "matrix"
    assert class_of(MANY_ROWS - 1, *least[1:], F32, Options()).shape == "matrix"


def test_lines_that_vectors_do_not_repay_converting_in_blocks() -> None:
    """A matrix unit does, whose rows are copied on the way."""
    halves = ("f16", "f16", "f32")
    for n, shape, loops in ((128, "matrix", "mnk"), (129, "blocks", "nkmmnk")):
        found = class_of(784, n, 1152, halves, Options(threads=1, target="avx512"))
        made = schedule_of(Family(halves, ROWS, found, Options(threads=1, target="avx512")))
        assert (found.shape, made.loops) == (shape, loops), n
    assert class_of(784, 128, 1152, BF16, Options(threads=1, target="amx")).shape == "blocks"


def test_of_rows_that_lie_across_k_few_steps_are_near() -> None:
    """Each step reads another line of theirs, in another page."""
    for sizes, axes, across in (((1000, 64, 300), (1, 1, 1), 256), ((1000, 64, 300), ROWS, 64)):
        found = class_of(*sizes, F32, Options(threads=1), axes)
        made = schedule_of(Family(F32, axes, found, Options(threads=1)))
        assert (found.shape, dict(made.block)["k"]) == ("matrix", across), axes


def test_few_rows_read_short_lines_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread does; K then has blocks of twice as many steps where lines are shorter still."""
    monkeypatch.setattr(families, "second_cache", lambda target: 1 << 21)
    one = Options(threads=1)
    for m, n, options, shape, block in (
        (49, 512, one, "matrix", 128),
        (49, 513, one, "matrix", 64),
        (64, 2048, one, "matrix", 64),
        (65, 512, one, "matrix", 128),
        (64, 2049, one, "blocks", None),
        (65, 513, one, "blocks", None),
        (128, 512, one, "blocks", None),
        (49, 512, Options(threads=2), "blocks", None),
    ):
        rows, columns = (m, n, 4608), (n, m, 4608)
        for axes, sizes in ((ROWS, rows), (COLUMNS, columns)):
            found = class_of(*sizes, F32, options, axes)
            made = schedule_of(Family(F32, axes, found, options))
            assert (found.shape, dict(made.block).get("k")) == (shape, block), (m, n, axes)
        found = class_of(*rows, F32, options, ALONG_K)
        assert found.shape == ("blocks" if options is one else "shares")


def test_few_rows_are_converted_in_blocks_where_a_whole_matrix_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More than one row of halves from 16 MiB on; of what lies along K from 2^20 elements on."""
    monkeypatch.setattr(families, "few_along_k", lambda *given: 0)  # as of f16 without conversions
    for m, n, along_k, shape in (
        (2, 4096, False, "blocks"),
        (7, 4096, False, "blocks"),
        (3, 1024, False, "matrix"),
        (1, 4096, False, "row stream"),
        (1, 1024, True, "blocks"),
        (1, 1000, True, "row stream"),
        (3, 1200, True, "blocks"),
        (31, 700, True, "matrix"),
    ):
        options = Options(target="scalar")
        rows = class_of(m, n, n, BF16, options, ALONG_K if along_k else ROWS)
        assert rows.shape == shape, (m, n)
        columns = class_of(n, m, n, BF16, options, (1, 0, 0) if along_k else COLUMNS)
        assert columns.shape == shape.replace("row", "column"), (m, n)


@pytest.mark.parametrize("c", [0, 1])
def test_few_rows_of_halves_meet_columns_along_k(c: int) -> None:
    options, axes = Options(target="avx2"), (1, 0, c)
    for m, shape in ((0, "matrix"), (1, "row along k"), (2, "along k"), (16, "along k")):
        found = class_of(m, 500, 64, BF16, options, axes)
        assert found.shape == shape
        made = Family(BF16, axes, found, options)
        assert m == 0 or schedule_of(made).vectorize == "k"
        assert m == 0 or spec_of(made).m == (1 if m == 1 else tw.dim("m", max=FEW_ALONG_K))
    for n, shape in ((1, "column along k"), (2, "along k"), (16, "along k")):
        found = class_of(500, n, 64, BF16, options, axes)
        assert found.shape == shape
        spec = spec_of(Family(BF16, axes, found, options))
        assert spec.n == (1 if n == 1 else tw.dim("n", max=FEW_ALONG_K))
    for sizes in ((17, 500, 64), (4, 31, 64), (4, 500, 63), (500, 17, 64), (500, 0, 64)):
        assert "along k" not in class_of(*sizes, BF16, options, axes).shape
    for target in ("avx2", "avx512+vnni", "neon+dotprod+i8mm+bf16"):
        given = options._replace(target=target)
        assert class_of(4, 500, 64, ("s8", "s8", "s32"), given, axes).shape == "along k"
    words = ("u16", "u16", "s32")  # of which AVX2 flips both
    assert "along k" not in class_of(4, 500, 64, words, options, axes).shape


def test_few_rows_stream_a_large_matrix() -> None:
    for m, n, shape in (
        (4, 512, "few"),
        (5, 512, "matrix"),
        (5, 4096, "few"),
        (17, 4096, "matrix"),
    ):
        assert class_of(m, n, n, F32, Options()).shape == shape
        assert class_of(n, m, n, F32, Options(), COLUMNS).shape == shape
    for axes, loops in (((1, 1, 1), "knmk"), ((1, 0, 1), "nmk"), ((0, 1, 0), "kmnk")):
        sizes = (4, 512, 512) if axes[2] == 1 else (512, 4, 512)
        found = class_of(*sizes, F32, Options(threads=1), axes)
        assert schedule_of(Family(F32, axes, found, Options(threads=1))).loops == loops


def test_few_columns_of_many_rows_are_passed_a_row_of_tiles_at_a_time() -> None:
    options = Options(threads=1)
    for axes, loops in (((1, 1, 1), ("kmnk", "knmk")), ((0, 0, 0), ("knmk", "kmnk"))):
        for few, expected in zip((128, 129), loops, strict=True):
            sizes = (1000, few, 128) if axes[2] == 1 else (few, 1000, 128)
            found = class_of(*sizes, F32, options, axes)
            assert schedule_of(Family(F32, axes, found, options)).loops == expected


def test_short_lines_along_k_are_turned() -> None:
    for axes, loops, packed in (((1, 0, 1), "mnk", "b"), ((1, 1, 0), "nmk", "a")):
        found = class_of(500, 400, 7, F32, Options(threads=1), axes)
        made = schedule_of(Family(F32, axes, found, Options(threads=1)))
        assert (made.loops, made.pack) == (loops, packed)


@pytest.mark.parametrize(
    ("axes", "columns", "shape", "vectorize", "pack"),
    [
        ((1, 1, 1), True, "turned", "k", "b"),
        ((1, 1, 0), True, "turned", "k", "b"),
        ((0, 0, 0), False, "turned", "k", "a"),
        ((0, 0, 1), False, "turned", "k", "a"),
        ((1, 0, 1), True, "turned", "n", "b"),
        ((1, 0, 0), False, "turned", "m", "a"),
        ((0, 1, 1), True, "across", "m", None),
        ((0, 0, 1), True, "across", "m", None),
        ((0, 1, 0), False, "across", "n", None),
        ((1, 1, 0), False, "across", "n", None),
        ((0, 1, 1), False, "matrix", None, None),
        ((1, 0, 0), True, "matrix", None, None),
    ],
    ids=str,
)
def test_few_lines_across_a_large_matrix(
    axes: tuple[int, int, int], columns: bool, shape: str, vectorize: str | None, pack: str | None
) -> None:
    """Those of an operand are turned along K, or where both lie so, across it; those of C last."""
    few, many, k = 7, 600, 64
    sizes = (many, few, k) if columns else (few, many, k)
    family = Family(F32, axes, class_of(*sizes, F32, Options(), axes), Options())
    made, limit = schedule_of(family), getattr(spec_of(family), "mn"[columns]).max
    assert (family.sizes.shape, made.vectorize, made.pack) == (shape, vectorize, pack)
    assert few <= limit < (MANY_ROWS if shape == "matrix" else LARGE[0])
    for others in ((few, few, k), (many, many, k), (*sizes[:2], k - 1)):
        assert class_of(*others, F32, Options(), axes).shape == "matrix"


def test_lines_that_fill_vectors_as_they_lie_are_not_turned() -> None:
    shapes = [class_of(m, 500, 500, F32, Options(), (0, 0, 1)).shape for m in (7, 8, 9, 16, 31, 32)]
    assert shapes == ["turned", "matrix", "turned", "matrix", "turned", "matrix"]
    for type_, n in (("f32", SHORT // 4), ("f64", SHORT // 8)):
        for columns, shape in ((n, "turned"), (n + 1, "matrix")):
            found = class_of(500, columns, 500, (type_,) * 3, Options(), (1, 1, 1))
            assert found.shape == shape, (type_, columns)


def test_what_a_deterministic_product_is_follows_from_n_and_k() -> None:
    for n, k in ((1, 5), (31, 500), (500, 500)):
        classes = {class_of(m, n, k, F32, Options(deterministic=True)) for m in (0, 1, 5, 5000)}
        assert len(classes) == 1
        (found,) = classes
        made = schedule_of(Family(F32, (1, 1, 1), found, Options(deterministic=True)))
        assert (made.k_split, made.vectorize) == (1, "n")


def test_threads_are_offered_to_what_takes_long() -> None:
    enough = least_parallel("f32", "f32", "host")
    for k, parallel in ((enough // 100, True), (enough // 100 - 1, False)):
        sizes = class_of(10, 10, k + 1 if parallel else k, F32, Options())
        assert sizes.parallel is parallel
        loops = schedule_of(Family(F32, (1, 1, 1), sizes, Options())).loops
        assert (loops != (loops or "").lower()) is parallel
    assert not class_of(500, 500, 500, F32, Options(threads=1)).parallel


def test_few_rows_share_the_columns_evenly() -> None:
    """Each thread gets panels of B of its own; more rows, or fewer columns, are shared in rows."""
    for threads, sizes, shape in (
        (2, (64, 2048, 2048), "shares"),
        (2, (128, 768, 768), "shares"),
        (2, (2 * EVEN_ROWS, 4096, 768), "blocks"),
        (2, (300, 300, 768), "blocks"),
        (16, (2 * EVEN_ROWS, 4096, 768), "shares"),
        (16, (64, 2048, 2048), "shares"),
        (16, (1024, 8192, 768), "blocks"),
    ):
        options = Options(threads=threads)
        found = class_of(*sizes, F32, options, (1, 1, 1))
        assert found.shape == shape, (threads, sizes)
        made = schedule_of(Family(F32, (1, 1, 1), found, options))
        assert (made.loops, made.threads) == ("Nknmk" if shape == "shares" else "nkMmnk", threads)
    turned = class_of(2048, 64, 2048, F32, Options(threads=2), (0, 0, 0))
    made = schedule_of(Family(F32, (0, 0, 0), turned, Options(threads=2)))
    assert (turned.shape, made.loops, made.pack) == ("shares", "Mkmnk", "a")
    for options in (Options(threads=1), Options(threads=2, deterministic=True)):
        assert class_of(64, 2048, 2048, F32, options, (1, 1, 1)).shape == "blocks"


def test_stacks_with_many_rows_transpose_what_is_contiguous_along_k() -> None:
    for axes, pack in ((ALONG_K, "b"), ((1, 1, 0), "a"), (ROWS, None)):
        for many in (MANY_ROWS, MANY_ROWS - 1):
            sizes = (many, 100, 64) if axes[2] else (100, many, 64)
            found = class_of(*sizes, F32, Options(threads=1), axes)
            stacked = found._replace(stacked=True, parallel=True)
            made = schedule_of(Family(F32, axes, stacked, Options()))
            assert (made.loops, made.pack) == ("Bnmk", pack if many == MANY_ROWS else None)


def test_one_kernel_serves_all_few_rows() -> None:
    options = Options(threads=2)
    made = {
        (spec_of(family), schedule_of(family))
        for m, n in ((32, 2048), (100, 2100), (200, 2200), (500, 2300))
        for family in [
            Family(F32, (1, 1, 1), class_of(m, n, 2048, F32, options, (1, 1, 1)), options)
        ]
    }
    assert len(made) == 1


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("types", [F32, BF16])
def test_what_is_too_small_for_threads_is_computed_as_by_one(
    types: tuple[str, str, str], axes: tuple[int, int, int]
) -> None:
    one, two = Options(threads=1), Options(threads=2)
    enough = least_parallel(*types[:2], "host")
    small = [sizes for sizes in SIZES if math.prod(sizes) < enough]
    assert small
    for sizes in small:
        apart, offered = (class_of(*sizes, types, options, axes) for options in (one, two))
        assert not offered.parallel
        assert offered.most == (*apart.most[:3], min(apart.most[3], enough - 1))
        mine, others = (Family(types, axes, *each) for each in ((apart, one), (offered, two)))
        assert (spec_of(mine), schedule_of(mine)) == (spec_of(others), schedule_of(others))


def test_a_column_has_one_column_and_a_row_one_row() -> None:
    column = class_of(50, 1, 60, F32, Options())
    row = class_of(1, 50, 60, F32, Options())
    assert spec_of(Family(F32, (1, 0, 0), column, Options())).n == 1
    assert spec_of(Family(F32, (1, 1, 1), row, Options())).m == 1


def test_lines_are_seen_as_they_lie() -> None:
    x = np.zeros((6, 8), "f4")
    assert [contiguous_axis(each) for each in (x, x.T, x[:, :4], x[::2], x[:, ::2])] == [
        1, 0, 1, 1, None,
    ]  # fmt: skip
    assert [contiguous_axis(each) for each in (x[:, :1], x[:1].T, x[:1], x[::-1])] == [
        1, 0, 1, None,
    ]  # fmt: skip
    assert disjoint(x[::-1, ::2])
    assert disjoint(np.zeros((0, 3)))
    assert not disjoint(np.broadcast_to(x[0], (4, 8)))


@pytest.mark.parametrize("itemsize", [1, 4])
def test_interleaved_elements_share_no_memory(itemsize: int) -> None:
    """The strides decide exactly: the right answer is a count of the bytes."""
    rng, found = np.random.default_rng(0), Counter[bool]()
    memory = np.zeros(4096, np.uint8)
    for _ in range(300):
        shape = tuple(map(int, rng.integers(1, 6, rng.integers(1, 4))))
        steps = tuple(int(itemsize * step) for step in rng.integers(0, 12, len(shape)))
        array = as_strided(memory.view(f"u{itemsize}"), shape, steps)
        places = sum(np.ix_(*(np.arange(n) * s for n, s in zip(shape, steps, strict=True))))
        right = len(np.unique(places)) == array.size
        assert disjoint(array) == right, (shape, steps)
        found[right] += 1
    assert min(found.values()) > 20
    a, b, out = np.ones((4, 2), "f4"), np.ones((2, 3), "f4"), np.zeros(50, "f4")
    interleaved = as_strided(out, (4, 3), (20, 16))
    assert (tw.matmul(a, b, interleaved) == 2).all() and (out == 2).sum() == interleaved.size


# -- stacks of tiny products -----------------------------------------------------------------------

#: Products of other sizes, cubes that do not lie in one piece, then cubes that do.
STACKS = """
import numpy as np
import tilewright as tw
from tilewright.runtime.matmul import product

rng = np.random.default_rng(0)
for dtype in (np.float32, np.float64):
    for size in (1, 2, 3, 4, 9, 16, 17):
        a, b = (rng.standard_normal((50, size, size)).astype(dtype) for _ in "ab")
        loose = np.empty((50, size, size + 1), dtype)[:, :, :size]
        for x, out in ((a[:, :1].copy(), None), (a, loose), (a, None)):
            found = tw.matmul(x, b, out, threads=1)
            assert np.allclose(found, x.astype("f8") @ b.astype("f8"), rtol=1e-4, atol=1e-5)
table = product.routes_of(product.Options(threads=1))
print(*(f"{each.types[0]}:{each.sizes.tiny}" for each, _ in table._known if each.sizes.cube))
"""


def test_stacks_of_cubes_have_kernels_of_their_own_whatever_came_before() -> None:
    cubes = [f"{type_}:{size}" for type_ in ("f32", "f64") for size in (1, 2, 3, 4, 9, CUBES)]
    assert python(STACKS).split() == cubes


def test_tiny_stacks_are_of_one_class() -> None:
    def found(m: int, n: int, k: int, tight: bool = True, options: Options = Options()) -> Class:  # noqa: B008
        made = stack_class_of(m, n, k, 1000, F32, options, 1, tight=tight)
        assert made is not None
        return made

    assert found(3, 3, 3).cube and spec_of(Family(F32, (1, 1, 1), found(3, 3, 3), Options())).m == 3
    assert found(3, 2, 3).tiny == 4 and not found(3, 2, 3).cube
    assert found(3, 3, 3, tight=False).loose and not found(3, 3, 3, tight=False).tiny
    assert found(5, 5, 5).cube and found(5, 5, 5, tight=False).above == 4
    assert found(5, 5, 6).above == 4 == found(CUBES + 1, CUBES + 1, CUBES + 1).above
    fixed = found(3, 3, 3, options=Options(deterministic=True))
    assert not (fixed.cube or fixed.tiny or fixed.loose)


def test_who_may_use_one_processor_is_offered_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "usable_cpus", lambda: 1)
    assert not class_of(500, 500, 500, F32, Options()).parallel
    assert class_of(500, 500, 500, F32, Options(threads=2)).parallel


@pytest.mark.parametrize("axis", [1, 0])
def test_what_lies_in_place_has_its_lines_asked_for_in_few_pages(axis: int) -> None:
    """The operand along C's lines; of the other order nothing is known that helps."""
    loops = ("knmk", "nmk") if axis else ("kmnk", "nmk")
    for given, nest in (((axis,) * 3, loops[0]), ((1 - axis, 1 - axis, axis), loops[1])):
        few = Family(
            F32, given, class_of(49, 320, 960, F32, Options(threads=1)), Options(threads=1)
        )
        made = schedule_of(few)
        assert made.loops == nest
        assert (made.prefetch is not None) == (nest == loops[0])


@pytest.mark.parametrize("axes", [ALONG_K, (1, 1, 1), (0, 0, 0)])
def test_threads_share_the_columns_of_products_with_an_epilogue_too(axes: Axes) -> None:
    """Each thread sums its columns in memory of its own, as D cannot hold the sums."""
    m, n, k = (130, 520, 530) if axes[2] else (520, 130, 530)
    relu = Options(threads=2, epilogue=tw.relu(tw.acc))
    assert class_of(m, n, k, F32, relu, axes).shape == "shares"
    halves = ("f32", "f32", "bf16")
    assert class_of(m, n, k, halves, Options(threads=2), axes).shape == "shares"
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype("f4") for shape in ((m, k), (k, n)))
    expected = np.maximum(a @ b, 0)
    a, b, out = (
        np.array(x, order="C" if axis else "F")
        for x, axis in zip((a, b, expected - 1), axes, strict=True)
    )
    tw.matmul(a, b, out, epilogue=tw.relu(tw.acc), threads=2)
    np.testing.assert_array_equal(out, expected)
