"""What was measured here: kept, found again, set aside when it is unusable, named, and carried."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes import python

import tilewright as tw
from tilewright.errors import TargetError
from tilewright.isa.core_file import CoreFile, numbers_of
from tilewright.isa.machine import Core
from tilewright.runtime.machine import calibrations, host
from tilewright.runtime.store import folders
from tilewright.targets import load

CPU = host.Cpu("x86_64", "a CPU", frozenset(load("avx2").cpu_flags), "AuthenticAMD 25 1")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty data directory, in a process to which no kernel brought numbers."""
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(folders, "_said", set())
    monkeypatch.setattr(calibrations, "_carried", {})
    calibrations.scheduled.cache_clear()
    yield tmp_path / "data"
    calibrations.scheduled.cache_clear()


@pytest.fixture
def zen3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cpu", lambda: CPU)


def core(idle: float = 1.25) -> Core:
    return replace(load("avx2").core, idle=idle)


def keep(idle: float = 1.25, processor: str = CPU.processor) -> Path:
    file = CoreFile("here", "A CPU", "a test", (processor,), {"avx2": core(idle)})
    return calibrations.keep(processor, "gcc 14", file)


def name(idle: float = 1.25) -> str:
    return calibrations.measured("avx2", numbers_of(core(idle)), "").name


# -- host ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("data", "zen3")
def test_host_takes_the_calibration_then_the_shipped_core_then_the_target_s() -> None:
    assert host.resolve("host").name == host.identify("host").name == "avx2+zen3"
    keep()
    found = host.resolve("host")
    assert found.name == host.identify("host").name == f"avx2+{name()}"
    assert host.identify("host").description is found
    assert (found.core, found.core_source) == (core(), "measured: a test")
    keep(idle=1.5)
    assert host.resolve("host").name == f"avx2+{name(1.5)}"
    calibrations.path_of(CPU.processor).unlink()
    assert host.resolve("host").name == "avx2+zen3"


@pytest.mark.usefixtures("data")
def test_an_unknown_processor_has_the_target_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cpu", lambda: CPU._replace(processor="Nobody 1 1"))
    assert host.resolve("host").core_source == "the target's own numbers"
    assert host.resolve("host").name == "avx2"


@pytest.mark.usefixtures("data", "zen3")
def test_a_named_target_does_not_depend_on_the_machine() -> None:
    keep()
    assert host.resolve("avx2") is load("avx2")
    assert host.resolve("avx2+zen3").core == load("avx2").having(["zen3"]).core


@pytest.mark.usefixtures("data", "zen3")
def test_a_target_that_was_not_measured_keeps_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    file = CoreFile("here", "A CPU", "a test", (CPU.processor,), {"avx512": core()})
    calibrations.keep(CPU.processor, "gcc 14", file)
    assert host.resolve("host").name == "avx2+zen3"


@pytest.mark.usefixtures("data")
def test_each_processor_and_compiler_has_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {calibrations.path_of("AuthenticAMD 25 1"), calibrations.path_of("AuthenticAMD 25 17")}
    for command in ("clang", "clang -O1", "clang  -O1"):
        monkeypatch.setenv("CC", command)
        paths.add(calibrations.path_of("AuthenticAMD 25 1"))
    assert len(paths) == 5
    assert all(path.name.replace("_", "").removesuffix(".json").isalnum() for path in paths)


# -- files that cannot be used ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lambda text: "", "cannot be read"),
        (lambda text: text[:-9], "cannot be read"),
        (lambda text: "[]", "cannot be read"),
        (lambda text: text.replace("1.25", "1.5"), "was altered"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format 2, this version"),
    ],
)
@pytest.mark.usefixtures("data", "zen3")
def test_a_damaged_file_is_set_aside(text: object, message: str) -> None:
    path = keep()
    kept = text(path.read_text())  # type: ignore[operator]
    path.write_text(kept)
    with pytest.warns(RuntimeWarning, match=rf"(?s)set aside.*{message}.*measures anew"):
        assert host.resolve("host").name == "avx2+zen3"
    assert not path.exists()
    assert Path(f"{path}.unusable").read_text() == kept


