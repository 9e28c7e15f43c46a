"""What is installed: every module, template and core, editable or from a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.source_tree import ROOT, rooms


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
    project = ROOT / "examples" / "cmake_project"  # in C
    expected |= {f"tilewright/examples/{project.name}/{file.name}" for file in project.iterdir()}
    assert held == expected


IMPORT_ALL = """
import pathlib, sys, importlib, importlib.util, pkgutil
import tilewright, tilewright.templates
from tilewright.emit.render import _environment
assert pathlib.Path(tilewright.__file__).is_relative_to(sys.argv[1]), tilewright.__file__
without = set() if importlib.util.find_spec("torch") else {"tilewright.torch"}
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
