"""A library's folder: what is written, what is not overwritten, what the manifest says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tilewright as tw
from tilewright.cli import main
from tilewright.errors import ArgumentError
from tilewright.runtime.library.sources import Order, make
from tilewright.runtime.library.workers import make_all

SPECS = {
    "small": tw.Gemm(4, 4, 4),
    "layer": (
        tw.Gemm(4, 16, 8, a="u8", b=tw.Packed("s8"), beta=1),
        {"avx2": tw.Schedule(tile=(2, 16))},
    ),
}
LIBRARY = tw.library("lib", SPECS, targets=["avx2", "scalar"], jobs=1)
OTHER = tw.library("lib", {"small": tw.Gemm(8, 4, 4)}, targets=["scalar"], jobs=1)


def test_the_files_are_there_and_may_be_written_again(tmp_path: Path) -> None:
    folder = LIBRARY.write(tmp_path / "deep" / "out")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == set(LIBRARY.files)
    assert {"CMakeLists.txt", "meson.build", "lib.pc.in", "include/lib.h", "README.md"} < found
    assert {f"src/{t}/{k}_{t}.c" for t in ("avx2", "scalar") for k in LIBRARY.kernels} < found
    assert LIBRARY.write(folder) == folder


def test_no_two_files_of_c_have_one_name() -> None:
    """A debugger's breakpoint names a file without its folder."""
    names = [Path(path).name for path in LIBRARY.files if path.endswith(".c")]
    assert len(names) > 8 and len(names) == len(set(names))


def test_the_self_test_has_nan_and_infinity() -> None:
    """The first and the last element of A; so has what is right for the rows that they meet."""
    specs = {"small": tw.Gemm(4, 4, 3), "large": tw.Gemm(40, 4, 30)}
    files = tw.library("lib", specs, targets=["scalar"], jobs=1).files
    for name, (rows, numbers) in {"small": (4, "run1_a[]"), "large": (40, "run1_a_some[]")}.items():
        text = "".join(files[f"selftest/{name}_calls.c"].split())

        def listed(array: str, text: str = text) -> list[str]:
            return text.partition(f"{array}={{")[2].partition("}")[0].split(",")

        given = listed(numbers)
        assert "(0.0f/0.0f)" in (given[0], given[-2]) and given[-1] == "(1.0f/0.0f)", name
        assert listed("run1_c_nan[]") == ["1"] * 4 + ["0"] * 4 * (rows - 1), name
        assert listed("run1_c_low[]")[-1] in ("(1.0/0.0)", "(-1.0/0.0)"), name


@pytest.mark.parametrize("how", [tw.Quantize("f32"), tw.Quantize("bf16", zero="s8")])
def test_the_self_test_has_nan_and_infinity_in_an_a_that_is_quantized(how: tw.Quantize) -> None:
    """Both make all sums of their rows NaN."""
    spec = tw.Gemm(4, 5, 40, a=how, b=tw.Packed(tw.Quantized("s8")))
    library = tw.library("lib", {"odd": spec}, targets=["scalar"], jobs=1)
    text = "".join(library.files["selftest/odd_calls.c"].split())
    nan = text.partition("run1_c_nan[]={")[2].partition("}")[0].split(",")
    assert nan == ["1"] * 5 + ["0"] * 10 + ["1"] * 5


def test_no_file_that_is_shipped_speaks_of_templates() -> None:
    assert not [path for path, text in LIBRARY.files.items() if "template" in text]


def test_what_is_no_longer_a_part_is_removed_and_the_users_files_stay(tmp_path: Path) -> None:
    LIBRARY.write(tmp_path)
    (tmp_path / "src" / "mine.c").write_text("")
    OTHER.write(tmp_path)
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {*OTHER.files, "src/mine.c"}
    assert not (tmp_path / "src" / "avx2").exists()


def test_a_file_of_somebody_elses_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ArgumentError, match=r"README.md \(not its own\)"):
        LIBRARY.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize("path", ["include/lib.h", "src/avx2/small_avx2.c", "manifest.json"])
