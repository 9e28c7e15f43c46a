"""What the x86 targets spell: on this CPU, through the plain-C header, and by SIMDe's word."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compilers import FAMILIES, use
from support.spellings.arithmetic import Array, fused_flushed, values
from support.spellings.spelling_checks import checks, products
from support.spellings.spellings import Check, faults, program_text

from tilewright.emit.render import render
from tilewright.errors import ToolchainError
from tilewright.generate import Request, generate, plan_for
from tilewright.isa.target import Target
from tilewright.plan.contraction import choose_product
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.machine.host import is_native, machine, resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.schedule import Schedule
from tilewright.targets.x86.features import HEADER

#: They spell what the targets without features spell, too.
FULL = ("avx2+vnni", "avx512+vnni+bf16")
NAMES = ("avx2", "avx512", "avx512+vnni", *FULL)
#: What few CPUs and compilers have: tried where it spells what none of ``FULL`` does.
NEW = ("avx2+vnniint16+vnniint8", "avx512+fp16", "avx10.2")
ZIG = f"{sys.executable} -m ziglang cc"
INTRINSIC = re.compile(r"\b_mm\d*_\w+")

every_target = pytest.mark.parametrize("name", [*FULL, *NEW])
every_family = pytest.mark.parametrize("family", FAMILIES)
here = pytest.mark.skipif(machine() != "x86_64", reason="compiles for x86")


@cache
def checks_of(name: str) -> list[Check]:
    found = checks(resolve(name))
    if name not in NEW:
        return found
    known = set().union(*(words_of(check) for other in FULL for check in checks_of(other)))
    new = [check for check in found if words_of(check) - known]
    return [c for c in new if "masked" not in c.name or c.name.endswith((" 1", " 7", " 31"))]


def words_of(check: Check) -> set[str]:
    """Intrinsics, and what stands in for some."""
    return set(re.findall(r"\b(?:_mm\d*|fmadd_half)_\w+", "\n".join(check.statements)))


def native(name: str) -> bool:
    return is_native(resolve(name))


# --- compiled, and run ----------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("name", NAMES)
def test_on_the_cpu(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve(name)
    if not is_native(target):
        pytest.skip("the CPU lacks it")
    if wider := [other for other in NAMES if other.startswith(f"{name}+") and native(other)]:
        pytest.skip(f"{wider[-1]} spells all of it, and is tried")
    compiler = use(family, target, monkeypatch)
    found = faults(checks_of(name), target, compiler, tmp_path)
    assert not found, "\n".join(found)


@here
@pytest.mark.parametrize(
    "family", [*FAMILIES, pytest.param("zig", marks=pytest.mark.xdist_group("zig"))]
)
@every_target
def test_compilers_know_it(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (find_spec("ziglang") if family == "zig" else shutil.which(family)) is None:
        pytest.skip(f"no {family}")
    if family in FAMILIES and native(name):
        pytest.skip("its spellings are compiled and run on this CPU")
    monkeypatch.setenv("CC", ZIG if family == "zig" else family)
    target = resolve(name)
    try:
        compiler = find_compiler(target, emulated=False)
    except ToolchainError as error:
        if "too old" not in error.problem:
            raise
        pytest.skip(f"{family} is too old for {name}")
    text = program_text(checks_of(name), target)
    assert compile_library(text, target, compiler, tmp_path, "spellings", ("-O0",)).exists()


@every_family
@every_target
def test_through_the_header(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what the CPU has: the header is the same for all x86 targets."""
    target = replace(resolve(name), emulation=HEADER)
    compiler = use(family, target, monkeypatch, emulated=True)
    assert compiler.means == "header"
    found = faults(checks_of(name), target, compiler, tmp_path)
    assert not found, "\n".join(found)


