"""Parallel loops run on the threads of an OpenMP runtime that the process has, where that is safe.

The runtime is a small one that counts what it is asked. Each test is a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tilewright.errors import ToolchainError
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.targets import load

DATA = Path(__file__).parents[1] / "data"
#: ``many()`` is a loop for any number of threads, ``three()`` one that asks for three; both return
#: whether the result is right. ``ran()`` counts the loops that ran since it was called last.
BEGIN = """
import ctypes, os, signal, sys, threading, time
import numpy as np
import tilewright as tw
from tilewright.runtime.threads import process
from tilewright.runtime.threads.words import choice

def fake():
    return ctypes.CDLL(sys.argv[1])

def set(most=2, inside=0, fewer=0, late=0):
    runtime.fake_set(most, inside, fewer, ctypes.c_long(late))

spec = tw.Gemm(258, 113, 101)
kernels = [tw.compile(spec, tw.Schedule(loops="NMk", threads=t, vectorize="n")) for t in (None, 3)]
a, b = np.ones((258, 101), "f4"), np.ones((101, 113), "f4")

patient = process.functions()["tw_threads_patience"]
patient(1 << 62)  # this machine may be slow

def many(): return bool((kernels[0](a, b) == 101).all())
def three(): return bool((kernels[1](a, b) == 101).all())

EVENTS = ("by_openmp", "by_own", "taken", "inside", "handler")
before = dict.fromkeys(EVENTS, 0)
def ran():
    now = {name: getattr(process.told()[0], name) for name in EVENTS}
    found = {name: now[name] - before[name] for name in EVENTS if now[name] != before[name]}
    before.update(now)
    return found
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="lists the libraries of a process")
pytestmark = linux


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The runtime's path; its name begins as gcc's does."""
    try:
        compiler = find_compiler(load("scalar"), emulated=False)
    except ToolchainError as error:
        pytest.skip(str(error))
    text, folder = (DATA / "openmp.c").read_text(), tmp_path_factory.mktemp("openmp")
    return str(compile_library(text, load("scalar"), compiler, folder, "libgomp-fake"))


def lines(fake: str, code: str, begin: str = BEGIN, **environment: str) -> list[str]:
    """Return the lines that a process prints; fail if it takes a minute or ends badly."""
    known = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", begin + code, fake],
        env={**known, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_runtime_is_used_from_when_it_is_loaded(fake: str) -> None:
    code = """
print(three(), ran(), choice().threads, choice().runtime)
runtime = fake()
print(three(), ran(), choice().threads, choice().runtime == sys.argv[1])
print(runtime.fake_told(0), runtime.fake_told(1))
"""
    assert lines(fake, code) == [
        "True {'by_own': 1} own ",
        "True {'by_openmp': 1} openmp True",
        "1 3",
    ]


@pytest.mark.parametrize("asked", ["own", "openmp", "auto"])
def test_the_environment_decides(asked: str, fake: str) -> None:
    code = "runtime = fake(); three(); print(*ran(), choice().threads, choice().reason)"
    (said,) = lines(fake, code, TILEWRIGHT_THREADS=asked)
    by = "own" if asked == "own" else "openmp"
    assert said.startswith(f"by_{by} {by} ")
    assert ("TILEWRIGHT_THREADS" in said) == (asked != "auto")


def test_another_value_is_refused(fake: str) -> None:
    code = """
os.environ["TILEWRIGHT_THREADS"] = "gomp"
try: tw.compile(tw.Gemm(256, 111, 101), tw.Schedule(loops="NMk", vectorize="n"))
except tw.TilewrightError as error: print(error)
"""
    said = "\n".join(lines(fake, code))
    assert "'gomp'" in said and "auto, openmp, own" in said


def test_nobody_waits_for_members_that_do_not_come(fake: str) -> None:
    """A team of the caller alone runs all tasks; the same holds for a team that is too large."""
    code = """
runtime = fake()
set(fewer=1)
print(three(), many(), ran().keys())
set(most=64)
print(three(), ran().keys(), runtime.fake_told(1))
"""
    assert lines(fake, code, TILEWRIGHT_THREADS="openmp") == [
        "True True dict_keys(['by_openmp'])",
        "True dict_keys(['by_openmp']) 3",
    ]


def test_a_team_that_comes_late_is_not_asked_again_at_once(fake: str) -> None:
    code = """
