"""The spill checker against tiles that are known to fit, and to not fit, their registers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.measure.spills import functions, spills

X86 = """
#include <immintrin.h>
enum {{ V = {lanes} }};
typedef {vector} vector;
static inline vector load(const float *p) {{ return {prefix}_loadu_ps(p); }}
static inline vector all(float x) {{ return {prefix}_set1_ps(x); }}
static inline void store(float *p, vector v) {{ {prefix}_storeu_ps(p, v); }}
static inline vector muladd(vector x, vector y, vector s) {{ return {prefix}_fmadd_ps(x, y, s); }}
"""
NEON = """
#include <arm_neon.h>
enum {{ V = 4 }};
typedef float32x4_t vector;
static inline vector load(const float *p) {{ return vld1q_f32(p); }}
static inline vector all(float x) {{ return vdupq_n_f32(x); }}
static inline void store(float *p, vector v) {{ vst1q_f32(p, v); }}
static inline vector muladd(vector x, vector y, vector s) {{ return vfmaq_f32(s, x, y); }}
"""
KERNEL = """
enum {{ MR = {mr}, NV = {nv}, K = {k}, N = NV * V }};
#define EACH(i, n) _Pragma("{unroll} 64") for (int i = 0; i < n; i++)
void kernel(const float *a, const float *b, float *c)
{{
    vector s[MR][NV];
    EACH(x, MR) EACH(y, NV) s[x][y] = all(0);
    for (int k = 0; k < K; k++)
        EACH(x, MR) {{
            vector row = all(a[x * K + k]);
            EACH(y, NV) s[x][y] = muladd(row, load(b + k * N + y * V), s[x][y]);
        }}
    EACH(x, MR) EACH(y, NV) store(c + x * N + y * V, s[x][y]);
}}
"""
FLAGS = {
    "avx512": ["-mavx512f", "-mfma"],
    "avx2": ["-mavx2", "-mfma"],
    "neon": ["-march=armv8-a"],
}
HEADERS = {
    "avx512": X86.format(lanes=16, vector="__m512", prefix="_mm512"),
    "avx2": X86.format(lanes=8, vector="__m256", prefix="_mm256"),
    "neon": NEON.format(),
}
FITS = {"avx512": (8, 3), "avx2": (6, 2), "neon": (4, 4)}
SPILLS = {"avx512": (16, 3), "avx2": (12, 2), "neon": (10, 4)}
COMPILERS = ["gcc", "clang"]
SYNTAXES = [
    ("avx512", "att"),
    ("avx512", "intel"),
    ("avx2", "att"),
    ("avx2", "intel"),
    ("neon", ""),
]


def disassembly(
    target: str, syntax: str, compiler: str, tile: tuple[int, int], k: int, folder: Path
) -> str:
    arm = target == "neon"
    unroll = "clang loop unroll_count(64)" if compiler == "clang" else "GCC unroll"
    source = HEADERS[target] + KERNEL.format(mr=tile[0], nv=tile[1], k=k, unroll=unroll)
    source = source.replace("unroll_count(64) 64", "unroll_count(64)")
    command = {"gcc": ["aarch64-linux-gnu-gcc"] if arm else ["gcc"], "clang": ["clang"]}[compiler]
    command += ["--target=aarch64-linux-gnu"] if arm and compiler == "clang" else []
    objdump = "aarch64-linux-gnu-objdump" if arm else "objdump"
    for program in (command[0], objdump):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")
    (folder / "kernel.c").write_text(source, encoding="utf-8")
    flags = ["-O2", "-ffp-contract=off", "-Wno-unknown-pragmas", *FLAGS[target]]
    subprocess.run([*command, *flags, "-c", "kernel.c"], cwd=folder, check=True)
    said = subprocess.run(
        [objdump, "-d", *(["-M", syntax] if syntax else []), "kernel.o"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return said.stdout


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(("target", "syntax"), SYNTAXES)
def test_a_tile_that_fits_has_a_k_loop_and_no_spill_in_it(
    target: str, syntax: str, compiler: str, tmp_path: Path
) -> None:
    text = disassembly(target, syntax, compiler, FITS[target], 64, tmp_path)
    assert any(region.looped for function in functions(text) for region in function.regions())
    assert not spills(text)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(("target", "syntax"), SYNTAXES)
def test_a_tile_that_does_not_fit_spills(
    target: str, syntax: str, compiler: str, tmp_path: Path
) -> None:
    text = disassembly(target, syntax, compiler, SPILLS[target], 64, tmp_path)
    found = spills(text)
    assert found
    assert "kernel" in str(found[0])


@pytest.mark.parametrize("compiler", COMPILERS)
def test_spills_are_found_where_k_is_unrolled(compiler: str, tmp_path: Path) -> None:
    source = disassembly("avx512", "att", compiler, SPILLS["avx512"], 2, tmp_path)
    assert not any(region.looped for function in functions(source) for region in function.regions())
    assert spills(source)


def test_what_lies_around_a_k_loop_is_no_spill() -> None:
    text = """
