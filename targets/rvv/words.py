"""Shared parts of RISC-V V's vectors: groups of registers, and the names of their intrinsics.

Spellings: RISC-V Vector C Intrinsic Specification 1.0. An intrinsic's name ends in the element type
and LMUL, which is the number of registers of a vector, or a fraction if a vector takes only part of
one. The last argument of an intrinsic is ``vl``, the number of lanes on which it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

#: Numbers of registers that a vector may take, largest first. 0.5 is half a register.
LMUL = (4, 2, 1, 0.5)
_KINDS = {"s": ("i", "int"), "u": ("u", "uint"), "f": ("f", "float"), "b": ("bf", "bfloat")}
#: Element types that the C text of an instruction may name. For example, ``$s8`` stands for the
#: vector type of as many s8.
_OTHERS = ("s8", "u8", "s16", "u16", "s32", "u32", "f32", "f16", "bf16", "s64", "f64")


@dataclass(frozen=True, slots=True)
class Group:
    """A vector of ``lanes`` elements in one or several registers of ``vlen`` bits each.

    ``element`` is the element type, for example ``s32``, ``u16``, ``f64`` or ``bf16``.
    """

    element: str
    lanes: int
    vlen: int

    @property
    def size(self) -> int:
        """Number of bits of an element."""
        return int(self.element.lstrip("subf"))

    @property
    def bits(self) -> int:
        """Number of bits of all lanes."""
        return self.lanes * self.size

    @property
    def registers(self) -> int:
        """Number of registers that the vector takes; 1 if it takes only part of a register."""
        return max(1, self.bits // self.vlen)

    @property
    def lmul(self) -> str:
        """LMUL in the spelling of intrinsics: ``m4`` is 4 registers, ``mf2`` is half of one."""
        whole = self.bits >= self.vlen
        return f"m{self.bits // self.vlen}" if whole else f"mf{self.vlen // self.bits}"

    @property
    def name(self) -> str:
        """The name of the vector's type in intrinsics, for example ``f32m4``."""
        return f"{_KINDS[self.element[0]][0]}{self.size}{self.lmul}"

    @property
    def ctype(self) -> str:
        """The vector's C type, for example ``vfloat32m4_t``."""
        return f"v{_KINDS[self.element[0]][1]}{self.size}{self.lmul}_t"

    def of(self, element: str) -> Group:
        """Return a vector with as many lanes, whose elements have the type ``element``."""
        return Group(element, self.lanes, self.vlen)

    def spell(self, spelling: str) -> str:
        """Return ``spelling`` with the names of intrinsics and types filled in.

        ``@`` begins the name of an intrinsic. ``$n`` is the number of lanes. ``$t`` is the name of
        this vector type, for example ``f32m4``. ``$i`` and ``$u`` are the signed and the unsigned
        integer types with as many lanes of the same size. ``$s8``, ``$u16`` and so on are types
        with as many lanes of another size. ``$b`` is the type of masks, for example ``b8``: its
        number is the quotient of ``vlen`` and the number of lanes.
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
        """Return ``spellings`` with ``spell`` applied to each value."""
        return {name: self.spell(spelling) for name, spelling in spellings.items()}


def cpu(vlen: int) -> str:
    """Return qemu's ``-cpu`` option for registers of, for example, 256 bits.

    The emulated CPU sets all bits of lanes that an instruction leaves undefined. Code that relies
    on such lanes then fails.
    """
    return f"rv64,v=true,vlen={vlen},rvv_ta_all_1s=true,rvv_ma_all_1s=true"
