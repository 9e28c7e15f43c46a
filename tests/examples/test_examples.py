"""The programs in examples/ run, are right, and notice when they are not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import TargetError
from tilewright.examples import (
    blocked_epilogue,
    cython_products,
    dask_cluster,
    decoder_layer,
    digits,
    jax_layer,
    neon_chapter,
    numba_loop,
    oriented_filters,
    sgemm,
    torch_ring,
)
from tilewright.runtime.machine import host
from tilewright.targets import load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def programs() -> list[Path]:
    return sorted(EXAMPLES.glob("[a-z]*.py"))


def runs(target: str) -> bool:
    try:
        host.means(host.resolve(target))
    except TargetError:
        return False
    return True


def test_every_program_says_how_it_is_run() -> None:
    assert programs()
    for program in programs():
        assert f"    python examples/{program.name} " in program.read_text()


def test_a_decoder_layer_with_four_bits_is_near_the_one_in_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    off = decoder_layer.main("small", 2)
    assert off["q8_0"] < 0.02 < off["q4_0"] < 0.2
    assert (tmp_path / "build" / "decoder_layer.svg").exists()


# -- in other libraries -------------------------------------------------------------------------


def test_products_in_a_loop_of_numba() -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    assert numba_loop.check(50) < 1e-4


def test_products_in_a_loop_of_cython() -> None:
    pytest.importorskip("Cython", reason="Cython is not installed")
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if shutil.which("gcc") is None or not headers.exists():
        pytest.skip("no gcc, or no headers of Python")
    assert cython_products.check(50) < 1e-4
    assert cython_products.check_few_bits(50) < 1e-4


def test_a_network_in_pytorch() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    found = torch_ring.accuracies(150)
    assert min(found.values()) > 0.9, found


def test_a_layer_in_jax() -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    assert jax_layer.check(20) < 1e-4


# -- a BLAS call --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["host", "scalar"])
def test_the_blas_call_is_right(target: str) -> None:
    assert sgemm.check(target) < 1e-5


def test_a_blas_call_whose_arrays_are_too_small_is_refused() -> None:
    a, b, c = (np.zeros(size, np.float32) for size in (10, 600, 320))
    with pytest.raises(ValueError, match="10 x 30 matrix with columns 12 apart needs 358"):
        sgemm.sgemm("N", "T", 10, 20, 30, 1.0, a, 12, b, 20, 0.0, c, 16)
    with pytest.raises(ValueError, match="at least 10 apart"):
        sgemm.sgemm("N", "T", 10, 20, 30, 1.0, np.zeros(600, "f4"), 8, b, 20, 0.0, c, 16)


# -- the chapter --------------------------------------------------------------------------------


def test_the_set_is_the_chapters() -> None:
    rows = {(*row.sizes, *row.tile, row.loops, row.batch) for row in neon_chapter.ROWS}
    assert rows == {
        (16, 6, 1, 16, 6, "k", None),
        (16, 6, 64, 16, 6, "k", None),
        (64, 6, 64, 16, 6, "mk", None),
        (64, 48, 64, 16, 6, "nmk", None),
        (64, 48, 64, 16, 4, "nmk", None),
        (14, 6, 64, 14, 6, "k", None),
        (15, 6, 64, 15, 6, "k", None),
        (64, 64, 64, 16, 4, "nmk", None),
        (64, 48, 64, 16, 4, "bnmk", 16),
        (64, 48, 64, 16, 4, "nmbk", 16),
    }


@pytest.mark.twice
@pytest.mark.parametrize("fixed", [False, True], ids=["runtime", "fixed"])
@pytest.mark.parametrize("target", ["neon", "host"])
def test_the_chapter(target: str, fixed: bool, cases, capsys: pytest.CaptureFixture[str]) -> None:
    if not runs(target):
        pytest.skip(f"nothing runs {target}")
    assert neon_chapter.show(target, fixed=fixed)
    text = capsys.readouterr().out
    resolved = host.resolve(target)
    cases.count(resolved.name, host.means(resolved), len(neon_chapter.ROWS) + 1)
    lines = text.strip().splitlines()[2:]
    assert len(lines) == len(neon_chapter.ROWS) + 1
    how = "GFLOPS" if host.is_native(resolved) else "(through "
    assert all(how in line or "GB/s" in line for line in lines)


def test_leading_dimensions_at_run_time_are_parameters_of_the_c_function() -> None:
    *_, row = neon_chapter.ROWS
    assert [size.slot for size in tw.compile(row.spec(fixed=False)).signature.sizes] == [
        "lda",
        "ldb",
        "ldc",
    ]
    assert not row.spec(fixed=True).runtime_sizes()


def test_the_check_finds_a_wrong_kernel() -> None:
    row = neon_chapter.ROWS[1]

    def off_by_one_product(a, b, c):  # a K step is missing
        c += a[:, 1:] @ b[1:]

    assert neon_chapter.check(off_by_one_product, row, padding=3) > 1
    assert neon_chapter.check(lambda a, b, c: np.add(c, a @ b, out=c), row, padding=3) <= 1
    assert neon_chapter.check_transposition(lambda x, out: x, padding=3) == 1


# -- the filters --------------------------------------------------------------------------------


@pytest.mark.twice
def test_the_filters_as_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    picture = tmp_path / "picture.png"
    assert oriented_filters.main(str(picture)) == 0
    text = capsys.readouterr().out
    assert "32 filters of 7x7x3 over 640x427 pixels" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.twice
@pytest.mark.parametrize("target", ["neon", "avx2", "scalar"])
def test_the_filters_on_every_target(target: str, cases) -> None:
    if not runs(target):
        pytest.skip(f"nothing runs {target}")
    image = np.random.default_rng(0).random((11, 40, 3), np.float32)
    bank = oriented_filters.filter_bank()
    kernel = oriented_filters.compile_filter(40, target)
    error = abs(
        oriented_filters.respond(kernel, image, bank)
        - oriented_filters.respond_by_scipy(image, bank)
    )
    assert error.max() <= 151 * np.finfo(np.float32).eps
    cases.count(target, host.means(load(target)))


def test_the_filters_ignore_an_even_surface() -> None:
    bank = oriented_filters.filter_bank()
    assert bank.shape == (7, 7, 3, 32)
    assert abs(bank.sum(axis=(0, 1))).max() < 1e-6
    assert abs(bank).sum(axis=(0, 1, 2)).max() <= 1 + 1e-6


# -- as programs --------------------------------------------------------------------------------


def test_a_program_runs_as_a_script(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "neon_chapter.py"), "host"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "all within the bound" in done.stdout


# -- low precision ------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["host", "neon+dotprod", "scalar"])
def test_blocks_of_k_and_offsets_are_exact(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not runs(target):
        pytest.skip(f"nothing here runs {target}")
    assert blocked_epilogue.main(target) == 0
    assert "0 of 384 elements differ" in capsys.readouterr().out


def test_a_network_keeps_its_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    assert digits.main(repeats=1) == 0
    shares = [
        float(line.split("%")[0].split()[-1]) for line in capsys.readouterr().out.splitlines()[1:]
    ]
    assert len(shares) == 4 and min(shares) > 95


def test_a_wrong_network_is_noticed() -> None:
    learn, labels, images, wanted = digits.digits()
    network = digits.train(learn, labels, epochs=1)
    right = digits.in_f32(network)(images).argmax(1) == wanted
    assert np.mean(right) < np.mean(
        digits.by_numpy(digits.train(learn, labels))(images).argmax(1) == wanted
    )


# -- a cluster ----------------------------------------------------------------------------------


def test_blocks_on_a_cluster_of_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    assert dask_cluster.main(seconds=0.1, size=256, search="ranked") == 0
    said = capsys.readouterr().out
    assert "1 winner(s) merged" in said and "times the default" in said
    assert f"{(2 * 256 + 128) * 128 * 4 // 1024} KiB for each block" in said
    assert "0 of 65536 elements beyond the bound" in said
    assert dask_cluster.main(size=100) == 2