#: Words of the C for AVX2, and others that do not the same.
WRONG = {
    "_mm256_min_ps(x, y)": "_mm256_min_ps(y, x)",
    "_CMP_LT_OQ": "_CMP_LE_OQ",
    "_mm_blendv_ps(z, y, ": "_mm_blendv_ps(y, z, ",
    "_mm256_srai_epi32": "_mm256_srli_epi32",
    "_mm256_cvtepu8_epi16": "_mm256_cvtepi8_epi16",
    "0x0c080400": "0x0c080401",
    "_mm256_maskload_ps(in0, mask)": "((void)mask, _mm256_loadu_ps(in0))",
    "_mm_maskstore_pd((double *)out, mask, x)": "(void)mask, _mm_storeu_pd((double *)out, x)",
    "_mm256_dpbusd_avx_epi32(acc, y, x)": "_mm256_dpbusd_avx_epi32(acc, x, y)",
}


def test_a_wrong_spelling_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = replace(resolve(FULL[0]), emulation=HEADER)
    changed = []
    for right, wrong in WRONG.items():
        texts = [(check, "\n".join(check.statements)) for check in checks_of(FULL[0])]
        own = [replace(c, statements=[t.replace(right, wrong)]) for c, t in texts if right in t]
        assert own, right
        changed += own
    compiler = use("gcc", target, monkeypatch, emulated=True)
    assert len(faults(changed, target, compiler, tmp_path)) == len(changed)


# --- products ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "along", "across", "mnemonic", "shifted"),
    [
        ("avx2", "s8", "u8", "vpmaddwd", 0),
        ("avx2", "u8", "u8", "vpmaddwd", 0),
        ("avx2", "bf16", "f16", "vfmadd231ps", 0),
        ("avx512", "s8", "s8", "vpmaddwd", 0),
        ("avx2+vnni", "s8", "u8", "vpdpbusd", 0),
        ("avx2+vnni", "u8", "s8", "vpdpbusd", 0),
        ("avx512+vnni", "s8", "s8", "vpdpbusd", 1),
        ("avx512+vnni", "u8", "u8", "vpdpbusd", 1),
        ("avx512+vnni", "bf16", "bf16", "vfmadd231ps", 0),
        ("avx512+vnni+bf16", "bf16", "bf16", "vdpbf16ps", 0),
        ("avx512+vnni+bf16", "bf16", "f32", "vfmadd231ps", 0),
        ("avx512+fp16", "f16", "f16", "vfmadd231ps", 0),
        ("avx2+vnniint8", "s8", "s8", "vpdpbssd", 0),
        ("avx2+vnniint8", "u8", "u8", "vpdpbuud", 0),
        ("avx2+vnni+vnniint8", "s8", "u8", "vpdpbsud", 0),
        ("avx2+vnniint16", "u8", "s8", "vpdpwusd", 0),
        ("avx2+vnni+vnniint16", "s8", "s8", "vpdpbusd", 1),
        ("avx2", "s16", "s8", "vpmaddwd", 0),
        ("avx2", "u16", "u16", "vpmaddwd", 2),
        ("avx512+vnni", "s16", "s16", "vpdpwssd", 0),
        ("avx512+vnni", "u16", "s16", "vpdpwssd", 1),
        ("avx2+vnniint16", "u16", "u16", "vpdpwuud", 0),
        ("avx10.2", "s16", "u16", "vpdpwsud", 0),
        ("avx10.2", "f16", "f16", "vdpphps", 0),
        ("avx10.2", "s8", "u8", "vpdpbsud", 0),
    ],
)
def test_the_best_multiply_add_is_chosen(
    name: str, along: str, across: str, mnemonic: str, shifted: int
) -> None:
    product = choose_product(resolve(name), {"a": across, "b": along}, "b")
    assert product.mnemonic == mnemonic
    assert sum(map(bool, product.shifts.values())) == shifted


@pytest.mark.parametrize("name", NAMES)
def test_narrower_vectors_have_the_forms_of_wide_ones(name: str) -> None:
    target = resolve(name)
    for element in ("f32", "f64", "s32"):
        widest, *narrower = target.of(element)
        factors = {op.factors for op in widest.muladd}
        assert all(factors == {op.factors for op in v.muladd} for v in narrower)


