"""The cache survives what happens to its directory; each fault is provoked for real."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.builders import TESTS, compiled, fake, never, runs
from support.privileges import as_nobody, folder_of_nobody, on_tmpfs

from tilewright.errors import CacheError
from tilewright.runtime.store import cache, folders

pytestmark = pytest.mark.usefixtures("fresh")
SHM = Path("/dev/shm")

# -- disks --------------------------------------------------------------------------------------

ON_A_DISK = f"""
import os, sys, warnings
sys.path.insert(0, {str(TESTS)!r})
os.environ["TILEWRIGHT_CACHE_DIR"] = sys.argv[1] + "/cache"
from support.builders import compiled, runs
from tilewright.runtime.store import cache
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for time in range(2):
        entry = cache.publish("k1", compiled)
        assert runs(entry) and cache.lookup("k1") == entry, entry
print(entry.library)
print(*[warning.message for warning in caught], sep="\\n")
"""


def on_a_disk(options: str) -> tuple[str, str]:
    done = on_tmpfs(options, ON_A_DISK)
    if isinstance(done, str) and options.startswith("noexec") and folders.is_noexec(SHM):
        with tempfile.TemporaryDirectory(dir=SHM) as where:  # as containers have it
            command = [sys.executable, "-c", ON_A_DISK, where]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
    if isinstance(done, str):
        pytest.skip(done)
    assert done.returncode == 0, done.stderr
    library, *warnings = done.stdout.strip().splitlines()
    return library, "\n".join(warnings)


@pytest.mark.parametrize("size", ["4k", "8k", "16k"])
def test_a_full_disk(size: str) -> None:
    library, said = on_a_disk(f"size={size},mode=755")
    assert "/cache/entries/" not in library
    assert said.count("takes no new kernels") == 1
    assert "No space left" in said or "no room" in said


def test_a_disk_without_inodes() -> None:
    library, said = on_a_disk("nr_inodes=6,mode=755")
    assert "/cache/entries/" not in library
    assert said.count("takes no new kernels") == 1


def test_a_noexec_disk() -> None:
    library, said = on_a_disk("noexec,mode=755")
    assert "tilewright-" in library
    assert said.count("mounted noexec: libraries are copied") == 1


def wordy(folder: Path) -> Mapping[str, Any]:
    """Build without a compiler: it is the builder itself that finds no room."""
    (folder / "k.c").write_text("the C" * 1000)
    return fake(folder)


@pytest.mark.parametrize("build", [compiled, wordy])
def test_files_that_may_not_grow(build: cache.Builder, fresh: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
    try:
        with (
            pytest.warns(RuntimeWarning, match="takes no new kernels"),
            pytest.raises(CacheError, match="no temporary directory has room") as caught,
        ):
            cache.publish("k1", build)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "TMPDIR" in str(caught.value)
    assert os.listdir(fresh / "building") == []
    assert runs(cache.publish("k1", compiled))


# -- whose directory ----------------------------------------------------------------------------


def test_a_read_only_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    with folder_of_nobody() as top:
        root = top / "cache"
        monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(root))
        monkeypatch.setattr("tempfile.tempdir", str(top))

        def fill() -> None:
            cache.publish("k1", compiled)
            for folder in (root, *root.iterdir(), *(root / "entries").iterdir()):
                folder.chmod(0o500)

        def use() -> None:
            hit, new = cache.publish("k1", never), cache.publish("k2", compiled)
            assert hit.library.is_relative_to(root)
            assert not new.library.is_relative_to(root)
            assert runs(hit)
            assert runs(new)
            assert cache.publish("k2", never) == new == cache.lookup("k2")

        assert as_nobody(fill) == []
        (said,) = as_nobody(use)
        assert "takes no new kernels (Permission denied)" in said


def test_a_directory_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with folder_of_nobody() as top:
        monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "/proc/none/tilewright")
        monkeypatch.setattr("tempfile.tempdir", str(top))

        def use() -> None:
            assert cache.lookup("k1") is None
            assert runs(cache.publish("k1", compiled))

        (said,) = as_nobody(use)
        assert "takes no new kernels" in said


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
def test_a_directory_that_others_can_write_is_refused(mode: int, fresh: Path) -> None:
    cache.publish("k1", fake)
    fresh.chmod(mode)
    for action in (
        lambda: cache.lookup("k1"),
        lambda: cache.publish("k1", never),
        cache.clear,
        cache.list_entries,
    ):
        with pytest.raises(CacheError, match="can be written by others") as caught:
            action()
        assert f"chmod go-w {fresh}" in str(caught.value)


def test_a_directory_inside_that_others_can_write_is_refused(fresh: Path) -> None:
    cache.publish("k1", fake)
    (fresh / "entries").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="set aside"):
        assert cache.lookup("k1") is None
    with pytest.raises(CacheError, match="entries can be written by others"):
        cache.publish("k1", never)


def test_a_directory_that_others_can_replace_is_refused(fresh: Path) -> None:
    (fresh / "cache").mkdir(mode=0o700)
    fresh.chmod(0o777)
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(fresh / "cache")
    with pytest.raises(CacheError, match="can be replaced by others"):
        cache.lookup("k1")
    fresh.chmod(0o1777)
    assert cache.lookup("k1") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
def test_a_directory_of_another_user_is_refused() -> None:
    with folder_of_nobody() as top:
        os.environ["TILEWRIGHT_CACHE_DIR"] = str(top)
        with pytest.raises(CacheError, match="belongs to another user"):
            cache.lookup("k1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's library")
def test_a_library_of_another_user_is_set_aside() -> None:
    os.chown(cache.publish("k1", fake).library, 65534, 65534)
    with pytest.warns(RuntimeWarning, match="another user"):
        assert cache.lookup("k1") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_parent_of_another_user_is_refused(fresh: Path) -> None:
    """Sticky or not: who owns a directory can rename what lies in it."""
    root = fresh / "of another" / "ours" / "cache"
    root.mkdir(mode=0o700, parents=True)
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(root)
    assert cache.lookup("k1") is None
    os.chown(fresh / "of another", 65534, 65534)
    for mode in (0o755, 0o1755):
        (fresh / "of another").chmod(mode)
        with pytest.raises(CacheError, match="can be replaced by another user") as caught:
            cache.lookup("k1")
        assert f"{fresh / 'of another'} belongs to user 65534" in str(caught.value)
    with pytest.raises(CacheError, match="can be replaced by another user"):
        cache.publish("k1", never)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_parent_of_root_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the user is, and the directories around it, up to root's own."""
    with folder_of_nobody() as top:
        monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(top / "a" / "cache"))

        def use() -> None:
            cache.publish("k1", fake)
            assert cache.publish("k1", never) == cache.lookup("k1")

        assert as_nobody(use) == []
        assert (top / "a").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to a group")
