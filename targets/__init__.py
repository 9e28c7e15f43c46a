"""One file per instruction set; ``load`` finds them by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from tilewright.errors import TargetError

if TYPE_CHECKING:
    from tilewright.isa.target import Target

#: Names of all targets, best first. The target "host" is the first of these that the CPU supports.
#: "sve128" comes after "neon" because it is no faster.
NAMES = (
    *("amx", "avx10.2", "avx512", "avx2"),
    *("sve2048", "sve1024", "sve512", "sve256", "neon", "sve128"),
    "sme",
    "power10",
    *("rvv1024", "rvv512", "rvv256", "rvv128"),
    "scalar",
)
#: Module of each target whose module makes several targets. For example, "sve" makes "sve256".
_FAMILIES = {name: name.rstrip("0123456789") for name in NAMES if name[:3] in ("sve", "rvv")}


@cache
def load(name: str) -> Target:
    """Return the target called ``name``; TargetError if there is none."""
    if name not in NAMES:
        raise TargetError(
            "unknown target",
            got=name,
            expected=f"one of {', '.join(NAMES)}, or host",
            hint=_meant(name),
        )
    module = import_module(f"{__name__}.{_FAMILIES.get(name, name.replace('.', '_'))}")
    target: Target = module.target(name) if name in _FAMILIES else module.TARGET
    return target


#: Names that other tools use for targets, in lower case without punctuation, and our names.
_OTHERS = {
    **dict.fromkeys(("native", "auto", "cpu", "local", "best"), "host"),
    **dict.fromkeys(("aarch64", "arm64", "armv8", "asimd"), "neon"),
    **dict.fromkeys(("generic", "c", "none"), "scalar"),
    "x8664v3": "avx2",
    "x8664v4": "avx512",
}


def _meant(name: str) -> str | None:
    """Return a hint for an unknown ``name``: the target that is probably meant; None if unclear."""
    plain = "".join(filter(str.isalnum, name.lower()))
    of_family = [each for each, family in _FAMILIES.items() if family == plain]
    lengths = sorted(of_family, key=lambda each: int(each.removeprefix(plain)))
    if lengths:
        return f"{', '.join(lengths)}: the name says how many bits a vector has"
    alike = {"".join(filter(str.isalnum, each)): each for each in (*NAMES, "host")}
    if (found := alike.get(plain, _OTHERS.get(plain))) is not None:
        return f"target={found!r}"
    longest = max((each for each in NAMES if plain.startswith(each)), key=len, default=None)
    feature = plain.removeprefix(longest or "")
    if longest is not None and feature in load(longest).features:
        return f"target='{longest}+{feature}'"
    return None


class Targets(ModuleType):
    """The package ``tilewright.targets`` as a module that can be called: ``tw.targets()``."""

    NAMES: tuple[str, ...]
    load: Callable[[str], Target]

    def __call__(self) -> dict[str, str]:
        """Return how the kernels of each target run on this machine.

        Returns
        -------
        dict of str to str
            The key is the target's name. The value is "native", an emulator such as
            "qemu-aarch64", "header" (plain C implements the target's intrinsics), or
            "interpreter" (kernels compile, but cannot run).

        Examples
        --------
        >>> tw.targets()
        {'amx': ..., 'avx10.2': ..., 'avx512': ..., 'avx2': ..., 'neon': ..., 'scalar': 'native'}

        """
        found: dict[str, str] = import_module("tilewright.runtime.machine.means").survey()
        return found


sys.modules[__name__].__class__ = Targets
