"""Kernels in a process of their own, by every means, well-behaved and not."""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.errors import TargetError
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.emulate import runner as emulator
from tilewright.runtime.emulate.protocol import Process
from tilewright.runtime.emulate.runner import (
    Alias,
    Runner,
    build,
    command_prefix,
    runner_for,
    shared_runner,
)
from tilewright.runtime.machine import host
from tilewright.targets import load

DATA = Path(__file__).parent.parent / "data"
SOURCES = [(DATA / "kernel.c").read_text(), (DATA / "faults.c").read_text()]
NAMES = ["axpy", "total", "fault"]
ONLY_LAST = (False, False, True)
NAMES_OF_TARGETS = ("avx512", "avx2", "neon")
WAYS = ("scalar native", "avx2 qemu", "avx512 header", "neon qemu")

Make = Callable[[str], Runner]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A runner for one of WAYS, or for what zig compiles, its program built once.

    Skips what this machine cannot do.
    """
    built: dict[str, Path] = {}

    def make(way: str) -> Runner:
        name, means, *zig = way.split()
        target, emulated = load(name), means != "native"
        try:
            if emulated and host.means(target, emulated=True) != means:
                pytest.skip(f"{name} is not emulated by {means} here")
        except TargetError as error:
            pytest.skip(str(error))
        if way not in built:
            with pytest.MonkeyPatch.context() as patch:
                if zig:
                    if find_spec("ziglang") is None:
                        pytest.skip("ziglang is not installed")
                    variable = "CC" if host.machine() == "aarch64" else "TILEWRIGHT_CC_AARCH64"
                    patch.setenv(variable, f"{sys.executable} -m ziglang cc")
                compiler = find_compiler(target, emulated=emulated)
                folder = tmp_path_factory.mktemp("program")
                built[way] = build(SOURCES, NAMES, target, compiler, folder, "program")
        return Runner(built[way], command_prefix(target, emulated=emulated))

    return make


@pytest.fixture(params=WAYS)
def runner(request: pytest.FixtureRequest, programs: Make) -> Runner:
    """By every means."""
    return programs(request.param)


@pytest.fixture
def native(programs: Make) -> Runner:
    """By the means that needs nothing."""
    return programs("scalar native")


def floats(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def axpy(runner: Runner, n: int = 5, **more: object) -> np.ndarray:
    arrays = [floats(n), floats(n) * 2, np.full(n, np.nan, np.float32)]
    writable = [False, False, True]
    (out,) = runner.call("axpy", arrays, [n], [3.0], writable, names="abc", **more)  # type: ignore[arg-type]
    return np.frombuffer(out, np.float32)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_for_the_end(pid: int) -> None:
    """Wait until a process has ended; after two minutes it is said to be alive."""
    try:
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ends = select.poll()
        ends.register(file, select.POLLIN)
        assert ends.poll(120_000), f"process {pid} is alive"
    finally:
        os.close(file)


def pid_of(runner: Runner) -> int:
    assert runner._process is not None
    return runner._process._popen.pid


# -- what it computes ---------------------------------------------------------------------------


def test_arrays_sizes_and_scalars(runner: Runner) -> None:
    for n in (0, 1, 3, 1024, 1025, 300_000):
        assert (axpy(runner, n) == 7 * floats(n)).all()
        assert (axpy(runner, n, flush="front") == 7 * floats(n)).all()


def test_addresses(runner: Runner) -> None:
    c = np.ones(4, np.float32)
    sequence = [(floats(9), 0), (floats(4), 0), (floats(9), 20)]
    (out,) = runner.call("total", [sequence, c], [4, 3], (), [False, True])
    assert np.frombuffer(out, np.float32).tolist() == [6, 9, 12, 15]
    (out,) = runner.call("total", [[], c], [4, 0], (), [False, True])
    assert np.frombuffer(out, np.float32).tolist() == [1, 1, 1, 1]


def test_a_program_that_zig_compiled(programs: Make) -> None:
    """All in one test: at its first use zig builds what it links with, most of a minute."""
    runner = programs("neon qemu zig")
    assert (axpy(runner, 1025) == 7 * floats(1025)).all()
    assert "fault touched 1 byte behind the last byte of data" in fault(runner, 2)


def test_one_array_inside_another(runner: Runner) -> None:
    (out,) = runner.call("axpy", [Alias(2), Alias(2, 4), floats(4)], [3], [10.0], ONLY_LAST)
    assert np.frombuffer(out, np.float32).tolist() == [10, 21, 32, 3]


def test_what_is_not_written_comes_back_as_it_was(runner: Runner) -> None:
    (out,) = runner.call("axpy", [floats(8), floats(8), floats(8) - 5], [4], [1.0], ONLY_LAST)
    assert np.frombuffer(out, np.float32).tolist() == [0, 2, 4, 6, -1, 0, 1, 2]


# -- what it catches ----------------------------------------------------------------------------


def fault(runner: Runner, what: int, array: bytes = b"12345678", **more: object) -> str:
    """The message of the fault; afterwards the runner still works."""
    more.setdefault("writable", [True])
    with pytest.raises(TargetError) as caught:
        runner.call("fault", [array], [what, len(array)], names=["data"], **more)  # type: ignore[arg-type]
    assert (axpy(runner) == 7 * floats(5)).all()
    return str(caught.value)


def test_the_faulty_kernel_has_a_good_side(runner: Runner) -> None:
    assert runner.call("fault", [b"12345678"], [0, 8], writable=[True]) == [b"12345678"]


def test_reading_outside(runner: Runner) -> None:
    behind = fault(runner, 2)
    assert "fault touched 1 byte behind the last byte of data" in behind
    assert "offset 8" in behind
    assert "offsets from 0 to 7" in behind
    assert "touched 1 byte before the first byte of data" in fault(runner, 1, flush="front")
    assert "touched 1 byte behind the last byte of data" in fault(runner, 2, b"")
    assert "touched 1 byte behind" in fault(runner, 2, bytes(8192), flush="front")


def test_writing_outside(runner: Runner) -> None:
    assert "touched 1 byte behind the last byte of data" in fault(runner, 4)
    assert "touched 1 byte before the first byte of data" in fault(runner, 3, flush="front")
    assert "wrote 1 byte before the first byte of data" in fault(runner, 3)
    assert "wrote 1 byte behind the last byte of data" in fault(runner, 4, flush="front")


def test_writing_what_is_only_read(runner: Runner) -> None:
    assert "wrote byte 0 of data, which is only read" in fault(runner, 11, writable=[False])


def test_reading_what_was_never_given(runner: Runner) -> None:
    with pytest.raises(TargetError, match="behind the last byte of the addresses of matrices"):
        runner.call("total", [[(floats(4), 0)], floats(4)], [4, 2], names=["matrices", "c"])
    arrays = [[(floats(4), 0), (floats(4), 4)], floats(4)]
    with pytest.raises(TargetError, match=r"1 byte behind the last byte of matrices\[1\]"):
        runner.call("total", arrays, [4, 2], names=["matrices", "c"])


def test_scratch_has_its_size(runner: Runner) -> None:
    assert "touched byte 64 of the scratch" in fault(runner, 7)


def test_a_wild_address(runner: Runner) -> None:
    assert "fault crashed: SIGSEGV" in fault(runner, 9)


def test_an_instruction_the_cpu_lacks(runner: Runner) -> None:
    assert "fault crashed: SIG" in fault(runner, 8)


def test_a_runner_that_dies(runner: Runner) -> None:
    assert "the runner's process ended" in fault(runner, 5)
    assert "status 5" in fault(runner, 10)


def test_a_kernel_that_does_not_end(runner: Runner) -> None:
    axpy(runner)
    assert "did not end in time" in fault(runner, 6, timeout=0.3)


def test_a_runner_that_is_killed_is_started_again(runner: Runner) -> None:
    axpy(runner)
    os.kill(pid_of(runner), signal.SIGKILL)
    wait_for_the_end(pid_of(runner))
    assert (axpy(runner) == 7 * floats(5)).all()


# -- requests that make no sense ----------------------------------------------------------------


def test_a_kernel_it_does_not_have(native: Runner) -> None:
    with pytest.raises(TargetError, match="no kernel gemm") as caught:
        native.call("gemm", [])
    assert "axpy, total, fault" in str(caught.value)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["/no/such/program"], "cannot be started"),
        (["/bin/true"], "the runner's process ended"),
        (["/bin/sh", "-c", "echo it is broken >&2; exit 3"], "status 3; it is broken"),
        (["/bin/echo", "a line that is long enough for a greeting"], "is no runner"),
    ],
)
def test_a_program_that_is_no_runner(command: Sequence[str], message: str) -> None:
    *prefix, program = command
    with pytest.raises(TargetError, match=message):
        Runner(Path(program), prefix).call("axpy", [])


def test_an_array_that_is_not_contiguous(native: Runner) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        native.call("axpy", [floats(8)[::2]], [4], [1.0])
    assert (axpy(native) == 7 * floats(5)).all()


def test_more_memory_than_there_is(native: Runner) -> None:
    arrays = [floats(4), floats(4)]
    with pytest.raises(TargetError, match="no memory"):
        native.call("total", [[(array, 0) for array in arrays], floats(4)], [1 << 60, 2])


# -- processes and threads ----------------------------------------------------------------------


def test_threads_take_turns(native: Runner) -> None:
    wrong = []

    def work(seed: int) -> None:
        for n in range(seed, seed + 20):
            if not (axpy(native, n) == 7 * floats(n)).all():
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(0, 80, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_starts_its_own(native: Runner) -> None:
    axpy(native)
    mine = pid_of(native)
    child = os.fork()
    if child == 0:
        try:
            good = native._process is None and (axpy(native) == 7 * floats(5)).all()
            good = good and pid_of(native) != mine
            native.close()
        except BaseException:  # noqa: BLE001
            good = False
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (axpy(native) == 7 * floats(5)).all()
    assert pid_of(native) == mine


def test_closing_and_forgetting_ends_the_process(programs: Make) -> None:
    runner = programs("scalar native")
    axpy(runner)
    first = pid_of(runner)
    runner.close()
    assert not alive(first)
    axpy(runner)
    second = pid_of(runner)
    del runner
    gc.collect()
    assert not alive(second)


def test_a_runner_in_a_cycle_closes_its_files(
    native: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector ends the oldest objects first: here the files of the process."""
    started = [Process(native.command)]
    gc.collect()
    with monkeypatch.context() as patch:
        patch.setattr(emulator, "Process", lambda command: started.pop())
        runner: Any = Runner(native.executable)
        axpy(runner)
    runner.itself, pid = runner, pid_of(runner)
    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda got: said.append(str(got.exc_value)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        del runner
        gc.collect()
    assert not alive(pid)
    assert not said


def test_few_run_at_the_same_time(native: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "_ALIVE", 2)
    runners = [Runner(native.executable) for _ in range(4)]
    for runner in runners:
        axpy(runner)
    running = [runner for runner in runners if runner._process is not None]
    assert len(running) == 2
    for runner in runners:
        assert (axpy(runner) == 7 * floats(5)).all()


def test_one_runner_is_shared(native: Runner) -> None:
    scalar = load("scalar")
    shared = shared_runner(native.executable, scalar)
    assert shared is shared_runner(native.executable, scalar)
    assert (axpy(shared) == 7 * floats(5)).all()
    shared.close()


def test_an_emulator_may_read_a_little_more(runner: Runner) -> None:
    runner.overread = 32
    for flush in ("rear", "front"):
        for n in (0, 8, 4064, 4096):
            array = bytes(n)
            assert runner.call("fault", [array], [2, n], writable=[True], flush=flush) == [array]
            assert "wrote 1 byte behind" in fault(runner, 4, array, flush=flush)
    assert "touched 33 bytes behind the last byte" in fault(runner, 12)


def test_the_target_says_what_its_emulator_reads(native: Runner) -> None:
    overreads = {}
    for name in NAMES_OF_TARGETS:
        try:
            overreads[name] = runner_for(native.executable, load(name), emulated=True).overread
        except TargetError:
            pytest.skip(f"{name} has no emulator here")
    assert overreads == {"avx512": 0, "avx2": 32, "neon": 0}
    assert runner_for(native.executable, load("avx2"), emulated=False).overread == 0


@pytest.mark.parametrize("ending", ["pass", "import os; os.kill(os.getpid(), 9)", "1/0"])
def test_it_does_not_outlive_python(ending: str, native: Runner) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from tilewright.runtime.emulate.runner import Runner\n"
        "r = Runner(Path(sys.argv[1]))\n"
        "r.call('fault', [b''], [0, 0])\n"
        f"print(r._process._popen.pid, flush=True)\n{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(native.executable)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    pid = int(done.stdout)
    wait_for_the_end(pid)
    assert not alive(pid)


def test_the_emulator_s_cpu_is_the_target_s(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("qemu-aarch64 is not installed")
    prefix = command_prefix(load("neon"), emulated=True)
    assert (Path(prefix[0]).name, *prefix[1:]) == ("qemu-aarch64", "-cpu", "max")
    assert command_prefix(load("avx512"), emulated=True) == ()
    assert command_prefix(load("scalar")) == ()
