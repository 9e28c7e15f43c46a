"""Shared parts of RISC-V V's vectors: groups of registers, and the names of their intrinsics.

Spellings: RISC-V Vector C Intrinsic Specification 1.0. An intrinsic's name ends in the element type
and LMUL, which is the number of registers of a vector, or a fraction if a vector takes only part of
one. The last argument of an intrinsic is ``vl``, the number of lanes on which it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

#: Numbers of registers that a vector may take, widest first. The last is half a register.
LMUL = (4, 2, 1, 0.5)
_KINDS = {"s": ("i", "int"), "u": ("u", "uint"), "f": ("f", "float"), "b": ("bf", "bfloat")}
#: Element types that spellings of conversions may name.
_OTHERS = ("s8", "u8", "s16", "u16", "s32", "u32", "f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Group:
    """``lanes`` elements of type ``element`` in registers of ``vlen`` bits.

    ``element`` is a letter and a size, for example ``s32``, ``u16``, ``f64`` or ``bf16``.
    """

    element: str
    lanes: int
    vlen: int

    @property
    def size(self) -> int:
        """Bits of an element."""
        return int(self.element.lstrip("subf"))

    @property
    def bits(self) -> int:
        """Bits of the group."""
        return self.lanes * self.size

    @property
    def registers(self) -> int:
        """Number of registers of the group, 1 for a part of one."""
        return max(1, self.bits // self.vlen)

    @property
    def lmul(self) -> str:
        """LMUL as in the names of intrinsics."""
        whole = self.bits >= self.vlen
        return f"m{self.bits // self.vlen}" if whole else f"mf{self.vlen // self.bits}"

    @property
    def name(self) -> str:
        """The name in intrinsics, for example ``f32m4``."""
        return f"{_KINDS[self.element[0]][0]}{self.size}{self.lmul}"

    @property
    def ctype(self) -> str:
        """The type in C."""
        return f"v{_KINDS[self.element[0]][1]}{self.size}{self.lmul}_t"

    def of(self, element: str) -> Group:
        """Return a group of as many lanes of another type."""
        return Group(element, self.lanes, self.vlen)

    def spell(self, spelling: str) -> str:
        """Return ``spelling`` with names filled in.

        ``@`` begins an intrinsic's name, ``$n`` is the number of lanes, ``$t`` this type. ``$i``
        and ``$u`` are the integers of its size. ``$s8``, ``$u16`` and so on are as many lanes of
        those types. ``$b`` is the type of masks, named after a register's bits per lane.
        """
        words = {
            "t": self.name,
            "i": self.of(f"s{self.size}").name,
            "u": self.of(f"u{self.size}").name,
            "b": f"b{self.vlen // self.lanes}",
            "n": str(self.lanes),
            **{name: self.of(name).name for name in _OTHERS},
        }
        return Template(spelling).substitute(words).replace("@", "__riscv_")

    def table(self, spellings: Mapping[str, str]) -> dict[str, str]:
        """Return the spellings of a table, filled in."""
        return {name: self.spell(spelling) for name, spelling in spellings.items()}


def cpu(vlen: int) -> str:
    """Return qemu's ``-cpu`` option; the CPU overwrites lanes that operations leave undefined."""
    return f"rv64,v=true,vlen={vlen},rvv_ta_all_1s=true,rvv_ma_all_1s=true"
