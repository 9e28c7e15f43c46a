"""The cache survives what happens to entries; each fault is provoked for real."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import filelock
import jinja2
import numpy as np
import platformdirs
import pytest
from support.builders import KERNEL, TESTS, compiled, fake, never, runs

import tilewright as tw
from tilewright.errors import CacheError, ToolchainError
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.machine import host
from tilewright.runtime.store import cache, folders
from tilewright.targets import load

pytestmark = pytest.mark.usefixtures("fresh")

# -- what it does when all is well --------------------------------------------------------------


def test_what_was_published_is_found_and_runs() -> None:
    assert cache.lookup("k1") is None
    entry = cache.publish("k1", compiled)
    assert cache.publish("k1", never) == entry == cache.lookup("k1")
    assert entry.source.read_text() == KERNEL
    assert entry.manifest["name"] == "axpy"
    assert runs(entry)
    assert not os.listdir(entry.directory.parent.parent / "building")


def test_a_reference_finds_the_library_of_another_key() -> None:
    held = cache.publish("many", compiled)
    cache.refer("one", held, {"name": "total"})
    found = cache.lookup("one")
    assert found is not None
    assert (found.library, found.manifest["name"], found.holder) == (held.library, "total", "many")
    assert cache.refer("many", held, {}) is held


def test_failed_builds_leave_nothing() -> None:
    def broken(folder: Path) -> Mapping[str, Any]:
        fake(folder)
        raise ToolchainError("the compiler failed")

    with pytest.raises(ToolchainError):
        cache.publish("k1", broken)
    with pytest.raises(CacheError, match="left no library"):
        cache.publish("k1", lambda folder: {"library": "none.so", "source": "none.c"})
    assert cache.list_entries() == []
    assert cache.publish("k1", fake).library.read_bytes() == b"the library"


@pytest.mark.parametrize("error", [jinja2.TemplateNotFound("none.c.j2"), FileNotFoundError(2, "")])
def test_what_the_builder_lacks_is_no_fault_of_the_directory(error: OSError, fresh: Path) -> None:
    def broken(folder: Path) -> Mapping[str, Any]:
        fake(folder)
        raise error

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(type(error)) as caught:
            cache.publish("k1", broken)
    assert caught.value is error
    assert os.listdir(fresh / "building") == [] == folders._own
    assert cache.publish("k1", fake) == cache.lookup("k1")


def test_list_verify_and_clear() -> None:
    assert list(cache.verify_entries()) == [] == cache.list_entries()
    held = cache.publish("a", fake)
    cache.refer("b", held, {})
    cache.publish("c", fake).source.write_text("not the C")
    assert [entry.key for entry in cache.list_entries()] == ["a", "b", "c"]
    assert list(cache.verify_entries()) == [
        ("a", None),
        ("b", None),
        ("c", "k.c has 9 bytes, not 5"),
    ]
    assert cache.clear() == 3
    assert cache.clear() == 0
    assert cache.lookup("a") is None
    assert cache.publish("a", fake).library.exists()


def test_the_key_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = [tmp_path / str(i) for i in range(3)]
    for room, copy in zip(cache._ROOMS, rooms, strict=True):
        shutil.copytree(room, copy, ignore_dangling_symlinks=True)
    monkeypatch.setattr(cache, "_ROOMS", tuple(map(str, rooms)))
    monkeypatch.setattr(cache, "sources_digest", cache.sources_digest.__wrapped__)
    before = cache.key("spec", "schedule")
    assert cache.key("spec", "schedule") == before
    assert cache.key("specs", "chedule") != before
    template = next((tmp_path / "2").rglob("*.j2"))
    text = template.read_text()
    template.write_text(text + "\n")
    assert cache.key("spec", "schedule") != before
    template.write_text(text)
    assert cache.key("spec", "schedule") == before


@pytest.mark.parametrize("room", range(3))
def test_the_key_follows_sources_two_folders_down(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = [tmp_path / str(i) for i in range(3)]
    deep = rooms[room] / "one" / "two"
    for path in (*rooms, deep):
        path.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(cache, "_ROOMS", tuple(map(str, rooms)))
    monkeypatch.setattr(cache, "sources_digest", cache.sources_digest.__wrapped__)
    keys = [cache.key("spec")]
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.c.j2", "y"), ("b.pyc", "ignored")):
        (deep / name).write_text(text)
        keys.append(cache.key("spec"))
    assert len(set(keys[:4])) == 4
    assert keys[4] == keys[3]
    (deep / "a.py").rename(deep.parent / "a.py")
    assert cache.key("spec") not in keys


def test_the_key_is_that_of_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package holds all rooms; those that generate nothing do not count."""
    monkeypatch.setattr(cache, "sources_digest", cache.sources_digest.__wrapped__)
    checkout = [tmp_path / name for name in ("dsl", "targets", "templates")]
    package = tmp_path / "site" / "tilewright"
    installed = [package, package / "targets", package / "templates"]
    keys = []
    for rooms in (checkout, installed):
        for room in rooms:
            (room / "inner").mkdir(parents=True)
            (room / "inner" / "a.py").write_text(room.name.replace("dsl", "tilewright"))
        monkeypatch.setattr(cache, "_ROOMS", tuple(map(str, rooms)))
        keys.append(cache.key("spec"))
    (package / "cli").mkdir()
    (package / "cli" / "screen.py").write_text("decides nothing")
    assert keys == [cache.key("spec")] * 2


