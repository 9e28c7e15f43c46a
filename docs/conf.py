"""How Sphinx builds the site of these pages: ``make docs``.

The pages are Markdown that people also read in the repository. The site differs in two ways. Links
that leave ``docs/`` lead to the repository, or become plain words if no repository is named in
``pyproject.toml``. And the reference is extracted from docstrings.
"""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
_CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_PROJECT = _CONFIGURATION["project"]
_REPOSITORY = _CONFIGURATION["tool"]["tilewright"]["repository"]

project = _PROJECT["name"]
author = _PROJECT["authors"][0]["name"]
project_copyright = author
version = release = _PROJECT["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["attrs_inline", "colon_fence"]
# Docstrings follow the numpydoc convention; the fields of a class become one list.
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
# README.md is for readers in the repository; index.md is the front page of the site.
exclude_patterns = ["README.md"]
html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_theme_options = (
    {
        "source_repository": _REPOSITORY,
        "source_branch": "main",
        "source_directory": "docs/",
    }
    if _REPOSITORY
    else {}
)
html_copy_source = False
myst_heading_anchors = 4
# Public members come first, in the order of the source.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Libraries that may be missing: docstrings of the modules that import them are read all the same.
autodoc_mock_imports = [name for name in ("torch", "jax", "jaxlib") if find_spec(name) is None]
# Names without their module, as users write them after "tw.".
add_module_names = False
python_use_unqualified_type_names = True

#: A link to a file outside of this folder, with its text.
_LEAVING = re.compile(r"\[(?P<text>[^]]*)\]\((?P<path>(?:\.\./)+[^)#\s]*)(?P<anchor>#[^)]*)?\)")


def _lead_to_the_repository(app: Sphinx, page: str, text: list[str]) -> None:
    """Change links to files outside of ``docs/``: they lead to the repository, or become words."""
    folder = (ROOT / "docs" / page).parent

    def replaced(match: re.Match[str]) -> str:
        target = (folder / match["path"]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        if not _REPOSITORY:
            return match["text"]
        path = target.relative_to(ROOT).as_posix()
        return f"[{match['text']}]({_REPOSITORY}/blob/main/{path}{match['anchor'] or ''})"

    text[0] = _LEAVING.sub(replaced, text[0])


def _of_an_included_page(app: Sphinx, path: Path, page: str, text: list[str]) -> None:
    _lead_to_the_repository(app, page, text)


def setup(app: Sphinx) -> None:
    """Connect the changes to Sphinx's events."""
    app.connect("source-read", _lead_to_the_repository)
    app.connect("include-read", _of_an_included_page)
