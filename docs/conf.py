"""How Sphinx builds the site of these pages: ``make docs``.

The pages are Markdown that is read on the forge as well. What differs is decided here: links that
leave ``docs/`` lead to the repository, and the reference is extracted from docstrings.
"""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_REPOSITORY = _PROJECT["urls"]["Repository"]

project = _PROJECT["name"]
author = _PROJECT["authors"][0]["name"]
project_copyright = author
version = release = _PROJECT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
# The page that the forge shows for the folder stands in index.md.
exclude_patterns = ["README.md"]
html_theme = "furo"
html_title = f"{project} {version}"
html_theme_options = {
    "source_repository": _REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
html_copy_source = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# What the site is built without: docstrings of what needs it are read all the same.
autodoc_mock_imports = [name for name in ("torch", "jax", "jaxlib") if find_spec(name) is None]
# Names stand as the reader writes them: tw.Gemm is found by its last part.
add_module_names = False
python_use_unqualified_type_names = True

_LEAVING = re.compile(r"\]\((\.\./[^)#\s]*)")


def _lead_to_the_repository(app: Sphinx, page: str, text: list[str]) -> None:
    """Links to files outside ``docs/`` become links to the repository."""
    folder = (ROOT / "docs" / page).parent

    def replaced(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        return f"]({_REPOSITORY}/blob/main/{target.relative_to(ROOT).as_posix()}"

    text[0] = _LEAVING.sub(replaced, text[0])


def _of_an_included_page(app: Sphinx, path: Path, page: str, text: list[str]) -> None:
    _lead_to_the_repository(app, page, text)


def setup(app: Sphinx) -> None:
    """What Sphinx calls first."""
    app.connect("source-read", _lead_to_the_repository)
    app.connect("include-read", _of_an_included_page)