def test_a_process_goes_on_with_the_sources_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cache.key("spec", "schedule")
    monkeypatch.setattr(cache, "_ROOMS", (str(tmp_path),))
    assert cache.key("spec", "schedule") == before


@pytest.mark.parametrize("value", [None, "", " ", "/tmp/some where", "/tmp/x/"])
def test_the_directory_is_what_platformdirs_says(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    expected = platformdirs.user_cache_dir("tilewright", appauthor=False)
    assert str(folders.cache_directory()) == expected


def test_a_hit_imports_nothing_heavy() -> None:
    cache.publish("k1", fake)
    host.cpu.cache_clear()  # so that what the CPU says is written into this cache
    host.identify("host")
    script = (
        "import sys, numpy; before = set(sys.modules)\n"
        "from tilewright.runtime.machine import host\nfrom tilewright.runtime.store import cache\n"
        "assert cache.lookup('k1') and cache.key('x') and host.identify('host')\n"
        "print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    heavy = {"sympy", "jinja2", "cffi", "filelock", "archspec", "platformdirs", "subprocess"}
    assert not loaded & (heavy | {"tempfile", "shutil", "atexit"})


# -- damaged entries ----------------------------------------------------------------------------


def manifest_says(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / cache.MANIFEST
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def truncated(folder: Path) -> None:
    os.truncate(folder / "k.so", (folder / "k.so").stat().st_size // 2)


def altered(folder: Path) -> None:
    data = bytearray((folder / "k.so").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "k.so").write_bytes(data)


def linked(folder: Path) -> None:
    (folder / "k.so").unlink()
    (folder / "k.so").symlink_to("/bin/sh")


def made_a_directory(folder: Path) -> None:
    (folder / "k.so").unlink()
    (folder / "k.so").mkdir()


def made_a_pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name, 0o600)

    return change


def a_pipe_itself(folder: Path) -> None:
    shutil.rmtree(folder)
    os.mkfifo(folder, 0o600)


def a_file_itself(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no directory")


def manifest_is(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / cache.MANIFEST).write_text(text)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (truncated, "has .* bytes, not"),
    "empty": (lambda f: os.truncate(f / "k.so", 0), "has 0 bytes"),
    "altered": (altered, "was altered"),
    "missing": (lambda f: (f / "k.so").unlink(), "No such file"),
    "a link": (linked, "has .* bytes, not|another user"),
    "a directory": (made_a_directory, "directory"),
    "open to others": (lambda f: (f / "k.so").chmod(0o666), "written by, another user"),
    "folder open to others": (lambda f: f.chmod(0o777), "written by, another user"),
    "format": (manifest_says(format=0), "format 0, this version writes"),
    "newer format": (manifest_says(format=99), "format 99"),
    "other key": (manifest_says(key="k2"), "another entry"),
    "path": (manifest_says(library="../../k.so"), "cannot be read"),
    "no files": (manifest_says(files={}), "cannot be read"),
    "odd files": (manifest_says(files={"k.so": 7}), "cannot be read"),
    "no text": (lambda f: (f / cache.MANIFEST).write_bytes(b"\xff\0"), "cannot be read"),
    "half a text": (lambda f: (f / cache.MANIFEST).write_text('{"format": 1'), "cannot be read"),
    "a list": (lambda f: (f / cache.MANIFEST).write_text("[]"), "cannot be read"),
    "nested": (manifest_is("[" * 200_000), "cannot be read"),
    "nested in an object": (manifest_is('{"a":' * 200_000), "cannot be read"),
    "long": (lambda f: os.truncate(f / cache.MANIFEST, 1 << 25), "has 33554432 bytes"),
    "no digest": (manifest_says(files={"k.so": {"size": 1}, "k.c": {"size": 1}}), "cannot be read"),
    "odd size": (
        manifest_says(files={name: {"size": "1", "sha256": ""} for name in ("k.so", "k.c")}),
        "cannot be read",
    ),
    "no source": (manifest_says(source="other.c"), "cannot be read"),
    "a name with a zero": (manifest_says(entry="k\0"), "cannot be read"),
    "the folder above": (manifest_says(entry=".."), "cannot be read"),
    "a long name": (manifest_says(entry="k" * 300), "File name too long"),
    "unknown means": (manifest_says(means="magic"), "says that it runs by 'magic'"),
    "a list of means": (manifest_says(means=["native"]), "says that it runs by"),
    "a pipe": (made_a_pipe("k.so"), "k.so is a pipe"),
    "a pipe for a manifest": (made_a_pipe(cache.MANIFEST), "manifest.json is a pipe"),
    "a pipe for an entry": (a_pipe_itself, "manifest.json: Not a directory"),
    "a file for an entry": (a_file_itself, "manifest.json: Not a directory"),
    "itself": (manifest_says(entry="k1"), "refers to a reference"),
    "gone": (manifest_says(entry="k9"), "is gone"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_entry_is_said_and_rebuilt(name: str) -> None:
    damage, message = DAMAGE[name]
    damage(cache.publish("k1", compiled).directory)
    with pytest.warns(RuntimeWarning, match=f"(?s)k1 is set aside: .*({message})"):
        assert cache.lookup("k1") is None
    entry = cache.publish("k1", compiled)
    assert runs(entry)
    assert cache.lookup("k1") == entry


def test_a_damaged_library_takes_its_references_along() -> None:
    held = cache.publish("many", fake)
    cache.refer("one", held, {"name": "one"})
    altered(held.directory)
    with pytest.warns(RuntimeWarning, match="one is set aside: k.so was altered"):
        assert cache.lookup("one") is None
    entry = cache.publish("one", fake)
    assert entry.holder == "one"


def test_the_means_are_those_of_the_host() -> None:
    assert get_args(host.Means) == cache._MEANS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"means": None}, "its manifest says that it runs by None"),
        ({"means": "qemu"}, "its manifest says that it runs by 'qemu', not 'native'"),
        ({"text": None}, "where the C of its kernels is"),
        ({"text": "../k.c"}, "where the C of its kernels is"),
        ({"compiler_parts": {}}, "which compiler made it"),
    ],
)
def test_a_kernel_whose_manifest_misses_something_is_built_again(
    changes: dict[str, Any], message: str
) -> None:
    spec, target = tw.Gemm(2, 2, 2), "scalar"
    entry = tw.compile(spec, target=target)._entry
    file = entry.directory / cache.MANIFEST
    said = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in said.items() if value is not None}))
    with pytest.warns(RuntimeWarning, match=f"(?s)is set aside: .*{message}"):
        kernel = tw.compile(spec, target=target)
    assert kernel.emulated is None
    assert (kernel(np.ones((2, 2), "f4"), np.ones((2, 2), "f4")) == 2).all()
    assert "{" in kernel.source


