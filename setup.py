"""What pyproject.toml cannot say: the packages, found, and README with links that hold on PyPI."""

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = CONFIGURATION["project"]
FOLDERS = CONFIGURATION["tool"]["setuptools"]["package-dir"]
#: A link, or with "!" before it a picture, of which the place may be a path in the repository.
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^]]*)\]\((?!https?:|#)(?P<path>[^)\s]+)\)")


def packages() -> list[str]:
    """Every folder with an ``__init__.py`` below those that pyproject.toml maps."""
    return sorted(
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{inner}" for inner in find_packages(str(ROOT / folder))))
    )


def long_description() -> str:
    """README, whose links lead to the files of this version's tag."""
    repository, tag = PROJECT["urls"]["Repository"], f"v{PROJECT['version']}"
    raw = repository.replace("github.com", "raw.githubusercontent.com")

    def absolute(match: re.Match[str]) -> str:
        base = f"{raw}/{tag}" if match["picture"] else f"{repository}/blob/{tag}"
        return f"{match['picture']}[{match['text']}]({base}/{match['path']})"

    return LINK.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


setup(
    packages=packages(),
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
