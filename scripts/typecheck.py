"""Run ``mypy --strict`` over tilewright, whose folders and packages have different names.

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


def main() -> int:
    """The exit status of mypy; arguments are passed on to it."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {name.replace(".", "/"): path for name, path in packages["package-dir"].items()}
    link(folders)
    command = [sys.executable, "-m", "mypy", "-p", "tilewright", *sys.argv[1:]]
    environment = {**os.environ, "MYPYPATH": str(TREE)}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    print(own_paths(result.stdout, folders), end="")
    return result.returncode


def link(folders: dict[str, str]) -> None:
    """Link every file of ``folders`` (package path -> folder) into the tree, from scratch."""
    shutil.rmtree(TREE, ignore_errors=True)
    for package, folder in folders.items():
        (TREE / package).mkdir(parents=True, exist_ok=True)
        for file in (ROOT / folder).glob("*.py*"):
            (TREE / package / file.name).symlink_to(file)
    (TREE / "tilewright" / "py.typed").touch()


def own_paths(text: str, folders: dict[str, str]) -> str:
    """``text`` with the tree's paths turned into the files' own."""
    tree = re.escape(str(TREE.relative_to(ROOT)))
    for package, folder in sorted(folders.items(), key=lambda item: -len(item[0])):
        text = re.sub(rf"^{tree}/{package}/(?=[^/]+:)", f"{folder}/", text, flags=re.MULTILINE)
    return text


if __name__ == "__main__":
    sys.exit(main())