def test_a_library_that_says_nothing_of_its_kernels_is_built_again() -> None:
    requests = [(tw.Gemm(2, 2, k), None, "scalar") for k in (1, 2)]
    held = tw.compile_many(requests)[0]._entry
    for file in held.directory.parent.glob("*/" + cache.MANIFEST):
        said = json.loads(file.read_text())
        if "entry" in said:
            shutil.rmtree(file.parent)
        else:
            file.write_text(json.dumps({n: v for n, v in said.items() if n != "texts"}))
    with pytest.warns(RuntimeWarning, match="where the C of its kernels is"):
        kernels = tw.compile_many(requests)
    for kernel in kernels:
        kernel.verify()


def test_what_was_not_verified_does_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "it ran"
    text = (
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void)\n"
        f'{{ FILE *f = fopen("{marker}", "w"); if (f) fclose(f); }}\n'
    )
    target = load("scalar")
    compiler = find_compiler(target, emulated=False)
    foreign = compile_library(text, target, compiler, tmp_path, "foreign", ["-Wno-error"])
    entry = cache.publish("k1", compiled)
    shutil.copy(foreign, entry.library)
    with pytest.warns(RuntimeWarning, match="set aside"):
        assert runs(cache.publish("k1", compiled))
    assert not marker.exists()
    ctypes.CDLL(str(foreign))
    assert marker.exists(), "the foreign library would have run"


