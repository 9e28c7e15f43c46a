"""What all tests share: an own cache, golden files, and the count of cases per target.

A run has its own cache directory, a fresh one unless ``--cache-dir`` names it. Tests marked
``twice`` are run by ``make test`` once with that cache cold and once (``--warm``) with it warm;
the second time no compiler may start.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from support.cases import Cases
from support.golden import check_golden
from support.processes import CompilerWatch

GENERATED = Path(__file__).parent.parent / "generated"

hypothesis.settings.register_profile("default", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("default")

CASES = pytest.StashKey[Cases]()
WATCH = pytest.StashKey[CompilerWatch]()
OWN_CACHE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tilewright")
    group.addoption("--update-golden", action="store_true", help="write generated/ anew")
    group.addoption("--cache-dir", type=Path, help="the kernel cache; default: a fresh one")
    group.addoption("--warm", action="store_true", help="tests marked `twice` find the cache warm")
    group.addoption(
        "--require-cases",
        type=int,
        default=0,
        metavar="N",
        help="fail if one of REQUIRED in support/cases.py ran fewer than N cases",
    )
    group.addoption("--seed", type=int, default=0, help="what random kernels are drawn with")
    group.addoption(
        "--families", type=int, default=1, help="how many kinds of products each target plans"
    )
    group.addoption("--case", help="run this random kernel alone: avx2_017")


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CASES] = Cases()
    config.stash[WATCH] = CompilerWatch()
    sys.addaudithook(config.stash[WATCH].audit)
    if _is_worker(config):  # the environment is the controller's
        return
    chosen = config.option.cache_dir
    if chosen is None:
        chosen = config.stash[OWN_CACHE] = tempfile.mkdtemp(prefix="tilewright-test-")
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(Path(chosen).resolve())
    # What was measured or tuned on this machine must not decide what is tested.
    os.environ["TILEWRIGHT_DATA_DIR"] = str(Path(chosen).resolve() / "data")


def pytest_unconfigure(config: pytest.Config) -> None:
    own = config.stash.get(OWN_CACHE, None)
    if own is not None:
        shutil.rmtree(own, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker("golden")


# -- a warm cache starts no compiler ------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    yield from _watched(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield from _watched(item)


def _watched(item: pytest.Item) -> Generator[None]:
    watch = item.config.stash[WATCH]
    watch.started.clear()
    yield
    if watch.started and item.config.option.warm and item.get_closest_marker("twice"):
        pytest.fail(f"the cache was warm, yet a compiler was started: {watch.started[0]}")


# -- how many cases ran, per target and means ---------------------------------------------------


@pytest.fixture(scope="session")
def cases(pytestconfig: pytest.Config) -> Cases:
    """The count of cases: ``cases.count("neon", "qemu", 12)``."""
    return pytestconfig.stash[CASES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    config = node.config  # type: ignore[attr-defined]
    config.stash[CASES].add(getattr(node, "workeroutput", {}).get("cases", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if _is_worker(config):
        config.workeroutput["cases"] = config.stash[CASES].as_dict()  # type: ignore[attr-defined]
    elif config.stash[CASES].lacking(config.option.require_cases):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    counted = config.stash[CASES]
    lacking = counted.lacking(config.option.require_cases)
    if not counted.as_dict() and not lacking:
        return
    terminalreporter.section("cases per target")
    for line in counted.lines():
        terminalreporter.write_line(line)
    for line in lacking:
        terminalreporter.write_line(line, red=True)


# -- golden files and caches --------------------------------------------------------------------


@pytest.fixture
def golden(pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """``golden("avx2/name.c", text)``: the text is the committed one, or becomes it."""

    def check(name: str, text: str) -> None:
        check_golden(GENERATED / name, text, update=pytestconfig.option.update_golden)

    return check


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, in force for one test."""
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(directory))
    return directory


@pytest.fixture
def fresh(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, in a process that has said nothing and has no private directory."""
    from tilewright.runtime.store import folders

    monkeypatch.setattr(folders, "_said", set())
    monkeypatch.setattr(folders, "_own", [])
    yield empty_cache
    for _, path in folders._own:
        shutil.rmtree(path)