def test_a_parent_that_a_group_can_write_is_refused(fresh: Path) -> None:
    (fresh / "cache").mkdir(mode=0o700)
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(fresh / "cache")
    fresh.chmod(0o770)
    assert cache.lookup("k1") is None, "our own group's: often a user has one alone"
    os.chown(fresh, 0, 65534)
    with pytest.raises(CacheError, match="can be replaced by others") as caught:
        cache.lookup("k1")
    assert f"chmod go-w {fresh}" in str(caught.value)
    fresh.chmod(0o1770)
    assert cache.lookup("k1") is None


def test_the_way_to_a_link_is_looked_at_too(fresh: Path) -> None:
    """Who can replace the link can lead elsewhere."""
    (fresh / "cache").mkdir(mode=0o700)
    (fresh / "open").mkdir()
    (fresh / "open" / "link").symlink_to(fresh / "cache")
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(fresh / "open" / "link")
    assert cache.lookup("k1") is None
    (fresh / "open").chmod(0o777)
    with pytest.raises(CacheError, match="can be replaced by others"):
        cache.lookup("k1")


@pytest.mark.parametrize("inside", ["", "entries", "building", "locks"])
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_what_is_no_directory_is_refused(inside: str, kind: str, fresh: Path) -> None:
    place = fresh / "cache" / inside
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(fresh / "cache")
    place.parent.mkdir(mode=0o700, exist_ok=True)
    place.write_text("") if kind == "file" else os.mkfifo(place, 0o600)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nothing is found there, and that is said
        with pytest.raises(CacheError, match=f"(?s){place} is no directory.*a {kind}"):
            cache.publish("k1", never)
        if not inside:
            with pytest.raises(CacheError, match="is no directory"):
                cache.lookup("k1")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/tmp/" + "x" * 300, r"(?s)cannot be used: File name too long.*305 characters.*shorter"),
        ("/tmp" + "/x" * 3000, r"(?s)cannot be used: File name too long.*6004 characters"),
        (f"{__file__}/cache", r"(?s)cannot be used: Not a directory.*TILEWRIGHT_CACHE_DIR"),
    ],
)
def test_a_path_that_cannot_be(path: str, message: str, fresh: Path) -> None:
    os.environ["TILEWRIGHT_CACHE_DIR"] = path
    for action in (lambda: cache.lookup("k1"), lambda: cache.publish("k1", never), cache.clear):
        with pytest.raises(CacheError, match=message):
            action()


# -- private directories ------------------------------------------------------------------------

KILLED = f"""
import os, sys
sys.path.insert(0, {str(TESTS)!r})
from tilewright.runtime.store import folders
print(folders.make_private(), flush=True)
sys.stdin.read()
"""


def test_private_directories_of_killed_processes_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_candidates", lambda: [str(tmp_path)])
    (tmp_path / "tilewright-other").mkdir()
    (tmp_path / "tilewright-file").write_text("")
    environment, pipe = {**os.environ, "TMPDIR": str(tmp_path)}, subprocess.PIPE
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as child:
        assert child.stdout is not None
        left = Path(child.stdout.readline().strip())
        assert left.parent == tmp_path
        assert folders.collect_private() == 0
        child.kill()
    assert left.is_dir()
    own = folders.make_private()
    assert not left.exists()
    assert sorted(tmp_path.glob("tilewright-*")) == sorted(
        [own, tmp_path / "tilewright-other", tmp_path / "tilewright-file"]
    )