# -- several processes --------------------------------------------------------------------------

BUILDER = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from support.builders import compiled, runs
from tilewright.runtime.store import cache

def build(folder):
    with open(sys.argv[1], "a") as log:
        log.write("built\\n")
    said = compiled(folder)
    if len(sys.argv) > 2:
        print("half-way", flush=True)
        sys.stdin.read()
    return said

print(runs(cache.publish("k1", build)))
"""


def test_ten_processes_build_a_kernel_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", BUILDER, str(log)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(10)]
    assert [child.communicate()[0] for child in children] == ["True\n"] * 10
    assert log.read_text() == "built\n"


def test_a_process_killed_in_the_middle(
    tmp_path: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "log"), "slowly"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half-way\n"
        child.send_signal(signal.SIGKILL)
    assert os.listdir(fresh / "building") == ["k1"]
    assert cache.lookup("k1") is None
    monkeypatch.setattr(cache, "LOCK_SECONDS", 0)  # its lock is free: nobody waits for it
    assert runs(cache.publish("k1", compiled))
    assert os.listdir(fresh / "building") == []


def test_what_killed_processes_left_is_collected(tmp_path: Path, fresh: Path) -> None:
    """By the next that builds something, whatever it is; not what is being built."""
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "log"), "slowly"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half-way\n"
        (fresh / "building" / "k5").mkdir()
        (fresh / "building" / "k5" / "k.c").write_text("half a te")
        (fresh / "building" / "k6").write_text("a file")
        cache.publish("k2", fake)
        assert os.listdir(fresh / "building") == ["k1"], "it is being built"
        child.kill()
    cache.publish("k2", never)
    cache.publish("k3", fake)
    assert os.listdir(fresh / "building") == []
    assert cache.lookup("k2") is not None


def test_a_lock_that_is_never_given_back(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LOCK_SECONDS", 0.1)
    cache.publish("k0", fake)
    with (
        filelock.FileLock(fresh / "locks" / "k1.lock"),
        pytest.warns(RuntimeWarning, match="held the lock"),
    ):
        assert not cache.publish("k1", fake).library.is_relative_to(fresh)