def test_features_have_one_order() -> None:
    target = resolve("avx512+bf16 + vnni")
    assert target.name == "avx512+vnni+bf16"
    assert target.compiler_flags[-2:] == ("-mavx512vnni", "-mavx512bf16")
    assert target.zig_flags == ("-mcpu=x86_64_v4+avx512vnni+avx512bf16",)
    assert target.cpu_flags[-2:] == ("avx512_vnni", "avx512_bf16")


def test_a_described_processor_changes_the_plan_alone() -> None:
    plain, zen3 = resolve("avx2"), resolve("avx2+zen3")
    assert zen3.compiler_flags == plain.compiler_flags
    assert [v.muladd for v in zen3.vectors] == [v.muladd for v in plain.vectors]
    spec = Gemm(64, 48, 64)
    tiles = [plan_for(spec, Schedule(), target).tiling.tiles for target in (plain, zen3)]
    outputs = [{tile.shape.outputs for tile in of} for of in tiles]
    assert outputs == [{10, 12}, {8}]


def test_a_core_that_wants_a_choice_of_chains_gets_tiles_of_twelve_vectors() -> None:
    plain, zen5 = resolve("avx512"), resolve("avx512+zen5")
    assert zen5.compiler_flags == plain.compiler_flags
    assert [v.muladd for v in zen5.vectors] == [v.muladd for v in plain.vectors]
    spec = Gemm(64, 48, 64)
    tiles = [plan_for(spec, Schedule(), target).tiling.tiles for target in (plain, zen5)]
    outputs = [{tile.shape.outputs for tile in of} for of in tiles]
    assert outputs == [{24}, {12}]
    halves = Gemm(64, 48, 64, a="bf16", b=Packed("bf16"))
    wide = plan_for(halves, Schedule(), resolve("avx512+bf16+zen5")).tiling.tiles
    chains = {tile.shape.multiply_adds for tile in wide}
    assert min(chains) >= 18, "vdpbf16ps takes 6 cycles"


# --- SIMDe ------------------------------------------------------------------------------------

SIMDE = ("simde/x86/avx512.h", "simde/x86/fma.h", "simde/x86/f16c.h")
#: In SIMDe 0.7.4 the first is one with a mask; multiply-adds round twice; subnormals become 0 when
#: they are scaled.
AMISS = re.compile(r"_mm512_madd_epi16|_mm\d*_fmadd_p[sd]|_mm\d*_scalef_ps")
ALIASES = "-DSIMDE_ENABLE_NATIVE_ALIASES"
#: SIMDe has the types of masks under names of its own.
MASKS = tuple(f"-D__mmask{bits}=simde__mmask{bits}" for bits in (8, 16, 32, 64))


def names_of_simde() -> set[str]:
    """The intrinsics that SIMDe implements, and those of every x86 CPU."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    text = "".join(f"#include <{header}>\n" for header in SIMDE)
    command = ["gcc", "-dD", "-E", ALIASES, "-x", "c", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no SIMDe")
    names = re.findall(r"^(?:#define )?(_mm\w+)", done.stdout, re.MULTILINE)
    return {name for name in names if not AMISS.fullmatch(name)}


def test_simde_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the header gives is what another implementation of the intrinsics gives."""
    known = names_of_simde()
    own = [check for check in checks_of(FULL[1]) if intrinsics_of(check.statements) <= known]
    tried = set().union(*(intrinsics_of(check.statements) for check in own))
    assert len(tried) > 220
    target = replace(
        resolve(FULL[1]),
        cpu_flags=(),
        headers=SIMDE,
        compiler_flags=(ALIASES, *MASKS, "-Wno-error", "-w"),
    )
    found = faults(own, target, use("gcc", target, monkeypatch), tmp_path)
    assert not found, "\n".join(found)


def intrinsics_of(statements: Any) -> set[str]:
    return set(INTRINSIC.findall("\n".join(statements)))


# --- the header --------------------------------------------------------------------------------


