"""What the machine is, and how it runs a target."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.errors import TargetError
from tilewright.isa.machine import Emulation
from tilewright.runtime.machine import host, processor
from tilewright.targets import NAMES, load

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some CPU @ 3 GHz
flags\t\t: fpu sse2 avx2 fma f16c

processor\t: 1
flags\t\t: fpu sse2 avx2 fma f16c avx512f
"""
ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm
CPU part\t: 0xd0c

processor\t: 1
"""


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that stands for /proc/cpuinfo."""
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "_CPUINFO", file)
    monkeypatch.setattr(processor, "unlisted", lambda processor: frozenset())
    host.cpu.cache_clear()
    yield file
    host.cpu.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    for module in (processor, host):
        monkeypatch.setattr(module, "machine", lambda: machine)
    monkeypatch.setattr(processor, "_riscv_extensions", frozenset)


def test_linux_says_what_the_first_processor_has(
    cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo.write_text(X86)
    pretend(monkeypatch, "x86_64")
    assert host.cpu().name == "Some CPU @ 3 GHz"
    assert host.resolve("host").name == "avx2"
    assert host.is_native(load("avx2")) and host.is_native(load("scalar"))
    assert not host.is_native(load("avx512")) and not host.is_native(load("neon"))


@pytest.mark.parametrize(
    ("model", "name"), [(1, "avx2+zen3"), (17, "avx2+zen4"), (33, "avx2+zen3")]
)
def test_a_processor_that_a_feature_describes_is_known_by_its_numbers(
    cpuinfo: Path, monkeypatch: pytest.MonkeyPatch, model: int, name: str
) -> None:
    numbers = f"cpu family\t: 25\nmodel\t\t: {model}\nmodel name"
    cpuinfo.write_text(X86.replace("GenuineIntel", "AuthenticAMD").replace("model name", numbers))
    pretend(monkeypatch, "x86_64")
    assert host.cpu().processor == f"AuthenticAMD 25 {model}"
    assert host.resolve("host").name == name
    assert host.is_native(host.resolve("avx2+zen3")), "it adds no instruction"


@pytest.mark.parametrize(("model", "more"), [(2, "+zen5"), (68, "+zen5"), (80, "")])
def test_an_extension_of_the_processor_and_its_core_go_together(
    cpuinfo: Path, monkeypatch: pytest.MonkeyPatch, model: int, more: str
) -> None:
    numbers = f"cpu family\t: 26\nmodel\t\t: {model}\nmodel name"
    text = X86.replace("GenuineIntel", "AuthenticAMD").replace("model name", numbers)
    flags = " ".join(load("avx512").having(["vnni"]).cpu_flags)
    cpuinfo.write_text(text.replace("avx2", flags, 1))
    pretend(monkeypatch, "x86_64")
    assert host.resolve("host").name == f"avx512+vnni{more}"


def test_an_arm_machine_runs_neon(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo.write_text(ARM)
    pretend(monkeypatch, "aarch64")
    assert host.cpu().name == "0xd0c"
    assert host.resolve("host").name == "neon"


SVE = ARM.replace("evtstrm", "evtstrm sve sve2 svei8mm")


def _vectors(nbytes: int, streaming: int = 0) -> Callable[[int], int]:
    """A thread's answers: how long its vectors are, and those in streaming mode."""
    return {51: nbytes, 64: streaming}.__getitem__


@pytest.mark.parametrize(
    ("nbytes", "name"),
    [
        (64, "sve512+sve2+i8mm"),
        (32, "sve256+sve2+i8mm"),
        (16, "neon"),
        (48, "neon"),
        (0, "neon"),
    ],
)
def test_an_arm_machine_has_vectors_of_one_length(
    cpuinfo: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int, name: str
) -> None:
    """Where they are no longer than Neon's, Neon it is."""
    cpuinfo.write_text(SVE)
    pretend(monkeypatch, "aarch64")
    monkeypatch.setattr(processor, "vector_bytes", _vectors(nbytes))
    assert host.resolve("host").name == name
    assert host.is_native(load("sve128")) == (nbytes == 16)


def test_a_thread_with_vectors_of_another_length_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "aarch64")
    identity = host.identify("sve256+i8mm")
    monkeypatch.setattr(processor, "vector_bytes", _vectors(32))
    host.check_thread(identity)
    for nbytes, got in ((64, "sve512"), (0, "none of a known length")):
        monkeypatch.setattr(processor, "vector_bytes", _vectors(nbytes))
        with pytest.raises(TargetError, match="not as long as sve256") as raised:
            host.check_thread(identity)
        assert (raised.value.got, raised.value.expected) == (got, "sve256")
        assert "prctl" in str(raised.value)
    host.check_thread(host.identify("neon"))


def test_vectors_of_streaming_mode_have_a_length_of_their_own(
    cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has SVE or Neon computes with these, unless streaming mode is asked for."""
    cpuinfo.write_text(ARM.replace("evtstrm", "evtstrm sme smef64f64"))
    pretend(monkeypatch, "aarch64")
    monkeypatch.setattr(processor, "vector_bytes", _vectors(0, 64))
    assert host.resolve("host").name == "neon"
    assert host.is_native(host.resolve("sme+f64"))
    host.check_thread(host.identify("sme"))
    monkeypatch.setattr(processor, "vector_bytes", _vectors(64, 32))
    with pytest.raises(TargetError, match="not as long as sme") as raised:
        host.check_thread(host.identify("sme"))
    assert (raised.value.got, raised.value.expected) == ("sve512", "svl512")


def test_no_other_machine_has_a_length_of_its_own() -> None:
    if host.machine() == "aarch64":
        pytest.skip("this is one")
    assert processor.thread_features() == {}
    assert processor.vector_bytes(51) == 0


def test_a_riscv_machine_says_letters_and_names(
    cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo.write_text("hart\t: 0\nisa\t: rv64imafdcv_zicsr_zvfh\nuarch\t: spacemit,x60\n")
    pretend(monkeypatch, "riscv64")
    assert host.cpu().name == "spacemit,x60"
    assert host.cpu().features >= {"v", "f", "zvfh"} and "r" not in host.cpu().features


def test_a_riscv_machine_is_asked_for_its_vectors(
    cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo.write_text("hart\t: 0\nisa\t: rv64imafdcv\nuarch\t: spacemit,x60\n")
    pretend(monkeypatch, "riscv64")
    monkeypatch.setattr(processor, "_riscv_extensions", lambda: frozenset(("v", "zvfh")))
    for nbytes, name in ((32, "rvv256+zvfh+x60"), (64, "rvv512+zvfh"), (0, "scalar")):
        monkeypatch.setattr(processor, "_riscv_vector_bytes", lambda found=nbytes: found)
        host.cpu.cache_clear()
        assert host.resolve("host").name == name


def test_a_power_machine_is_asked_by_its_auxiliary_vector(
    cpuinfo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo.write_text("processor\t: 0\ncpu\t\t: POWER10 (raw), altivec supported\n")
    pretend(monkeypatch, "ppc64le")
    file = tmp_path / "auxv"
    monkeypatch.setattr(processor, "_AUXV", file)
    for word, expected in ((0x60000, {"mma", "arch_3_1"}), (0x40000, {"arch_3_1"}), (0, set())):
        file.write_bytes(struct.pack("@6L", 16, 0xFFFF, 26, word, 0, 0))
        host.cpu.cache_clear()
        assert host.cpu().name.startswith("POWER10") and host.cpu().processor == "POWER10"
        assert host.cpu().features == expected
        named = host.resolve("host").name
        assert named == ("power10+power10" if "mma" in expected else "scalar")


def test_a_bare_machine_runs_plain_c(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo.write_text("processor : 0\nflags : fpu\n")
    pretend(monkeypatch, "riscv64")
    assert host.resolve("host").name == "scalar"


def test_elsewhere_archspec_is_asked_once(
    cpuinfo: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def found() -> object:
        asked.append(1)
        return SimpleNamespace(name="m1", features={"asimd", "fp"})

    monkeypatch.setitem(sys.modules, "archspec", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "archspec.cpu", SimpleNamespace(host=found))
    monkeypatch.setattr(sys.modules["archspec"], "cpu", sys.modules["archspec.cpu"], raising=False)
    first = host.cpu()
    host.cpu.cache_clear()
    assert host.cpu() == first
    assert (first.name, first.features, len(asked)) == ("m1", frozenset({"asimd", "fp"}), 1)
    known = json.loads((empty_cache / "host.json").read_text())
    (empty_cache / "host.json").write_text(json.dumps({**known, "here": "another machine"}))
    host.cpu.cache_clear()
    assert host.cpu() == first
    (empty_cache / "host.json").write_text("{")
    host.cpu.cache_clear()
    assert host.cpu() == first
    assert len(asked) == 3


def test_it_describes_itself() -> None:
    assert host.cpu().name in host.describe()
    assert all(level.startswith("L") and size > 0 for level, size in host.caches().items())


@pytest.mark.parametrize("machine", ["AMD64", "x86_64"])
def test_one_architecture_has_one_name(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    assert host.machine() == "x86_64"


# -- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_target_has_its_name(name: str) -> None:
    assert host.resolve(name) is load(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("avx1024", "unknown target"),
        ("", "unknown target"),
        ("host+vnni", "unknown target"),
        ("avx2+warp", "target avx2 has no feature 'warp'"),
        (None, "a target is named by a string"),
    ],
)
def test_what_is_no_target(name: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        host.resolve(name)


# -- means --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "name", "expected"),
    [
        ("x86_64", "avx2", "native"),
        ("x86_64", "avx512", "header"),
        ("x86_64", "neon", "qemu"),
        ("x86_64", "scalar", "native"),
        ("aarch64", "avx2", "qemu"),
        ("aarch64", "avx512", "header"),
        ("aarch64", "neon", "native"),
    ],
)
def test_what_the_cpu_lacks_is_emulated(
    machine: str, name: str, expected: str, cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo.write_text(X86 if machine == "x86_64" else ARM)
    pretend(monkeypatch, machine)
    monkeypatch.setattr(host, "find_qemu", lambda target: target.emulation.qemu)
    monkeypatch.delenv("TILEWRIGHT_EMULATE", raising=False)
    assert host.means(load(name)) == expected


def test_a_setting_emulates_what_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "find_qemu", lambda target: target.emulation.qemu)
    monkeypatch.setenv("TILEWRIGHT_EMULATE", "1")
    means = {name: host.means(load(name)) for name in ("avx512", "avx2", "neon", "scalar")}
    assert means == {"avx512": "header", "avx2": "qemu", "neon": "qemu", "scalar": "native"}
    assert host.means(load("avx512"), emulated=False) == "native"


def test_what_nothing_runs_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TargetError, match="apt-get install qemu-user"):
        host.means(load("neon"), emulated=True)
    alien = replace(load("neon"), machine="pdp11", emulation=Emulation())
    with pytest.raises(TargetError, match="nothing here runs neon"):
        host.means(alien)


def test_a_static_qemu_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "qemu-aarch64-static"
    program.write_text("")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.find_qemu(load("neon")) == str(program)


def test_the_user_s_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "x86_64")
    monkeypatch.setenv("CC", "clang")
    monkeypatch.setenv("TILEWRIGHT_CC_AARCH64", "arm-cc")
    assert host.user_compiler(load("avx2"), "native") == "clang"
    assert host.user_compiler(load("avx512"), "header") == "clang"
    assert host.user_compiler(load("neon"), "qemu") == "arm-cc"
    pretend(monkeypatch, "aarch64")
    assert host.user_compiler(load("neon"), "native") == "clang"
    assert host.user_compiler(load("avx2"), "qemu") is None
    monkeypatch.delenv("CC")
    assert host.user_compiler(load("scalar"), "native") is None


# -- a limit for host -----------------------------------------------------------------------------


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with AVX-512 and all that extends it."""
    flags = {flag for name in ("avx512", "avx2") for flag in load(name).cpu_flags}
    flags.update(flag for each in load("avx512").features.values() for flag in each.cpu_flags)
    flags.update(flag for each in load("avx2").features.values() for flag in each.cpu_flags)
    known = host.Cpu("x86_64", "a CPU", frozenset(flags), "Nobody 1 2")
    monkeypatch.setattr(host, "cpu", lambda: known)


@pytest.mark.usefixtures("capable")
@pytest.mark.parametrize("limit", ["scalar", "avx2", "avx2+vnni", "avx512", "avx512+vnni+bf16"])
def test_a_variable_limits_host(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    assert host.resolve("host").name.startswith("avx512+vnni+bf16+")
    monkeypatch.setenv("TILEWRIGHT_MAX_TARGET", limit)
    assert host.resolve("host").name == host.identify("host").name == limit
    assert host.resolve("avx512+vnni").name == "avx512+vnni", "what is named is not limited"


@pytest.mark.usefixtures("capable")
def test_a_limit_that_the_cpu_lacks_limits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    free = host.resolve("host").name
    monkeypatch.setenv("TILEWRIGHT_MAX_TARGET", "amx")
    assert host.resolve("host").name == free


@pytest.mark.usefixtures("capable")
@pytest.mark.parametrize(
    ("limit", "said"),
    [("avx", "amx, avx10.2, avx512, avx2, scalar"), ("neon", "avx2"), ("avx2+fast", "'fast'")],
)
def test_a_limit_that_is_no_target_is_an_error(
    monkeypatch: pytest.MonkeyPatch, limit: str, said: str
) -> None:
    monkeypatch.setenv("TILEWRIGHT_MAX_TARGET", limit)
    with pytest.raises(TargetError) as caught:
        host.resolve("host")
    assert said in str(caught.value)