def test_an_edited_file_is_not_overwritten(tmp_path: Path, path: str) -> None:
    LIBRARY.write(tmp_path)
    edited = (tmp_path / path).read_text().replace("tilewright", "TileWright", 1)
    (tmp_path / path).write_text(edited)
    if path == "manifest.json":
        LIBRARY.write(tmp_path)  # it still says what was written
        return
    for library in (LIBRARY, OTHER):
        with pytest.raises(ArgumentError, match=rf"{path} \(edited\)"):
            library.write(tmp_path)
    assert (tmp_path / path).read_text() == edited


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("{", "a manifest that no library wrote"),
        ('{"library": "lib", "files": {"../x": {"sha256": ""}}}', "a manifest that no library"),
        ('{"library": "lib", "files": {"/x": {"sha256": ""}}}', "a manifest that no library"),
        ('{"library": "other", "files": {}}', "the folder holds another library"),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path: Path, manifest: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(ArgumentError, match=message):
        LIBRARY.write(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ArgumentError, match="written into a folder"):
        LIBRARY.write(tmp_path / "out")


def test_every_c_file_says_its_flags_and_who_calls_it() -> None:
    for path, text in LIBRARY.files.items():
        if path.endswith((".c", ".h")):
            banner = text[: text.index("*/")]
            assert "tilewright" in banner and "Called by: " in banner, path
            assert "Flags:  " in banner, path
            assert max(map(len, text.splitlines())) <= 120, path
    banner = LIBRARY.files["src/avx2/small_avx2.c"].partition("*/")[0]
    assert re.search(r"(?s)-O2 .*gcc also: .*-mavx2", banner) and "-mcpu=x86_64_v3" in banner
    assert "Called by: lib_small of src/lib.c, where the CPU has avx2" in banner


def test_the_manifest_says_what_makes_each_file() -> None:
    told = LIBRARY.manifest
    assert told == json.loads(LIBRARY.files["manifest.json"])
    assert set(told["files"]) == set(LIBRARY.files) - {"manifest.json"}
    one = told["files"]["src/avx2/layer_avx2.c"]
    assert one["schedule"] == "Schedule(tile=(2, 16))" and one["target"] == "avx2"
    assert told["files"]["src/scalar/layer_scalar.c"]["schedule"] == "Schedule()"
    assert "-mavx2" in one["flags"]["gcc"] and "tile=(2, 16)" in one["resolved"]
    assert [each["needs"] for each in told["targets"]] == [["avx2", "fma", "f16c"], []]
    words = shlex.split(one["command"])
    text = CliRunner().invoke(main, words[1:]).output
    same = LIBRARY.files["src/avx2/layer_avx2.c"]
    banner = text.partition("*/")[0]
    assert "Flags:     -O2" in banner and "Called by: your program" in banner
    assert _code(text) == _code(same)
    namespace = {name: getattr(tw, name) for name in tw.__all__}
    again = eval(told["command"], namespace)  # noqa: S307, what this test made
    assert dict(again.files) == dict(LIBRARY.files)


def _code(text: str) -> str:
    """What is behind the first comment."""
    return text.partition("*/")[2]


def test_processes_make_the_same_files_as_this_one() -> None:
    @tw.postop
    def twice(x: Any) -> Any:
        return x + x

    specs = [tw.Gemm(4 + i, 8, 8) for i in range(24)]
    specs.append(tw.Gemm(4, 8, 8, epilogue=twice(tw.acc)))  # of this program alone
    orders = [
        Order("lib", f"k{i}", f"k{i}", spec, tw.Schedule(), "avx2", "x")
        for i, spec in enumerate(specs)
    ]
    assert [each.text for each in make_all(orders, 2)] == [make(each).text for each in orders]


def test_an_error_in_another_process_says_whose_it_is() -> None:
    tile = tw.Schedule(tile=(64, 64))
    orders = [
        Order("lib", f"k{i}", f"k{i}", tw.Gemm(8, 8, 8), tw.Schedule(), "avx2", "")
        for i in range(24)
    ]
    orders[20] = Order("lib", "bad", "bad", tw.Gemm(64, 64, 64), tile, "avx2", "")
    with pytest.raises(tw.ScheduleError, match="'bad' for avx2: tile 64x64 needs") as raised:
        make_all(orders, 2)
    assert raised.value.where is not None and "test_folder" in raised.value.where