runtime = fake()
patient(0)
set(late=300_000_000)
print(three() and three(), sorted(ran()), choice().threads)
"""
    (said,) = lines(fake, code)
    assert said == "True ['by_openmp', 'by_own'] own"
    (said,) = lines(fake, code, TILEWRIGHT_THREADS="openmp")
    assert said == "True ['by_openmp'] openmp"


def test_inside_a_region_of_openmp_loops_run_alone(fake: str) -> None:
    code = """
runtime = fake()
set(inside=1)
print(three(), ran())
set()
print(three(), *ran())
os.environ["TILEWRIGHT_THREADS"] = "own"
process.told()
set(inside=1)
print(three(), ran())
"""
    assert lines(fake, code) == [
        "True {'inside': 1}", "True by_openmp", "True {'inside': 1}",
    ]  # fmt: skip


@pytest.mark.parametrize("first", [False, True])
def test_loops_run_alone_in_a_signal_handler(first: bool, fake: str) -> None:
    """Also if it is the thread's first loop; a thread that always blocks a signal is no handler."""
    code = f"""
runtime = fake()
if not {first}: three()
ran()
for kernel in kernels:
    c = np.zeros((258, 113), "f4")
    runtime.fake_signal(*map(ctypes.c_void_p, (kernel.address, *map(address, (a, b, c)))))
    print((c == 101).all(), *ran())
    print(three(), *ran())
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
thread = threading.Thread(target=lambda: print([three() for _ in range(3)], ran()))
thread.start()
thread.join()
"""
    begin = BEGIN + "from tilewright.runtime.arrays.memory import address\n"
    assert lines(fake, code, begin, TILEWRIGHT_THREADS="openmp") == [
        *["True handler", "True by_openmp"] * 2,
        "[True, True, True] {'by_openmp': 2, 'handler': 1}",
    ]


# -- how many -----------------------------------------------------------------------------------

LIMITS = """
def most(): return process.told()[0].most
cpus = process.told()[0].cpus
"""


def test_the_least_limit_holds(fake: str) -> None:
    code = f"""{LIMITS}
print(most() == cpus, choice().limit)
runtime = fake()
set(most=1)
print(most(), choice().limit, many(), ran(), three(), *ran())
set(most=1000)
print(most() == cpus)
os.environ["OMP_NUM_THREADS"] = "1,7"
print(most(), choice().limit, many(), ran(), three(), *ran())
for wrong in ("", "many", "-3", "0"):
    os.environ["OMP_NUM_THREADS"] = wrong
    print(most() == cpus, end=" ")
"""
    assert lines(fake, code) == [
        "True the CPUs that the process may use",
        "1 OpenMP's setting for this thread True {} True by_openmp",
        "True",
        "1 OMP_NUM_THREADS True {} True by_openmp",
        "True True True True ",
    ]


def test_limits_change_between_calls(fake: str) -> None:
    code = f"""{LIMITS}
import threadpoolctl
later = tw.compile(tw.Gemm(256, 114, 101), tw.Schedule(loops="NMk", vectorize="n"))
for _ in range(2):
    with threadpoolctl.threadpool_limits(1, user_api="tilewright"):
        now = tw.compile(tw.Gemm(256, 112, 101), tw.Schedule(loops="NMk", vectorize="n"))
        now(a[:256], b[:, :112].copy())
        print(most(), many(), ran(), three(), *ran())
    print(most() == cpus, process.told()[0].limit)
"""
    if find_spec("threadpoolctl") is None:
        pytest.skip("there is no threadpoolctl")
    assert lines(fake, code) == ["1 True {} True by_own", "True 0"] * 2


def test_a_smaller_affinity_holds_from_the_next_call(fake: str) -> None:
    code = f"""{LIMITS}
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
print(most(), many(), ran(), three(), *ran())
"""
    assert lines(fake, code) == ["1 True {} True by_own"]


# -- threads of the caller ----------------------------------------------------------------------