def spelled(value: Any) -> Iterator[str]:
    """Every string that a target holds."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from spelled(tuple(value.values()))
    elif isinstance(value, tuple):
        for inner in value:
            yield from spelled(inner)
    elif is_dataclass(value):
        yield from spelled(tuple(getattr(value, field.name) for field in fields(value)))


def test_the_header_defines_what_is_spelled_and_no_more() -> None:
    every = [resolve(name) for name in (*FULL, *NEW)]
    used = set().union(*(intrinsics_of(spelled(target.vectors)) for target in every))
    used.update(*(INTRINSIC.findall(target.fence) for target in every))
    header = render(str(HEADER.header))
    defined = re.findall(r"^static inline .*?\b(_mm\w+)\(", header, re.MULTILINE)
    assert len(defined) == len(set(defined))
    assert len(used) > 300
    assert not used - set(defined), "the targets spell what the header lacks"
    called = set(INTRINSIC.findall(re.sub(r"^static inline .*", "", header, flags=re.MULTILINE)))
    assert not set(defined) - used - called, "the header defines what nothing spells"


@pytest.mark.parametrize("name", [*NAMES, *NEW])
def test_what_no_emulator_has_goes_through_the_header(name: str) -> None:
    emulation = resolve(name).emulation
    assert (emulation is HEADER) == (name != "avx2")


# --- dot products of bf16 ------------------------------------------------------------------------


def dot_bf16(acc: Array, x: Array, y: Array) -> Array:
    """As Intel's manual has it: of each pair the upper product is added first."""
    for i in (1, 0):
        acc = fused_flushed(x[..., i], y[..., i], acc)
    return acc


def any_bf16(check: Check, seed: int) -> Check:
    """The check with any bits for factors and sums, denormals among them, and exact answers."""
    rng = np.random.default_rng(seed)
    assert check.before is not None
    x, y = (rng.choice(values("bf16", seed)[i], a.shape) for i, a in enumerate(check.inputs))
    acc = rng.choice(np.concatenate(values("f32", seed)), check.before.shape)
    acc[::4] = (rng.normal(size=acc[::4].shape) * 2.0**-126).astype(np.float32)
    rows = len(acc)
    with np.errstate(all="ignore"):
        x[::4] = (x[::4].astype(np.float32) * np.float32(2.0**-100)).astype(x.dtype)
        expected = dot_bf16(acc, x.reshape(rows, -1, 2), y.reshape(rows, -1, 2))
    return replace(check, inputs=(x, y), before=acc, expected=expected, tolerance=None)


@every_family
def test_dot_products_of_bf16_are_those_of_the_manual(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target: Target = resolve("avx512+bf16")
    own = [c for c in products(target) if "vdpbf16ps, broadcast, rough" in c.name]
    assert len(own) == 4
    compiler = use(family, target, monkeypatch, emulated=not is_native(target))
    exact = [any_bf16(check, seed) for seed, check in enumerate(own)]
    found = faults(exact, target, compiler, tmp_path)
    assert not found, "\n".join(found)


# --- few lanes by AVX-512 ---------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "store"), [(20, "_mm_storeu_ps"), (24, "_mm256_storeu_ps")])
def test_few_lanes_are_accessed_in_shorter_registers(columns: int, store: str) -> None:
    """Which reach into a second line less often; lanes that fill one need no mask."""
    text = generate(
        [Request("k", Gemm(4, columns, 8), Schedule(tile=(4, 32)), resolve("avx512"))]
    ).text
    short = store.split("_storeu", maxsplit=1)[0]
    assert f"{short}_maskz_loadu_ps((__mmask8)" in text
    assert f"{store}(c" in text
    assert "_mask_storeu_ps" not in text


def test_a_masked_store_keeps_the_whole_register() -> None:
    """A masked store of its first 128 bits faults, as gcc makes it, on a page it leaves out."""
    text = generate([Request("k", Gemm(4, 19, 8), Schedule(tile=(4, 32)), resolve("avx512"))]).text
    assert "_mm_maskz_loadu_ps((__mmask8)" in text
    assert re.findall(r"_mm\d*_mask_storeu_ps", text) == ["_mm512_mask_storeu_ps"] * 4
