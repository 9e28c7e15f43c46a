"""What pyproject.toml cannot say: the packages, found, and README with links that hold on PyPI."""

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = CONFIGURATION["project"]
#: Where the repository is published, "" if nowhere.
REPOSITORY = CONFIGURATION["tool"]["tilewright"]["repository"]
FOLDERS = CONFIGURATION["tool"]["setuptools"]["package-dir"]
#: A link, or with "!" before it a picture, of which the place may be a path in the repository.
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^]]*)\]\((?!https?:|#)(?P<path>[^)\s]+)\)")
#: A picture in HTML, and the addresses in it.
PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)
ADDRESS = re.compile(r"(?P<name>srcset|src)=\"(?!https?:)(?P<path>[^\"]+)\"")


def packages() -> list[str]:
    """Every folder with an ``__init__.py`` below those that pyproject.toml maps."""
    return sorted(
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{inner}" for inner in find_packages(str(ROOT / folder))))
    )


def long_description() -> str:
    """Return README; its links lead to the files of this version's tag, or become plain words."""
    tag = f"v{PROJECT['version']}"
    raw = REPOSITORY.replace("github.com", "raw.githubusercontent.com")

    def absolute(match: re.Match[str]) -> str:
        if not REPOSITORY:
            return "" if match["picture"] else match["text"]
        base = f"{raw}/{tag}" if match["picture"] else f"{REPOSITORY}/blob/{tag}"
        return f"{match['picture']}[{match['text']}]({base}/{match['path']})"

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = (
        ADDRESS.sub(rf'\g<name>="{raw}/{tag}/\g<path>"', text)
        if REPOSITORY
        else PICTURE.sub("", text)
    )
    return LINK.sub(absolute, shown)


def addresses() -> dict[str, str]:
    """Return the addresses that a package index shows; none without a published repository."""
    if not REPOSITORY:
        return {}
    pages = f"{REPOSITORY}/blob/main"
    return {
        "Repository": REPOSITORY,
        "Documentation": f"{pages}/docs/README.md",
        "Changelog": f"{pages}/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }


setup(
    packages=packages(),
    project_urls=addresses(),
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
