"""C that a person edited: compiled in place of what is generated, behind the same checks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from support.command_line import Run, run  # noqa: F401

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError, ToolchainError, VerificationError
from tilewright.runtime.machine import host
from tilewright.runtime.store import cache

EMULATED = "neon" if host.machine() != "aarch64" else "avx2"
SPEC = tw.Gemm(16, 24, 32, beta=1)
Change = Callable[[str, str], Path]


@pytest.fixture
def kernel() -> tw.Kernel:
    return tw.compile(SPEC, target="scalar")


@pytest.fixture
def changed(kernel: tw.Kernel, tmp_path: Path) -> Change:
    """Write the kernel's C with one text in place of another, which it must have."""

    def change(old: str, new: str) -> Path:
        path = kernel.edit(tmp_path / "kernel.c")
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        return path

    return change


def test_an_edited_kernel_is_what_the_file_says(kernel: tw.Kernel, changed: Change) -> None:
    loop = "multiply-add"
    edited = tw.compile(SPEC, target="scalar", source=changed(loop, f"{loop} by hand"))
    assert f"{loop} by hand" in edited.source and f"{loop} by hand" not in kernel.source
    a, b, c = (np.full(shape, 0.5, np.float32) for shape in ((16, 32), (32, 24), (16, 24)))
    assert np.array_equal(edited(a, b, c), np.full((16, 24), 8.5, np.float32))
    assert edited.verify().cases == 3
    assert edited.name == kernel.name and edited.name in edited.assembly()
    assert f"edited in {edited.edited.path}" in repr(edited)  # type: ignore[union-attr]
    assert edited.explain().startswith("edited ") and not kernel.explain().startswith("edited")
    assert tw.compile(SPEC, target="scalar").edited is None


def test_the_diff_is_what_was_changed(changed: Change) -> None:
    path = changed("multiply-add", "multiply-add by hand")
    lines = tw.compile(SPEC, target="scalar", source=path).diff().splitlines()
    assert lines[:2] == ["--- generated", f"+++ {path}"]
    added = [line for line in lines[2:] if line.startswith(("+", "-"))]
    assert len(added) == 2 and "by hand" in added[1] and "by hand" not in added[0]


def test_the_time_of_both_stands_below_the_diff(changed: Change) -> None:
    edited = tw.compile(SPEC, target="scalar", source=changed("multiply-add", "multiply-add too"))
    last = edited.diff(measure=True).splitlines()[-1]
    assert last.startswith("generated ") and "times as fast" in last


def test_a_file_as_generated_has_no_diff(kernel: tw.Kernel, tmp_path: Path) -> None:
    path = kernel.edit(tmp_path / "same.c")
    edited = tw.compile(SPEC, target="scalar", source=str(path))
    assert edited.diff() == ""
    with pytest.raises(SpecError, match="was not edited"):
        kernel.diff()


def test_what_computes_something_else_is_found_wrong(changed: Change) -> None:
    edited = tw.compile(SPEC, target="scalar", source=changed("kt < ", "kt + 1 < "))
    with pytest.raises(VerificationError, match="is wrong at c"):
        edited.verify()


def test_the_compiler_speaks_of_the_file(changed: Change) -> None:
    path = changed("multiply-add", "*/ no C /*")
    with pytest.raises(ToolchainError) as caught:
        tw.compile(SPEC, target="scalar", source=path)
    assert f"{path}:" in str(caught.value) and "kernels.c:" not in (caught.value.got or "")


def test_other_parameters_are_refused(kernel: tw.Kernel, tmp_path: Path) -> None:
    path = kernel.edit(tmp_path / "kernel.c")
    with pytest.raises(SpecError, match="does not declare") as caught:
        tw.compile(tw.Gemm(16, 24, tw.dim("k"), beta=1), target="scalar", source=path)
    assert "int64_t k" in str(caught.value)


def test_files_that_cannot_be(kernel: tw.Kernel, tmp_path: Path) -> None:
    path = kernel.edit(tmp_path / "kernel.c")
    with pytest.raises(ArgumentError, match="may have been edited"):
        kernel.edit(path)
    with pytest.raises(ArgumentError, match="cannot be written"):
        kernel.edit(tmp_path / "missing" / "kernel.c")
    with pytest.raises(ArgumentError, match="cannot be read"):
        tw.compile(SPEC, source=tmp_path / "other.c")
    with pytest.raises(ArgumentError, match="source is a path"):
        tw.compile(SPEC, source=3)  # type: ignore[arg-type]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match="cannot be read"):
        tw.compile(SPEC, source=path)
    path.write_text("int main(void) { return 0; }\n")
    with pytest.raises(ArgumentError, match="must define one kernel"):
        tw.compile(SPEC, source=path)


@pytest.mark.parametrize(
    ("before", "declared"),
    [
        ("/* Mine. */ ", "void NAME(const float *a, const float *b, float *c);"),
        ("// Mine; see NAME(x).\n", "void NAME(const float *a, const float *b, float *c);"),
        ("__attribute__((hot)) ", "void NAME(const float *a, const float *b, float *c);"),
        ("#define HOT\nHOT ", "void NAME(const float *a, const float *b, float *c);"),
        (
            "",
            "void __attribute__((cold))\nNAME(const float* a, /* k */ const float*b, float* c);",
        ),
    ],
)
def test_comments_and_attributes_of_a_function_are_its_authors(
    kernel: tw.Kernel, changed: Change, before: str, declared: str
) -> None:
    old = f"void {kernel.name}(const float *a, const float *b, float *c);"
    path = changed(old, f"{before}{declared.replace('NAME', kernel.name)}")
    edited = tw.compile(SPEC, target="scalar", source=path)
    assert edited.c_declaration == kernel.c_declaration == old
    assert edited.verify(cases=1).cases == 1


