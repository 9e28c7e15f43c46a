"""Products with a packed B: every type, batches, zero points and blocks of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import Cases, sampled
from support.products.fused import Kernels, Trial, operands, product
from support.products.fused import draw as whole
from support.products.interpreted import Interpreted
from support.products.packed import DTYPES, draw
from support.products.space import rng_of

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError
from tilewright.runtime.arrays.numba_source import shape_of
from tilewright.runtime.driver import build_many
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.reference.arguments import samples
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Addresses, Batch, Matrix, Offsets, Packed, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.spec.types import is_integer

TARGETS = (
    "scalar", "avx2", "avx2+vnni", "avx512+vnni+bf16+zen5", "amx", "neon", "neon+dotprod",
    "neon+dotprod+i8mm+bf16+fp16fml",
)  # fmt: skip
PAIRS: Any = (
    ("u8", "s8"), ("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("bf16", "bf16"), ("f16", "f16"),
    ("f32", "bf16"), ("f32", "f32"), ("f64", "f64"), ("f8_e4m3", "f8_e5m2"), ("f32", "f8_e4m3"),
)  # fmt: skip
COUNT = dim("count")
BATCHES: tuple[tuple[Batch | None, Schedule], ...] = (
    (None, Schedule()),
    (Strided(3), Schedule()),
    (Strided(COUNT, b=0), Schedule(loops="bnmk")),
    (Addresses(COUNT), Schedule()),
    (None, Schedule(loops="nmnk", block={"n": 32})),
    (Addresses(2), Schedule(loops="bmnk")),
    (None, Schedule(tile=(2, 4), loops="mnk")),
)
COLUMNS: tuple[tuple[Batch | None, Schedule], ...] = (
    (None, Schedule()),
    (Strided(COUNT), Schedule()),
    (None, Schedule(loops="kmnk", block={"k": 40})),
    (None, Schedule(tile=(3, 1), k_split=2)),
    (Addresses(2), Schedule(loops="bmnk")),
    (None, Schedule(vectorize="n")),
    (None, Schedule(k_unroll=3)),
)


def trials_of(target: str) -> Iterator[Trial]:
    """Each pair of types three times: zero points and sizes by chance, K odd and groups cut."""
    for index, (a, b) in enumerate(PAIRS * 3):
        rng = rng_of("packed B", target, index)
        batch, schedule = BATCHES[index % len(BATCHES)]
        m, n, k = (int(size) for size in rng.integers(1, 45, 3))
        whole = is_integer(a)
        wide = "s32" if whole else "f64" if a == "f64" else "f32"
        more: dict[str, Any] = {}
        if whole and index % 4:
            more = {"a_zero": ("row", 131, None)[index % 3], "b_zero": "column"}
        if wide == "f32" and index % 2:
            more = {"beta": 1}
        spec: Any = Gemm(
            dim("m") if index % 2 else m,
            n,
            k,
            a=Matrix(a, "CF"[index % 2]),  # type: ignore[arg-type]
            b=Packed(b, (None, 16, 32, 8)[index % 4]),
            c=Matrix(wide, "CF"[index // 2 % 2]),  # type: ignore[arg-type]
            batch=batch,
            **more,
        )
        if "loops" in repr(schedule) and schedule.block and spec.b.nb is None:
            schedule = Schedule()
        yield Trial(spec, schedule, {"m": m, "count": int(rng.integers(1, 4))})


def columns_of(target: str) -> Iterator[Trial]:
    """A B of one column: vectors lie along K, of which the last part is cut in all ways."""
    for index, (a, b) in enumerate(PAIRS * 3):
        rng = rng_of("column", target, index)
        whole = is_integer(a)
        more: dict[str, Any] = {}
        if whole and index % 4:
            more = {"a_zero": ("row", 131, None)[index % 3], "b_zero": "column"}
        if not whole and index % 2:
            more = {"beta": 1}
        batch, schedule = COLUMNS[index % len(COLUMNS)]
        m, k = int(rng.integers(1, 40)), int(rng.integers(1, 150))
        spec: Any = Gemm(
            dim("m") if index % 2 else m,
            1,
            k,
            a=Matrix(a, "CCCF"[index % 4]),  # type: ignore[arg-type]
            b=Packed(b),
            batch=batch,
            **more,
        )
        yield Trial(spec, schedule, {"m": m, "count": int(rng.integers(1, 4))})


def drawn(trial: Trial, rng: np.random.Generator) -> dict[str, Any]:
    """Integers of their whole range, small whole numbers in floating point."""
    found = operands(trial, rng)
    for name in ("a", "b"):
        type_ = getattr(trial.spec, name).type
        if is_integer(type_):
            for one in found[name] if isinstance(found[name], list) else [found[name]]:
                one[...] = draw(type_, one.shape, rng)
    return found


def expected(trial: Trial, given: dict[str, Any]) -> Any:
    """C in 64 bits; integers modulo 2**32."""
    spec: Any = trial.spec
    if spec.type != "s32":
        old = given["c"].astype(np.float64) if spec.beta else 0
        return product(trial, given) + old
    shifted = dict(given)
    for name, zero in (("a", spec.a_zero), ("b", spec.b_zero)):
        zero = given[f"{name}_zero"] if isinstance(zero, str) else zero or 0
        zero = np.asarray(zero, np.int64).reshape((-1, 1) if name == "a" else (1, -1))
        matrices = given[name] if isinstance(given[name], list) else [given[name]]
        moved = [one.astype(np.int64) - zero for one in matrices]
        shifted[name] = moved if spec.batch is not None else moved[0]
    return product(trial, shifted).astype(np.int32)


@pytest.mark.parametrize("target", TARGETS)
def test_products_with_a_packed_b(target: str, tmp_path: Path, cases: Cases) -> None:
    trials = sampled(target, (*trials_of(target), *columns_of(target)))
    kernels = Kernels(target, trials, tmp_path)
    for index, trial in enumerate(trials):
        given = drawn(trial, rng_of(target, index))
        for flush in ("front", "rear"):
            got = kernels(index, given, flush)["out"]
            right = expected(trial, given).astype(DTYPES[trial.spec.c.type])
            np.testing.assert_array_equal(got, right, err_msg=str(trial))
    cases.count(kernels.target.name, kernels.lab.means, len(trials))


@pytest.mark.parametrize("target", ["scalar", "avx2", "amx", "neon"])
@pytest.mark.parametrize("loops", [None, "bnmk"])
def test_offsets_find_the_matrices_of_both(
    target: str, loops: str | None, tmp_path: Path, cases: Cases
) -> None:
    """Windows of A at elements, and matrices of a packed stack by their numbers: a convolution."""
    rng, size = np.random.default_rng(3), (5, 18, 6)
    pairs: Any = (("f32", "f32"), ("bf16", "bf16"), ("u8", "s8"))
    schedule = Schedule(loops=loops)
    specs = [Gemm(*size, a=a, b=Packed(b), batch=Offsets(COUNT)) for a, b in pairs]
    trials = [Trial(spec, schedule, {"count": 3}) for spec in specs]
    kernels = Kernels(target, trials, tmp_path)
    for index, trial in enumerate(trials):
        a = whole(trial.spec.a.type, (80,), rng)
        b = [whole(trial.spec.b.type, (6, 18), rng) for _ in range(4)]
        offsets, chosen = (7, 50, 9), (3, 0, 3)
        given = {"a": [a], "b": b, "a_offsets": offsets, "b_offsets": chosen}
        got = kernels(index, given)["out"]
        windows = (a[first:][:30].reshape(5, 6) for first in offsets)
        wide = (
            left.astype("f8") @ b[place].astype("f8")
            for left, place in zip(windows, chosen, strict=True)
        )
        np.testing.assert_array_equal(got, sum(wide).astype(got.dtype), err_msg=str(trial))
    cases.count(kernels.target.name, kernels.lab.means, len(trials))


# --- a packed stack as an arena: offsets count its matrices, in any order -------------------------

FEW = tw.Quantized("u4", scale="f16", zero="u4", block=16)
ARENAS: dict[str, Gemm] = {
    "f32": Gemm(5, 18, 7, b=Packed("f32"), batch=Offsets(COUNT)),
    "bf16": Gemm(5, 18, 7, a="bf16", b=Packed("bf16"), batch=Offsets(3, a=(9, 0, 4))),
    "static": Gemm(5, 18, 7, a="u8", b=Packed("s8"), batch=Offsets(3, b=(4, 0, 4))),
    "few": Gemm(3, 18, 32, b=Packed(FEW), batch=Offsets(COUNT)),
    "gated": Gemm(
        3, 18, 7, b=Packed("f32"), b2=Packed("f32"), batch=Offsets(COUNT),
        epilogue=tw.acc * tw.acc2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("loops", [None, "bnmk"])
@pytest.mark.parametrize("target", [*TARGETS, "sve256", "sme", "power10", "rvv256"])
def test_offsets_count_packed_matrices_on_every_target(
    target: str, loops: str | None, cases: Cases
) -> None:
    """Within the loops of a tile, and outside of those over C."""
    names = [name for name in ARENAS if loops is None or name in ("f32", "static")]
    for name in names:
        one = Interpreted(ARENAS[name], Schedule(loops=loops), resolve(target))
        one.run(one.sample(0, whole=True))
    cases.count(target, "interpreted", len(names))


@pytest.mark.twice
def test_a_kernel_takes_matrices_of_an_arena(cases: Cases) -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(-4, 5, (4, 7, 18)).astype(np.float32)
    a = rng.integers(-4, 5, 3 * 35).astype(np.float32)
    kernels = build_many([(ARENAS[name], None, "host") for name in ("f32", "few")], ("-O0",))
    for kernel in kernels:
        kernel.verify(cases=2)
        cases.count(kernel.target, kernel.emulated or "native", 2)
    arena = kernels[0].pack_b(weights)
    assert arena.shape == (4, 7, 18)
    at, chosen = np.array([0, 35, 70]), np.array([3, 0, 3])
    wide = a.astype(np.float64).reshape(3, 5, 7)
    right = sum(wide[i] @ weights[chosen[i]] for i in range(3))
    got = kernels[0](a, arena, a_offsets=at, b_offsets=chosen)
    assert (got == right).all()
    joined = np.concatenate([kernels[0].pack_b(one[None]).data for one in weights])
    again = tw.PackedMatrix(arena.format, (4, 7, 18), joined)
    assert (kernels[0](a, again, a_offsets=at, b_offsets=chosen) == right).all()


@pytest.mark.twice
def test_offsets_beyond_the_arena_are_refused() -> None:
    """Also of a stack without matrices, and of one that is no stack: it has the matrix 0."""
    kernel = build_many([(ARENAS["f32"], None, "scalar")], ("-O0",))[0]
    a = np.ones(35, np.float32)
    arena = kernel.pack_b(np.ones((2, 7, 18), np.float32))
    one = tw.PackedMatrix(arena.format, (7, 18), arena.data[: arena.nbytes // 2].copy())
    none = kernel.pack_b(np.ones((0, 7, 18), np.float32))

    def call(b: Any, offset: int) -> Callable[[], Any]:
        first = np.zeros(1, np.int64)
        return lambda: kernel(a, b, a_offsets=first, b_offsets=np.array([offset]))

    for b, offset in ((arena, 0), (arena, 1), (one, 0)):
        assert (call(b, offset)() == 7).all()
    empty = np.zeros(0, np.int64)
    assert not kernel(a, none, a_offsets=empty, b_offsets=empty).any()
    for b, offset, most in ((arena, 2, 1), (arena, -1, 1), (one, 1, 0), (arena, 2**62, 1)):
        with pytest.raises(ArgumentError, match=rf"offset 0 of b [^~]*{offset}[^~]*0 to {most}"):
            call(b, offset)()
    with pytest.raises(ArgumentError, match="b has no matrix"):
        call(none, 0)()


# -- sizes of the call ----------------------------------------------------------------------------

OPEN: Any = (
    ("avx2", Gemm(dim("m"), dim("n"), dim("k"), b=Packed("f32"))),
    ("avx2+vnni", Gemm(dim("m"), dim("n"), dim("k"), a="s8", b=Packed("s8"), b_zero="column")),
    ("avx512+vnni+bf16", Gemm(8, dim("n"), dim("k"), a="bf16", b=Packed("bf16"), beta=1)),
    ("avx512", Gemm(dim("m"), dim("n"), 33, a="u8", b=Packed("s8"), a_zero=3)),
    ("neon", Gemm(dim("m"), 20, dim("k"), a="s8", b=Packed("s8", 16))),
    ("neon+dotprod+i8mm+bf16+fp16fml",
     Gemm(dim("m"), dim("n"), dim("k"), a="u8", b=Packed("s8"), batch=Strided(COUNT))),
    ("amx", Gemm(dim("m"), dim("n"), dim("k"), a="bf16", b=Packed("bf16"))),
    ("amx", Gemm(dim("m"), dim("n"), dim("k"), a="u8", b=Packed("s8"), d="u8", b_scale="column")),
    ("sme", Gemm(dim("m"), dim("n"), dim("k"), b=Packed("f32"))),
)  # fmt: skip


@pytest.mark.parametrize(("target", "spec"), OPEN, ids=str)
def test_a_packed_b_of_any_size_is_interpreted(target: str, spec: Gemm, cases: Cases) -> None:
    kernel = Interpreted(spec, Schedule(), resolve(target))
    for held in samples(spec, kernel.signature, 3, 1):
        kernel.run(held)
    cases.count(target, "interpreted")


@pytest.mark.twice
def test_one_kernel_serves_all_layers_and_checks_whose_b_it_gets() -> None:
    kernel = tw.compile(OPEN[0][1])
    rng = np.random.default_rng(0)
    layers = [rng.integers(-4, 5, size).astype(np.float32) for size in ((70, 101), (101, 30))]
    packed = [kernel.pack_b(b) for b in layers]
    x: Any = rng.integers(-4, 5, (5, 70)).astype(np.float32)
    assert (kernel(kernel(x, packed[0]), packed[1]) == x @ layers[0] @ layers[1]).all()
    assert "101x30 in groups" in packed[1].format
    assert kernel.verify(cases=4).cases >= 4
    with pytest.raises(ArgumentError, match=r"b has the wrong shape(?s:.*)k is 70, from a.shape"):
        kernel(x, packed[1])
    with pytest.raises(SpecError, match="cannot be called from numba: b is packed, and of any"):
        shape_of("kernel", kernel.signature.array("b"))
    with pytest.raises(ArgumentError, match="any size in groups"):
        kernel(x, tw.compile(Gemm(5, 101, 70, b=Packed("f32", 16))).pack_b(layers[0]))
    blocks = int(packed[0].format.split("blocks of ")[1].split()[0])
    fixed = tw.compile(Gemm(5, 101, 70, b=Packed("f32", blocks)))
    assert (fixed(x, packed[0]) == kernel(x, fixed.pack_b(layers[0]))).all()
    eights = tw.compile(Gemm(dim("m"), dim("n", multiple_of=8), dim("k"), b=Packed("f32")))
    with pytest.raises(ArgumentError, match=r"b has the wrong shape(?s:.*)multiple_of=8"):
        eights.pack_b(layers[0])


def test_a_packing_of_any_size_checks_the_bytes_it_writes_to() -> None:
    packer = tw.compile(tw.Pack(dim("k"), dim("n"), "bf16"))
    with pytest.raises(ArgumentError, match="out has the wrong shape"):
        packer(np.ones((9, 7), ml_dtypes.bfloat16), np.zeros((1, 64), np.uint8))