@pytest.mark.parametrize("loaded", [False, True])
def test_sixteen_threads_at_once(loaded: bool, fake: str) -> None:
    """One loop at a time has several threads; OpenMP gets a team for two callers at most."""
    code = f"""
runtime = fake() if {loaded} else None
wrong, barrier = [], threading.Barrier(16)
def work():
    for _ in range(4):
        barrier.wait()
        for _ in range(5):
            if not three(): wrong.append(1)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(16)]
for t in threads: t.start()
for t in threads: t.join()
found = ran()
print(wrong, sum(found.values()) == 16 * 20, found.get("inside"), found.get("handler"))
print(runtime.fake_told(2) <= 2 if runtime else found.get("by_openmp"))
while process.told()[0].teams: time.sleep(0.01)
print(three(), *ran())
"""
    by = "by_openmp" if loaded else "by_own"
    ends = ["True" if loaded else "None", f"True {by}"]
    assert lines(fake, code, TILEWRIGHT_THREADS="openmp") == ["[] True None None", *ends]


def test_children_do_not_use_openmp(fake: str) -> None:
    """Forked before and after the runtime was used, while a loop runs, and from a child."""
    code = """
signal.alarm(50)
def child(after):
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        ran()
        good = all([three() for _ in range(3)]) and ran() == {"by_own": 3}
        good = good and choice().threads == "own" and "forked" in choice().reason
        good = good and (not after or child(after - 1))
        os._exit(0 if good else 1)
    return os.waitpid(pid, 0)[1] == 0
runtime = fake()
print(child(1))
print(three(), *ran(), child(1))
stop = False
def busy():
    while not stop: three()
thread = threading.Thread(target=busy)
thread.start()
print([child(0) for _ in range(10)].count(True))
stop = True
thread.join()
ran()
print(three(), *ran())
"""
    assert lines(fake, code, TILEWRIGHT_THREADS="openmp") == [
        "True", "True by_openmp True", "10", "True by_openmp",
    ]  # fmt: skip


@pytest.mark.parametrize("asked", ["auto", "openmp"])
def test_a_forked_process_does_not_trust_what_it_was_given(asked: str, fake: str) -> None:
    """A runtime that a process was forked with may wait for threads of the parent."""
    begin = f"""
import os
pid = os.fork()
if pid: os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
{BEGIN}"""
    code = "runtime = fake(); print(three(), *ran(), choice().threads)\nsys.stdout.flush()"
    inherited = begin.replace("pid = os.fork()", "import ctypes, sys; ctypes.CDLL(sys.argv[1])\n"
                              "pid = os.fork()")  # fmt: skip
    by = "own" if asked == "auto" else "openmp"
    assert lines(fake, code, inherited, TILEWRIGHT_THREADS=asked) == [f"True by_{by} {by}"]
    late = "print(three(), *ran())\nruntime = fake(); print(three(), *ran())\nsys.stdout.flush()"
    found = lines(fake, late, begin, TILEWRIGHT_THREADS=asked)
    assert found == ["True by_own", "True by_openmp"]


# -- PyTorch ------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("torch") is None, reason="there is no PyTorch")
def test_pytorchs_own_runtime_is_used_when_it_is_imported(fake: str) -> None:
    code = """
other = fake()
print(three(), *ran())
import torch
x = torch.ones(512, 512)
def serves(): return (x @ x + x)[0, 0].item() == 513 and three()
if "OpenMP" not in torch.__config__.parallel_info(): print("no OpenMP"); sys.exit()
other.fake_set(1000, 0, 0, ctypes.c_long(0))
print(all(serves() for _ in range(5)), *ran(), choice().runtime != sys.argv[1], other.fake_told(0))
torch.set_num_threads(1)
print(process.told()[0].most, many(), ran())
pid = os.fork()
if not pid:
    signal.alarm(20)
    os._exit(0 if all([three() for _ in range(3)]) and ran() == {"by_own": 3} else 1)
print(os.waitpid(pid, 0)[1])
"""
    first, *found = lines(fake, code, TILEWRIGHT_THREADS="openmp")
    assert first == "True by_openmp"
    if found == ["no OpenMP"]:
        pytest.skip("this PyTorch has no OpenMP")
    assert found == ["True by_openmp True 1", "1 True {}", "0"]


def test_a_child_forked_while_a_thread_lists_libraries_does_not_wait(fake: str) -> None:
    """The loader's lock, which that thread holds, is not the child's for ever."""
    code = """
runtime = fake()
most = ctypes.cast(process.functions()["tw_threads"](), ctypes.POINTER(ctypes.c_void_p))[0]
print(runtime.fake_fork(ctypes.c_void_p(most), ctypes.c_int64(100)))
"""
    assert lines(fake, code) == ["0"]