@pytest.mark.usefixtures("data", "zen3")
def test_the_file_of_another_processor_is_set_aside() -> None:
    keep(processor="AuthenticAMD 25 33").rename(calibrations.path_of(CPU.processor))
    with pytest.warns(RuntimeWarning, match="it is that of 'AuthenticAMD 25 33', this is"):
        assert host.resolve("host").name == "avx2+zen3"


@pytest.mark.usefixtures("data", "zen3")
def test_a_file_that_others_may_write_is_set_aside() -> None:
    keep().chmod(0o666)
    with pytest.warns(RuntimeWarning, match="can be written by, another user"):
        assert host.resolve("host").name == "avx2+zen3"


@pytest.mark.usefixtures("zen3")
def test_what_cannot_be_kept_leaves_what_there_was(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keep()
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        keep(idle=1.5)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# -- names --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("data", "zen3")
def test_measured_numbers_have_one_name_and_one_place_in_a_target_s() -> None:
    keep()
    first = host.resolve(f"avx2 + {name()}+vnni")
    assert first.name == host.identify(f"avx2+{name()}+vnni").name == f"avx2+vnni+{name()}"
    assert first.core == core()
    assert name(1.0) == name(1)
    assert name(1.0) != name(1.5)
    source = calibrations.measured("avx2", numbers_of(core()), "told otherwise").name
    assert source == name(), "who measured is not what was measured"
    assert calibrations.measured("avx512", numbers_of(core()), "").name != name()


@pytest.mark.usefixtures("data")
def test_numbers_that_nobody_has_are_said() -> None:
    assert host.identify("avx2+core00000000").name == "avx2+core00000000"
    with pytest.raises(TargetError, match=r"(?s)no calibration here has.*target='host'"):
        host.resolve("avx2+core00000000")
    with pytest.raises(TargetError, match="the numbers of one core"):
        host.resolve("avx2+core00000000+core00000001")


@pytest.mark.usefixtures("data", "zen3")
def test_numbers_are_a_target_s() -> None:
    keep()
    with pytest.raises(TargetError, match=r"are numbers for avx2"):
        host.resolve(f"avx512+{name()}")


# -- kernels ------------------------------------------------------------------------------------

UNPICKLE = """
import pickle
kernel = pickle.loads(bytes.fromhex({text!r}))
print(kernel.target, kernel.isa.core.idle, kernel.verify().cases)
print(pickle.loads(pickle.dumps(kernel)).name)
"""


@pytest.mark.twice
def test_a_kernel_carries_the_numbers(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = calibrations.measured("scalar", numbers_of(replace(load("scalar").core, idle=7)), "x")
    calibrations.carry(given)
    kernel = tw.compile(tw.Gemm(4, 4, 4), target=f"scalar+{given.name}")
    assert kernel.name != tw.compile(tw.Gemm(4, 4, 4), target="scalar").name
    assert "core      measured: x" in kernel.explain()
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(data / "another"))
    said = python(UNPICKLE.format(text=pickle.dumps(kernel).hex())).split()
    assert said == [f"scalar+{given.name}", "7", "3", kernel.name]


@pytest.mark.usefixtures("data")
def test_carried_numbers_are_those_of_their_name() -> None:
    given = calibrations.measured("avx2", numbers_of(core()), "x")
    with pytest.raises(TargetError, match="not those of its name"):
        calibrations.carry(given._replace(numbers=numbers_of(core(2))))


WARM = """
import sys
import numpy
import tilewright as tw
from tilewright.runtime.machine import calibrations, host
before = set(sys.modules)
print(tw.compile(tw.Gemm(4, 4, 5)).target, *(set(sys.modules) - before))
"""


@pytest.mark.twice
@pytest.mark.usefixtures("data")
def test_a_calibrated_warm_start_reads_no_description() -> None:
    base = host.resolve("host").name.partition("+")[0]
    numbers = replace(load(base).core, idle=1.75)
    file = CoreFile("here", "A CPU", "a test", ("x",), {base: numbers})
    path = calibrations.keep(host.cpu().processor, "gcc 14", file)
    python(WARM)
    target, *seen = python(WARM).split()
    assert json.loads(path.read_text())["core"]["cores"][base]["idle"] == 1.75
    assert target.rpartition("+")[2] == calibrations.measured(base, numbers_of(numbers), "").name
    assert not {name for name in seen if "isa" in name or ".targets." in name}
