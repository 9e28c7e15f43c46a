"""What the vectors of RISC-V V share: groups of registers, and how their intrinsics are named.

Spellings: RISC-V Vector C Intrinsic Specification 1.0. An intrinsic's name ends in the element type
and in LMUL, how many registers a vector takes or what part of one; its last argument is ``vl``, the
lanes on which it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

#: The registers that vectors take, widest first; the last is the half of one.
LMUL = (4, 2, 1, 0.5)
_KINDS = {"s": ("i", "int"), "u": ("u", "uint"), "f": ("f", "float"), "b": ("bf", "bfloat")}
#: Elements that conversions make of others.
_OTHERS = ("s8", "u8", "s16", "u16", "s32", "u32", "f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Group:
    """``lanes`` elements of type ``element`` in registers of ``vlen`` bits.

    ``element`` is a letter and a size: ``s32``, ``u16``, ``f64``, ``bf16``.
    """

    element: str
    lanes: int
    vlen: int

    @property
    def size(self) -> int:
        """The bits of an element."""
        return int(self.element.lstrip("subf"))

    @property
    def bits(self) -> int:
        """The bits of the group."""
        return self.lanes * self.size

    @property
    def registers(self) -> int:
        """How many registers it takes; one if it is a part of one."""
        return max(1, self.bits // self.vlen)

    @property
    def lmul(self) -> str:
        """LMUL as the names have it."""
        whole = self.bits >= self.vlen
        return f"m{self.bits // self.vlen}" if whole else f"mf{self.vlen // self.bits}"

    @property
    def name(self) -> str:
        """What intrinsics call it: ``f32m4``."""
        return f"{_KINDS[self.element[0]][0]}{self.size}{self.lmul}"

    @property
    def ctype(self) -> str:
        """Its type in C."""
        return f"v{_KINDS[self.element[0]][1]}{self.size}{self.lmul}_t"

    def of(self, element: str) -> Group:
        """As many lanes of another type."""
        return Group(element, self.lanes, self.vlen)

    def spell(self, spelling: str) -> str:
        """``spelling`` filled in: ``@`` begins an intrinsic's name, ``$n`` is all lanes.

        ``$t`` is this type, ``$i`` and ``$u`` the integers of its size, ``$s8``, ``$u16``, ... as
        many lanes of those, ``$b`` the type of masks, called after a register's bits for a lane.
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
        """The spellings of a table, filled in."""
        return {name: self.spell(spelling) for name, spelling in spellings.items()}


def cpu(vlen: int) -> str:
    """Qemu's processor: lanes of which an operation says nothing are overwritten."""
    return f"rv64,v=true,vlen={vlen},rvv_ta_all_1s=true,rvv_ma_all_1s=true"
