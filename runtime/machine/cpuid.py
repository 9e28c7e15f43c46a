"""Find the features of an x86 CPU that CPUID reports and Linux does not list."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from .remembered import remembered

#: Function that takes a leaf and a subleaf of CPUID, and returns registers EAX, EBX, ECX and EDX.
Ask = Callable[[int, int], tuple[int, int, int, int]]
#: Mask of AVX10's version in register EBX of CPUID's leaf 0x24.
_AVX10_VERSION = 0xFF


def unlisted(processor: str) -> frozenset[str]:
    """Return the features of this CPU that Linux may leave out of ``/proc/cpuinfo``.

    The operating system's support is not checked here: Linux lists the base features that these
    extend. CPUID is read once, and the answer is kept in the cache directory for this
    ``processor``.
    """
    here = " ".join([*os.uname(), processor])
    return remembered(
        "cpuid.json",
        here,
        lambda: {"features": sorted(_asked())},
        lambda known: frozenset(map(str, known["features"])),
    )


def _asked() -> Iterator[str]:
    """Yield the features of ``X86.unlisted`` that the CPU has; none if no code can be run to read
    CPUID.
    """
    from tilewright.targets.detection import X86

    try:
        from archspec.vendor.cpuid.cpuid import CPUID

        said = words(CPUID())
    except (ImportError, OSError, SystemError):
        return
    for name in X86.unlisted:
        if said[X86.bits[name].word] >> X86.bits[name].bit & 1:
            yield name


def words(ask: Ask) -> Mapping[str, int]:
    """Return the words that hold the unlisted features, as ``cpu_read`` in generated C does.

    In the word for AVX10, bit v is set if the CPU has version v.
    """
    most = ask(0, 0)[0]
    further = ask(7, 0)[0] if most >= 7 else 0
    eax, edx = (ask(7, 1)[i] if further >= 1 else 0 for i in (0, 3))
    version = ask(0x24, 0)[1] & _AVX10_VERSION if most >= 0x24 and edx >> 19 & 1 else 0
    return {
        "LEAF_7_1_EAX": eax,
        "LEAF_7_1_EDX": edx,
        "LEAF_1E_1_EAX": ask(0x1E, 1)[0] if most >= 0x1E else 0,
        "AVX10": (2 << version) - 2,
    }
