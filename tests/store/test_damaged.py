"""A compiler that leaves half a library, and a cache where the locale cannot spell its path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CacheError, ToolchainError
from tilewright.runtime.call import abi
from tilewright.runtime.store import cache
from tilewright.runtime.store.damaged import DamagedError, check_whole, kept

#: A compiler that runs gcc, and cuts what it links: the first so many times.
CUTTING = """#!/bin/sh
case "$*" in *-shared*) ;; *) exec gcc "$@" ;; esac
gcc "$@" || exit 1
while [ "$1" != -o ]; do shift; done
echo >> {counter}
[ "$(wc -l < {counter})" -gt {times} ] || {cut}
"""
CUTS = {
    "half": 'truncate -s "$(($(stat -c %s "$2") / 2))" "$2"',
    "text": 'echo "no library" > "$2"',
    "empty": ': > "$2"',
}
SPEC = tw.Gemm(3, 5, 2)
A, B = np.ones((3, 2), np.float32), np.ones((2, 5), np.float32)


def cutting(folder: Path, cut: str, times: int) -> str:
    path = folder / "cutting-gcc"
    path.write_text(CUTTING.format(counter=folder / "linked", times=times, cut=CUTS[cut]))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("cut", CUTS)
def test_half_a_library_is_made_once_more(
    cut: str, tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tw.compile(tw.Gemm(1, 1, 1), target="scalar")  # what calls kernels is built in peace
    monkeypatch.setenv("CC", cutting(tmp_path, cut, times=1))
    with pytest.warns(RuntimeWarning, match="is made anew"):
        kernel = tw.compile(SPEC, target="scalar")
    assert np.array_equal(kernel(A, B), np.full((3, 5), 2, np.float32))
    assert len((tmp_path / "linked").read_text().splitlines()) == 2
    assert tw.compile(SPEC, target="scalar").name == kernel.name
    assert len((tmp_path / "linked").read_text().splitlines()) == 2


def test_twice_is_an_error_and_nothing_damaged_stays(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tw.compile(tw.Gemm(1, 1, 1), target="scalar")
    whole = len(cache.list_entries())
    monkeypatch.setenv("CC", cutting(tmp_path, "half", times=4))
    for said in (True, False):  # once in a process
        with (
            pytest.warns(RuntimeWarning) if said else monkeypatch.context(),
            pytest.raises(ToolchainError, match="cannot be loaded, twice") as caught,
        ):
            tw.compile(SPEC, target="scalar")
        assert "in the middle of what it holds" in str(caught.value)
        assert len(cache.list_entries()) == whole
    assert tw.compile(SPEC, target="scalar")(A, B)[0, 0] == 2
    assert len(cache.list_entries()) == whole + 1


def test_what_an_interpreter_calls_kernels_by_is_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, with a cache of its own: the dispatcher is loaded once in each."""
    code = (
        "import numpy as np, tilewright as tw\n"
        "from tilewright.runtime.call import dispatch\n"
        "a = np.ones((2, 2), np.float32)\n"
        "assert tw.compile(tw.Gemm(2, 2, 2), target='scalar')(a, a)[0, 0] == 2\n"
        "print(dispatch.mode())\n"
    )
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", cutting(tmp_path, "half", times=1))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stdout.strip() in ("api", "abi"), ran.stderr
    assert ran.stderr.count("RuntimeWarning: ") == 1


def test_a_whole_library_passes_and_every_cut_is_seen(tmp_path: Path, empty_cache: Path) -> None:
    data = tw.compile(SPEC, target="scalar").library.read_bytes()
    path = tmp_path / "k.so"
    path.write_bytes(data)
    check_whole(str(path))
    for length in (0, 3, 16, 63, 64, 100, len(data) // 4, len(data) // 2):
        path.write_bytes(data[:length])
        with pytest.raises(DamagedError):
            check_whole(str(path))
    with pytest.raises(CacheError, match="No such file"):
        check_whole(str(tmp_path / "none.so"))


def test_a_function_that_is_missing_is_damage(empty_cache: Path) -> None:
    library = tw.compile(SPEC, target="scalar").library
    with pytest.raises(DamagedError, match="no_such_function"):
        abi.symbol(library, "no_such_function")


def test_what_is_kept_is_used_as_it_is(empty_cache: Path) -> None:
    def build(folder: Path) -> dict[str, str]:
        (folder / "k.c").write_text("C")
        (folder / "k.so").write_text("library")
        return {"library": "k.so", "source": "k.c"}

    assert [kept("k", build, lambda entry: entry.library.read_text()) for _ in "ab"] == [
        "library"
    ] * 2


def test_umlauts_in_the_path_need_no_locale(tmp_path: Path) -> None:
    code = (
        "import numpy as np, tilewright as tw\n"
        "a = np.ones((2, 2), np.float32)\n"
        "print(tw.compile(tw.Gemm(2, 2, 2), target='scalar')(a, a)[0, 0])\n"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    own = {**os.environ, **plain, "TILEWRIGHT_CACHE_DIR": str(tmp_path / "Bücher" / "ß")}
    for _ in "ab":
        ran = subprocess.run(
            [sys.executable, "-c", code], env=own, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stdout) == (0, "2.0\n"), ran.stderr
    assert (tmp_path / "Bücher" / "ß" / "entries").is_dir()
