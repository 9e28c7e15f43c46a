"""What AMX's header does where the CPU faults; states of threads."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.compilers import FAMILIES, use
from support.spellings.tiles import PRELUDE, TILES

from tilewright.emit.render import render
from tilewright.runtime.build.toolchain import compile_library, compile_program
from tilewright.runtime.machine.host import is_native, machine

every_family = pytest.mark.parametrize("family", FAMILIES)
here = pytest.mark.skipif(machine() != "x86_64", reason="compiles for x86")
native = pytest.mark.skipif(
    not is_native(TILES), reason=f"the CPU has not all of {', '.join(TILES.cpu_flags)}"
)

PRODUCTS = ("dpbssd", "dpbsud", "dpbusd", "dpbuud", "dpbf16ps", "dpfp16ps")
ALL_FULL = "; ".join(f"shape({i}, 16, 64)" for i in range(7))
ASKED = f"tile_permission(); {ALL_FULL}; CONFIGURE(config);"
UNCONFIGURED = "no configuration is loaded (#UD)"
GROUPS = "rows are not whole groups of 4 bytes (#UD)"

#: The header faults before the CPU does.
UNASKED = f"{ALL_FULL}; CONFIGURE(config); _tile_zero(0);"
#: Statements, and what the intrinsic that comes last says.
LOADS = {
    "config[0] = 2;": "the palette is neither 0 nor 1 (#GP)",
    "config[2] = 1;": "reserved bytes are not 0 (#GP)",
    "config[15] = 1;": "reserved bytes are not 0 (#GP)",
    "shape(8, 1, 4);": "tile 8: the tiles are 0 to 7 (#GP)",
    "config[32] = 4;": "tile 8: the tiles are 0 to 7 (#GP)",
    "config[47] = 1;": "tile 15: the tiles are 0 to 7 (#GP)",
    "config[63] = 1;": "tile 15: the tiles are 0 to 7 (#GP)",
    "shape(3, 17, 64);": "tile 3: more than 16 rows (#GP)",
    "shape(3, 16, 65);": "tile 3: more than 64 bytes per row (#GP)",
    "shape(3, 16, 256);": "tile 3: more than 64 bytes per row (#GP)",
    "shape(7, 1, 0);": "tile 7: rows without bytes, or bytes without rows (#GP)",
    "shape(7, 0, 4);": "tile 7: rows without bytes, or bytes without rows (#GP)",
}
CONFIGURED = {
    "_tile_release(); _tile_loadd(0, memory, 64);": f"tile 0: {UNCONFIGURED}",
    "_tile_release(); _tile_zero(0);": f"tile 0: {UNCONFIGURED}",
    "_tile_release(); _tile_dpbssd(0, 1, 2);": f"tile 0: {UNCONFIGURED}",
    "config[0] = 0; CONFIGURE(config); _tile_stored(0, memory, 64);": f"tile 0: {UNCONFIGURED}",
    "_tile_zero(7);": "tile 7: it is not configured (#UD)",
    "_tile_loadd(7, memory, 64);": "tile 7: it is not configured (#UD)",
    "_tile_stream_loadd(7, memory, 64);": "tile 7: it is not configured (#UD)",
    "_tile_stored(7, memory, 64);": "tile 7: it is not configured (#UD)",
    "_tile_dpbssd(0, 1, 7);": "tile 7: it is not configured (#UD)",
    "_tile_dpbf16ps(7, 1, 2);": "tile 7: it is not configured (#UD)",
}
SHAPED = {
    "shape(0, 15, 64)": ("_tile_dpbssd(0, 1, 2);", "C and A differ in rows (#UD)"),
    "shape(1, 3, 64)": ("_tile_dpbf16ps(0, 1, 2);", "C and A differ in rows (#UD)"),
    "shape(1, 16, 60)": ("_tile_dpbuud(0, 1, 2);", "A's groups per row are not B's rows (#UD)"),
    "shape(2, 15, 64)": ("_tile_dpbf16ps(0, 1, 2);", "A's groups per row are not B's rows (#UD)"),
    "shape(2, 16, 60)": ("_tile_dpbsud(0, 1, 2);", "C and B differ in bytes per row (#UD)"),
    "shape(0, 16, 4)": ("_tile_dpbf16ps(0, 1, 2);", "C and B differ in bytes per row (#UD)"),
    "shape(1, 16, 63)": ("_tile_dpbusd(0, 1, 2);", GROUPS),
    "shape(0, 16, 62); shape(2, 16, 62)": ("_tile_dpbf16ps(0, 1, 2);", GROUPS),
    "shape(1, 4, 7)": ("_tile_loadd(1, memory, 64);", f"tile 1: its {GROUPS}"),
    "shape(2, 4, 5)": ("_tile_stored(2, memory, 64);", f"tile 2: its {GROUPS}"),
    "shape(2, 3, 4); config[1] = 3": (
        "_tile_loadd(2, memory, 64);",
        "tile 2: start_row is beyond its rows (#UD)",
    ),
}
#: An assembler does not take these.
UNSPEAKABLE = {
    **{f"_tile_{p}(1, 1, 2);": "a tile is named twice (#UD)" for p in PRODUCTS},
    "_tile_dpbssd(1, 2, 1);": "a tile is named twice (#UD)",
    "_tile_dpbssd(1, 2, 2);": "a tile is named twice (#UD)",
    "_tile_zero(8);": "tile 8: the tiles are 0 to 7 (#UD)",
    "_tile_loadd(-1, memory, 64);": "tile -1: the tiles are 0 to 7 (#UD)",
    "_tile_dpbssd(0, 1, 8);": "tile 8: the tiles are 0 to 7 (#UD)",
}

PROGRAM = """
#include <stdint.h>
#include <stdlib.h>
#ifdef TILEWRIGHT_INTRINSICS
#include TILEWRIGHT_INTRINSICS
#else
#include <immintrin.h>
#endif
#define INLINE static inline __attribute__((unused))
%s
static uint8_t config[64], memory[1024];
INLINE void shape(int tile, int rows, int colsb)
{
    config[0] = 1;
    config[16 + 2 * tile] = (uint8_t)colsb;
    config[17 + 2 * tile] = (uint8_t)(colsb >> 8);
    config[48 + tile] = (uint8_t)rows;
}
int main(int count, char **words)
{
    (void)memory;
    switch (count > 1 ? atoi(words[1]) : -1) {
%s
    }
    return 0;
}
"""


def faulty() -> list[tuple[str, str]]:
    """Statements and messages, of what the CPU faults on, too."""
    found = [(UNASKED, "no permission was asked for (#NM)")]
    for text, fault in LOADS.items():
        found.append((f"tile_permission(); {ALL_FULL}; {text} CONFIGURE(config);", fault))
    found += [(f"{ASKED} FENCE; {text}", fault) for text, fault in CONFIGURED.items()]
    for change, (text, fault) in SHAPED.items():
        found.append((f"{ASKED} {change}; CONFIGURE(config); {text}", fault))
    return found


def unspeakable() -> list[tuple[str, str]]:
    return [(f"{ASKED} {text}", fault) for text, fault in UNSPEAKABLE.items()]


def program_of(cases: Sequence[tuple[str, str]]) -> str:
    """C of a program that runs the statements that its argument numbers."""
    texts = (f"case {i}:\n{text}\nbreak;" for i, (text, _) in enumerate(cases))
    return PROGRAM % (PRELUDE, "\n".join(texts))


def run(path: Path, case: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([path, str(case)], capture_output=True, text=True, check=False)


def intrinsic(statements: str) -> str:
    """The one that faults."""
    if statements == UNASKED:
        return "_tile_loadconfig"
    names: list[str] = re.findall(r"CONFIGURE|_tile_\w+", statements)
    return names[-1].replace("CONFIGURE", "_tile_loadconfig")


@every_family
def test_the_header_ends_the_process_and_says_why(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [*faulty(), *unspeakable(), (ASKED, "")]
    compiler = use(family, TILES, monkeypatch, emulated=True)
    path = compile_program([program_of(cases)], TILES, compiler, tmp_path, "faulty")
    for i, (text, fault) in enumerate(cases):
        done = run(path, i)
        expected = f"{intrinsic(text)}: {fault}\n" if fault else ""
        assert (done.returncode, done.stderr) == (-signal.SIGABRT if fault else 0, expected), text


@native
def test_the_cpu_faults_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [*faulty(), (ASKED, "")]
    compiler = use("gcc", TILES, monkeypatch)
    path = compile_program([program_of(cases)], TILES, compiler, tmp_path, "faulty")
    for i, (text, fault) in enumerate(cases):
        ends = (-signal.SIGILL, -signal.SIGSEGV, -signal.SIGBUS) if fault else (0,)
        assert run(path, i).returncode in ends, text


def test_every_fault_of_the_header_is_provoked() -> None:
    header = render("emulation/amx.h.j2").partition("TILEWRIGHT_AMX_H")[2]
    said = set(re.findall(r'"([^"]+ \(#\w+\))"', header))
    provoked = {fault for _, fault in [*faulty(), *unspeakable()]}
    assert said == {re.sub(r"^tile -?\d+: ", "", fault) for fault in provoked}


# --- threads --------------------------------------------------------------------------------

THREADS = """
#include <pthread.h>
static void *other(void *unused)
{
    uint8_t found[64];
    _tile_storeconfig(found);
    for (int i = 0; i < 64; i++)
        if (found[i] && found[i] != config[i]) /* Linux hands a copy on, or none */
            exit(2);
    CONFIGURE(config);
    _tile_zero(0);
    _tile_release();
    return unused;
}
"""
MAIN = """
    pthread_t thread;
    uint8_t found[64];
    if (pthread_create(&thread, 0, other, 0) || pthread_join(thread, 0))
        exit(3);
    _tile_storeconfig(found);
    for (int i = 0; i < 64; i++)
        if (found[i] != config[i])
            exit(4);
    _tile_stored(0, memory, 64);
    exit(memory[0] == 7 ? 0 : 5);
"""


def threads_program() -> str:
    text = PROGRAM.replace("int main", THREADS + "int main", 1)
    filled = f"memory[0] = 7; {ASKED} LOAD(0, memory, 64); memory[0] = 0; FENCE;"
    return text % (PRELUDE, f"    default: {{\n{filled}{MAIN}\n    }}")


@pytest.mark.parametrize("means", ["header", pytest.param("native", marks=native)])
def test_state_is_a_thread_s_and_permission_the_process_s(
    means: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = use("gcc", TILES, monkeypatch, emulated=means == "header")
    done = run(compile_program([threads_program()], TILES, compiler, tmp_path, "threads"), 0)
    assert (done.returncode, done.stderr) == (0, "")


@here
@every_family
def test_compilers_know_the_intrinsics(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = use(family, TILES, monkeypatch)
    for text in program_of(faulty()), threads_program():
        assert compile_library(text, TILES, compiler, tmp_path, "tiles").stat().st_size
