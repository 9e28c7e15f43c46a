"""Run ``mypy --strict`` over tilewright, and a laxer mypy over the programs around it.

mypy reads no package-dir mapping, so it is shown a tree of links in ``build/types`` that has
the packages' names; the paths it prints are turned back into the files' own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "types"
AROUND = ("scripts", "tests", "benchmarks", "examples")
LAX = (
    "--explicit-package-bases",
    "--allow-untyped-defs",
    "--allow-incomplete-defs",
    "--allow-untyped-calls",
    "--allow-untyped-decorators",
    "--allow-any-generics",
)


def main() -> int:
    """The status of the first run of mypy that is not content, else 0."""
    folders = packages()
    link(folders, TREE)
    around = [name for name in AROUND if any((ROOT / name).rglob("*.py"))]
    status = mypy("-p", "tilewright", folders=folders)
    return status or mypy(*LAX, *around, folders=folders)


def packages() -> dict[str, str]:
    """Package path to folder, as pyproject.toml maps them."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return {name.replace(".", "/"): path for name, path in told["package-dir"].items()}


def mypy(*arguments: str, folders: dict[str, str]) -> int:
    """Run mypy with ``arguments``, print what it says, and return its status."""
    path = os.pathsep.join(map(str, (TREE, ROOT / "tests", ROOT)))
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(own_paths(result.stdout, folders), end="")
    return result.returncode


def link(folders: dict[str, str], tree: Path) -> None:
    """Link every file of ``folders`` (package path -> folder) into ``tree``, from scratch."""
    shutil.rmtree(tree, ignore_errors=True)
    for package, folder in folders.items():
        (tree / package).mkdir(parents=True, exist_ok=True)
        for file in (ROOT / folder).rglob("*.*"):
            if file.suffix == ".py" or file.name == "py.typed":
                shown = tree / package / file.relative_to(ROOT / folder)
                shown.parent.mkdir(parents=True, exist_ok=True)
                shown.symlink_to(file)
    # Without these the parent of tests/cli/test_x.py would be cli/__init__.py.
    for folder in set(folders.values()) - set(AROUND):
        (tree / folder).mkdir(parents=True)
        (tree / folder / "__init__.pyi").touch()


def own_paths(text: str, folders: dict[str, str]) -> str:
    """``text`` with the tree's paths turned into the files' own."""
    tree = re.escape(str(TREE.relative_to(ROOT)))
    for package, folder in sorted(folders.items(), key=lambda item: -len(item[0])):
        text = re.sub(rf"^{tree}/{package}/(?=[^:]+:)", f"{folder}/", text, flags=re.MULTILINE)
    return text


if __name__ == "__main__":
    sys.exit(main())