def test_other_parameters_are_found_behind_comments(kernel: tw.Kernel, changed: Change) -> None:
    name = kernel.name
    path = changed(f"void {name}(const float *a, ", f"/* mine */ void {name}(const double *a, ")
    with pytest.raises(SpecError, match="does not declare") as caught:
        tw.compile(SPEC, target="scalar", source=path)
    assert f"void {name}(const double *a, const float *b, float *c);" in str(caught.value)


def test_it_is_cached_by_its_text(changed: Change) -> None:
    path = changed("multiply-add", "multiply-add, cached")
    first = tw.compile(SPEC, target="scalar", source=path)
    again = tw.compile(SPEC, target="scalar", source=path)
    assert first.library == again.library
    path.write_text(path.read_text().replace("cached", "changed"))
    assert tw.compile(SPEC, target="scalar", source=path).library != first.library
    assert all(entry.library.exists() for entry in cache.list_entries())


def test_it_pickles_with_its_text(changed: Change) -> None:
    path = changed("multiply-add", "multiply-add, pickled")
    edited = tw.compile(SPEC, target="scalar", source=path)
    words = pickle.dumps(edited)
    path.unlink()
    twin = pickle.loads(words)
    assert twin.edited == edited.edited and twin.library == edited.library
    twin.verify()


def test_it_can_be_edited_again(changed: Change, tmp_path: Path) -> None:
    first = tw.compile(SPEC, target="scalar", source=changed("multiply-add", "multiply-add, once"))
    assert "multiply-add, once" in first.edit(tmp_path / "second.c").read_text()


def test_one_kernel_of_several_is_edited_alone(tmp_path: Path) -> None:
    first, second = tw.compile_many([(SPEC, None, "scalar"), (tw.Gemm(3, 5, 7), None, "scalar")])
    text = first.edit(tmp_path / "first.c").read_text()
    assert first.name in text and second.name not in text


def test_it_runs_where_the_cpu_lacks_the_target(tmp_path: Path) -> None:
    if not host.means(host.resolve(EMULATED)):
        pytest.skip(f"nothing here runs {EMULATED}")
    path = tw.compile(SPEC, target=EMULATED).edit(tmp_path / "foreign.c")
    path.write_text(path.read_text().replace("multiply-add", "multiply-add by hand", 1))
    edited = tw.compile(SPEC, target=EMULATED, source=path)
    assert edited.emulated is not None and edited.verify(cases=1).cases == 1
    with pytest.raises(tw.TargetError, match="measuring needs a CPU"):
        edited.diff(measure=True)


# -- the schedule that a kernel came to -----------------------------------------------------------


SPECS = {
    "fixed": tw.Gemm(64, 48, 64),
    "large": tw.Gemm(512, 512, 512),
    "run-time": tw.Gemm(tw.dim("m"), 64, 64),
    "stack": tw.Gemm(4, 4, 4, batch=tw.Strided(100, c=None)),
    "bytes": tw.Gemm(64, 64, 64, a="u8", b=tw.Packed("s8")),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_resolved_schedule_is_code_and_json(name: str) -> None:
    kernel = tw.compile(SPECS[name])
    chosen = kernel.schedule
    assert chosen.tile is not None and chosen.vectorize is not None
    assert eval(repr(chosen), {"Schedule": tw.Schedule}) == chosen  # noqa: S307
    assert tw.Schedule(**json.loads(json.dumps(asdict(chosen)))) == chosen
    assert f"Resolved: {chosen!r}"[:60] in kernel.source


@pytest.mark.parametrize("name", SPECS)
def test_the_resolved_schedule_leads_to_itself(name: str) -> None:
    chosen = tw.compile(SPECS[name]).schedule
    assert tw.compile(SPECS[name], chosen).schedule == chosen


def test_kernels_of_one_library_have_their_own_schedules() -> None:
    tiles = [(2, 16), (4, 16)]
    kernels = tw.compile_many([(SPECS["fixed"], tw.Schedule(tile=tile)) for tile in tiles])
    assert [kernel.schedule.tile for kernel in kernels] == tiles
    assert kernels[0].requested == tw.Schedule(tile=(2, 16))


def test_what_has_no_tile_keeps_what_was_asked() -> None:
    assert tw.compile(tw.Transpose(8, 8, "f32")).schedule == tw.Schedule()


# -- on the command line --------------------------------------------------------------------------


def test_run_writes_the_c_then_checks_and_times_it(run: Run, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "gemm.c"
    words = ("run", "16x24x32", "--source", str(path))
    assert "as generated" in run(*words).stdout
    path.write_text(path.read_text().replace("multiply-add", "multiply-add by hand", 1))
    text = run(*words).stdout
    assert "right in 3 cases" in text and "by hand" in text and "times as fast" in text
    assert "one kernel" in run(*words, "8x8x8", status=1).stderr


def test_run_says_what_is_not_timed(run: Run, tmp_path: Path) -> None:  # noqa: F811
    if not host.means(host.resolve(EMULATED)):
        pytest.skip(f"nothing here runs {EMULATED}")
    words = ("run", "8x8x8", "--target", EMULATED, "--source", str(tmp_path / "gemm.c"))
    assert run(*words).exit_code == 0
    text = run(*words).stdout
    assert "nothing was changed" in text and "not timed" in text