0000000000000000 <kernel>:
   0:\tpush   %rbp
   1:\tmov    0x8(%rsp),%rax
   6:\tvmovups (%rbp),%zmm1
   c:\tvmovups 0x40(%rsp,%rcx,1),%zmm2
  12:\tvfmadd231ps (%rax){1to16},%zmm1,%zmm0
  18:\tadd    $0x40,%rcx
  1c:\tjne    6 <kernel+0x6>
  1e:\tvmovups %zmm0,(%rdx)
  24:\tmov    %rax,0x8(%rsp)
  29:\tpop    %rbp
  2a:\tret
"""
    assert not spills(text)
    (function,) = functions(text)
    (loop,) = function.regions()
    assert loop.looped
    assert len(loop.instructions) == 5
    reloaded = text.replace("add    $0x40,%rcx", "cmp    0x18(%rsp),%rcx")
    assert [spill.instruction.mnemonic for spill in spills(reloaded)] == ["cmp"]


def test_the_frame_pointer_is_one_only_where_it_is_set_up() -> None:
    text = """
0000000000000000 <kernel>:
   0:\tmov    %rsp,%rbp
   6:\tvmovups -0x40(%rbp),%ymm1
  12:\tvfmadd231ps (%rax),%ymm1,%ymm0
  1c:\tjne    6 <kernel+0x6>
  2a:\tret
"""
    assert len(spills(text)) == 1
    assert not spills(text.replace("mov    %rsp,%rbp", "mov    %rdi,%rbp"))


def test_what_the_caller_gets_back_is_no_reload() -> None:
    text = """
0000000000000000 <kernel>:
   0:\tfmla   v0.4s, v1.4s, v2.s[0]
   4:\tldp    d9, d8, [sp, #32]
   8:\tfmla   v3.4s, v1.4s, v2.s[1]
   c:\tret
"""
    assert not spills(text)
    assert len(spills(text.replace("d9, d8", "q9, q8"))) == 1
    assert len(spills(text.replace("d9, d8", "d7, d6"))) == 1


def test_the_address_of_what_is_stored_next_is_no_reload() -> None:
    text = """
0000000000000000 <kernel>:
   0:\tfmla   z0.s, z1.s, z2.s[0]
   4:\tldr    x9, [sp, #8]
   8:\tadd    x9, x9, x27, lsl #2
   c:\tfmla   z3.s, z1.s, z2.s[1]
  10:\tst1w   {z0.s}, p0, [x9]
  14:\tret
"""
    assert not spills(text)
    assert len(spills(text.replace("add    x9, x9, x27, lsl #2", "ld1w {z2.s}, p0/z, [x9]"))) == 1
    assert len(spills(text.replace("ldr    x9, [sp, #8]", "ldr z4, [sp, #1, mul vl]"))) == 1


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        ("vmovaps 0x40(%rsp),%zmm3", "vmovaps 0x40(%rsp),%zmm3{%k1}{z}"),
        ("vmovaps zmm3,ZMMWORD PTR [rsp+0x40]", "vmovaps zmm3{k1}{z},ZMMWORD PTR [rsp+0x40]"),
        ("vmovaps 0x40(%rsp),%ymm3", "vmaskmovps 0x40(%rsp),%ymm1,%ymm3"),
    ],
)
def test_what_is_loaded_under_a_mask_lies_in_a_buffer(whole: str, part: str) -> None:
    text = f"""
0000000000000000 <kernel>:
   0:\tvfmadd231ps (%rax),%ymm1,%ymm0
   4:\t{whole}
   8:\tvfmadd231ps (%rax),%ymm3,%ymm0
   c:\tret
"""
    assert len(spills(text)) == 1
    assert not spills(text.replace(whole, part))
    masked = text.replace(whole, "vfmadd231ps 0x40(%rsp),%zmm1,%zmm0{%k1}")
    assert len(spills(masked)) == 1, "a reload within a multiply-add"
