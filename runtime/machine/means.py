"""``tw.targets()``: how each target runs on this machine."""

from __future__ import annotations

from tilewright.errors import TargetError
from tilewright.targets import NAMES, load

from . import host


def survey() -> dict[str, str]:
    """Return "native", the emulator such as "qemu-aarch64", "header" or "interpreter" for each
    target.

    With "interpreter", kernels compile if there is a compiler, but this machine cannot run them.
    """
    return {name: _means(name) for name in NAMES}


def _means(name: str) -> str:
    target = load(name)
    try:
        means = host.means(target)
    except TargetError:
        return "interpreter"
    return target.emulation.qemu or means if means == "qemu" else means
