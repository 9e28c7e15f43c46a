"""Provoking for real what root does not notice: modes, other users, full and noexec disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def folder_of_nobody() -> Iterator[Path]:
    """A new directory that ``as_nobody`` owns and can reach; gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="tilewright-nobody-", dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    try:
        yield path
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(path)], check=False)
        shutil.rmtree(path, ignore_errors=True)


def as_nobody(action: Callable[[], object]) -> list[str]:
    """Run ``action`` in a forked child without privileges; the warnings it gave.

    What it raises comes back as an AssertionError with the child's traceback. It should import
    nothing: the interpreter may lie where only root can read.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        text = _outcome(action)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        outcome = pipe.read()
    os.waitpid(child, 0)
    assert outcome.startswith("ok"), outcome
    return outcome.splitlines()[1:]


def _outcome(action: Callable[[], object]) -> str:
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            action()
        return "\n".join(["ok", *(str(warning.message) for warning in caught)])
    except BaseException:  # noqa: BLE001, a child must report whatever it was
        return traceback.format_exc()


def on_tmpfs(options: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str] | str:
    """Run a Python script whose first argument is a tmpfs of its own; or why that cannot be."""
    mount = (
        'mount -t tmpfs -o "$1" tilewright "$2" || exit 77; '
        'python=$3 where=$2 script=$4; shift 4; exec "$python" -c "$script" "$where" "$@"'
    )
    with tempfile.TemporaryDirectory() as where:
        inside = ["sh", "-c", mount, "sh", options, where, sys.executable, script, *arguments]
        for unshare in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
            try:
                done = subprocess.run(
                    [*unshare, *inside], capture_output=True, text=True, check=False
                )
            except OSError as error:
                return f"unshare: {error.strerror}"
            if done.returncode != 77 and not done.stderr.startswith("unshare:"):
                return done
    return f"no tmpfs can be mounted here: {done.stderr.strip()}"
