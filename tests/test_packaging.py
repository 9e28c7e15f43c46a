"""What is installed: every module, template and core, editable or from a wheel."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from support.source_tree import ROOT, rooms

import tilewright as tw

#: What is built, or belongs to one checkout, and is in no sdist.
BUILT = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "*.so", "*.o",
         ".hypothesis", "tilewright-demo", "filter-responses.png")  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in rooms().values():
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(out), str(copy)]
    subprocess.run(command, check=True)
    (built,) = out.glob("*.whl")
    return built


def test_a_wheel_holds_every_module_template_and_core(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {"tilewright/py.typed"}
    for package, folder in rooms().items():
        files = [f for kind in ("py", "j2", "json") for f in (ROOT / folder).rglob(f"*.{kind}")]
        inner = [file.relative_to(ROOT / folder).as_posix() for file in files]
        expected |= {f"{package.replace('.', '/')}/{name}" for name in inner}
    for part in ("cmake_project", "cython_loop", "digits_server"):  # in C, and in Cython
        files = [f for f in (ROOT / "examples" / part).iterdir() if f.is_file()]
        expected |= {f"tilewright/examples/{part}/{file.name}" for file in files}
    assert held == expected


IMPORT_ALL = """
import pathlib, sys, importlib, importlib.util, pkgutil
import tilewright, tilewright.templates
from tilewright.emit.render import _environment
assert pathlib.Path(tilewright.__file__).is_relative_to(sys.argv[1]), tilewright.__file__
extras = ("torch", "jax", "onnx")
without = {f"tilewright.{name}" for name in extras if not importlib.util.find_spec(name)}
for module in pkgutil.walk_packages(tilewright.__path__, "tilewright.", lambda name: None):
    if module.name not in without:
        importlib.import_module(module.name)
for name in _environment().list_templates(extensions=["j2"]):
    _environment().get_template(name)
    print(name)
"""


def test_an_installed_wheel_imports_and_finds_its_templates(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    folder = ROOT / "templates"
    templates = {path.relative_to(folder).as_posix() for path in folder.rglob("*.j2")}
    assert set(result.stdout.split()) == templates


def test_the_command_is_installed() -> None:
    result = subprocess.run(
        [Path(sys.executable).parent / "tilewright", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("tilewright, version ")


@pytest.fixture(scope="module")
def about(wheel: Path) -> Message:
    """What PyPI is told: the wheel's metadata."""
    with zipfile.ZipFile(wheel) as held:
        (name,) = (name for name in held.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(held.read(name))


def test_what_pypi_is_told(about: Message) -> None:
    assert about["Version"] == tw.__version__
    assert about["License-Expression"] == "MIT"
    assert about["License-File"] == "LICENSE"
    assert about["Author"] == "The tilewright developers"
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_all("Project-URL", []) == [], "no repository is named in pyproject.toml"


def test_the_page_has_no_links_without_a_repository(about: Message) -> None:
    page = about.get_payload()
    assert isinstance(page, str) and "tw.matmul" in page
    assert not re.findall(r"\]\((?!https?:|#)", page) and "<picture>" not in page


def test_links_and_pictures_of_the_page_lead_to_the_repository_that_is_named() -> None:
    command = "import setup; print(setup.long_description()); print(sorted(setup.addresses()))"
    page = _told(command, "https://github.com/somebody/tilewright")
    assert page.endswith("['Changelog', 'Documentation', 'Issues', 'Repository']\n")
    tag = f"v{tw.__version__}"
    links = re.findall(r"(!?)\[[^]]*\]\(([^)#]+)", page)
    links += [("!", link) for link in re.findall(r"(?:srcset|src)=\"([^\"]+)", page)]
    paths = set()
    for picture, link in links:
        base = "raw.githubusercontent.com" if picture else "github.com"
        assert link.startswith(f"https://{base}/somebody/tilewright/"), link
        paths.add(re.split(rf"/(?:blob/)?{re.escape(tag)}/", link)[-1])
    assert len(paths) > 8 and all((ROOT / path).exists() for path in paths), paths


def _told(command: str, repository: str) -> str:
    """What setup.py says where pyproject.toml names a repository."""
    script = f"""
import setuptools, tomllib
setuptools.setup = lambda **_: None
read = tomllib.loads
def named(text):
    found = read(text)
    found["tool"]["tilewright"]["repository"] = {repository!r}
    return found
tomllib.loads = named
{command}
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_an_sdist_holds_the_repository(tmp_path: Path) -> None:
    copy = tmp_path / "sources"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*BUILT, "shared"))
    build = "import setuptools.build_meta as b, sys; print(b.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(tmp_path)]
    subprocess.run(command, cwd=copy, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as held:
        names = {name.partition("/")[2] for name in held.getnames()}
    for path in copy.rglob("*"):
        name = path.relative_to(copy).as_posix()
        if path.is_file() and ".egg-info/" not in name:
            assert name in names, f"MANIFEST.in leaves out {name}"


def test_what_the_tutorial_imports_is_installed_with_tilewright() -> None:
    """One install, without extras, is enough for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"\W", line)[0] for line in project["dependencies"]}
    text = "".join(page.read_text() for page in (ROOT / "docs" / "tutorial").glob("*.md"))
    imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    assert imported - set(sys.stdlib_module_names) - {"tilewright"} <= needed
