"""Extensions of RISC-V V: products and conversions of f16 (Zvfh), and of bf16 (Zvfbfwma).

A multiply-add of f16 or bf16 into f32 rounds once, to f32. C scalars of f16 need Zfhmin, which Zvfh
implies. C scalars of bf16 need Zfbfmin; Zvfbfwma implies it, and Zvfbfmin too. Semantics: RISC-V
ISA manual, volume I, "Zvfh" and "BF16".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.isa.machine import Emulation
from tilewright.isa.target import Feature
from tilewright.isa.vector import Mask, MulAdd, Vector

from .accesses import Conversions, accesses
from .vectors import forms, held
from .words import LMUL, Group, cpu

#: Settings of qemu's ``-cpu`` option. ``_BOTH`` enables both extensions.
_ZVFH = "zfh=true,zvfh=true"
_BOTH = f"{_ZVFH},zfbfmin=true,zvfbfmin=true,zvfbfwma=true"


@dataclass(frozen=True, slots=True)
class _Half:
    """A 16-bit floating-point type: its C type, its multiply-add, its conversions from and to f32.

    ``mnemonic`` is the instruction that multiplies two such factors and adds to f32.
    """

    element: str
    ctype: str
    mnemonic: str
    conversions: Conversions

    @property
    def number(self) -> str:
        """C expression that reads the number at ``{p}``.

        The rest of the generated code declares such numbers as 16-bit integers.
        """
        alias = f"typedef const {self.ctype} __attribute__((may_alias)) number_;"
        return f"({{{{ {alias} *(number_ *)(const void *)({{p}}); }}}})"

    def feature(self, vlen: int, name: str, title: str, implied: str) -> Feature:
        """Return extension ``name`` as a feature of the target with registers of ``vlen`` bits.

        ``implied`` are the settings of qemu's ``-cpu`` option that enable it.
        """
        sums = [int(lmul * vlen) // 32 for lmul in LMUL]
        groups = [Group("f32", lanes, vlen) for lanes in sums]
        muladd = {(group.lmul, "f32"): self.products(group) for group in groups}
        return Feature(
            title=title,
            cpu_flags=(name,),
            compiler_flags=(f"_{name}",),
            zig=f"+{name}",
            muladd={**muladd, ("scalar", "f32"): (self.single(),)},
            vectors=(*(held(group.of(self.element)) for group in groups), self.alone()),
            extend=lambda vector: self.extend(vector, vlen),
            emulation=Emulation(qemu="qemu-riscv64", cpu=f"{cpu(vlen)},{implied}", least="10"),
        )

    def products(self, group: Group) -> tuple[MulAdd, ...]:
        """Return the multiply-adds with factors of this type and sums in ``group``, of f32."""
        return tuple(forms(self.mnemonic, group, self.element))

    def single(self) -> MulAdd:
        """Return the multiply-add of two C scalars of this type into a C scalar of f32."""
        return MulAdd(
            form="scalar",
            mnemonic=f"{self.mnemonic}.vf",
            spelling="__builtin_fmaf((float){x}, (float){y}, {acc})",
            cols=1,
            x=self.element,
            y=self.element,
        )

    def alone(self) -> Vector:
        """Return the vector type with one lane, a C scalar, which is a factor of multiply-adds."""
        return Vector(
            name="scalar", element=self.element, lanes=1, ctype=self.ctype, load=self.number
        )

    def extend(self, vector: Vector, vlen: int) -> Vector:
        """Return ``vector``; if it has lanes of f32, its loads and stores convert this type too."""
        if vector.element != "f32":
            return vector
        if vector.lanes == 1:
            return replace(vector, loads={**vector.loads, self.element: f"(float){self.number}"})
        more = accesses(Group("f32", vector.lanes, vlen), self.conversions)
        mask = more["mask"]
        assert vector.mask is not None and vector.mask.loose is not None
        return replace(
            vector,
            loads={**vector.loads, **more["loads"]},
            stores={**vector.stores, **more["stores"]},
            mask=replace(_joined(vector.mask, mask), loose=_joined(vector.mask.loose, mask.loose)),
        )


def _joined(mask: Mask, more: Mask) -> Mask:
    """Return ``mask`` with the converting loads and stores of both masks."""
    loads, stores = {**mask.loads, **more.loads}, {**mask.stores, **more.stores}
    return replace(mask, loads=loads, stores=stores)


_F16 = _Half(
    element="f16",
    ctype="_Float16",
    mnemonic="vfwmacc",
    conversions=Conversions(
        {"f16": "@vfwcvt_f_f_v_$t(@vreinterpret_v_${u16}_$f16({x}), $n)"},
        {"f16": "@vreinterpret_v_${f16}_$u16(@vfncvt_f_f_w_$f16({v}, $n))"},
    ),
)
_BF16 = _Half(
    element="bf16",
    ctype="__bf16",
    mnemonic="vfwmaccbf16",
    conversions=Conversions(
        {"bf16": "@vfwcvtbf16_f_f_v_$t(@vreinterpret_v_${u16}_$bf16({x}), $n)"},
        {"bf16": "@vreinterpret_v_${bf16}_$u16(@vfncvtbf16_f_f_w_$bf16({v}, $n))"},
    ),
)


def features(vlen: int) -> dict[str, Feature]:
    """Return the features for registers of ``vlen`` bits, by name.

    A target's name lists them in this order.
    """
    bf16 = _BF16.feature(vlen, "zvfbfwma", "products of bf16 added to f32", _BOTH)
    compilers = {"gcc": "15", "clang": "19", "zig": "0.14"}
    return {
        "zvfh": _F16.feature(vlen, "zvfh", "vectors of f16", _ZVFH),
        "zvfbfwma": replace(bf16, compilers=compilers),
    }
