"""Docstrings of public names follow the numpydoc convention: its own validation says so."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from operator import attrgetter

import pytest

import tilewright as tw
from tilewright import nn

validate = pytest.importorskip("numpydoc.validate").validate

#: Codes of numpydoc's validation that must not occur: summary, parameters, results, their form.
WRONG = {
    "GL01", "GL02", "GL05", "GL06", "GL07", "GL08", "GL10", "SS01", "SS02", "SS03", "SS04", "SS05",
    "PR01", "PR02", "PR03", "PR04", "PR10", "RT01", "RT02", "EX01",
}  # fmt: skip
#: Values that calls return, and errors: users do not construct them, so they list attributes.
MADE_BY_CALLS = {
    "Calibrated", "Expression", "Kernel", "Library", "Network", "NetworkFunction", "PackedB",
    "Profile", "StageTime", "Timing", "Verification",
}  # fmt: skip
FORM = {"PR01", "PR02", "EX01"}


def public() -> Iterator[tuple[str, object]]:
    """Functions and classes of the package, by name."""
    for name in sorted(tw.__all__):
        found = attrgetter(name)(tw)
        if inspect.isfunction(found) or inspect.isclass(found):
            yield name, found
    yield from ((f"nn.{name}", getattr(nn, name)) for name in nn.__all__)


def is_error(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, Exception)


@pytest.mark.parametrize("name", [name for name, _ in public()])
def test_a_public_docstring_is_numpydoc(name: str) -> None:
    found = attrgetter(name)(tw)
    path = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', name)}"
    errors = {code: said for code, said in validate(path)["errors"] if code in WRONG}
    if name in MADE_BY_CALLS or is_error(found):
        assert inspect.getdoc(found)
        errors = {code: said for code, said in errors.items() if code not in FORM}
    assert not errors, f"{name}: {errors}"


def test_enough_names_are_validated() -> None:
    names = [name for name, _ in public()]
    assert len(names) > 80 and "matmul" in names and "Gemm" in names
