"""What the Neon vectors share: how their spellings are filled in, and accesses below 64 bits.

In a table of spellings ``{q}`` is "q" for whole registers and empty for halves.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.isa.vector import Factors, Form, MulAdd

#: The 16 or 32 bits at ``{p}``, which need not be aligned, as a C integer.
BITS = {
    size: f"({{{{ int{size}_t bits_; __builtin_memcpy(&bits_, {{p}}, sizeof bits_); bits_; }}}})"
    for size in (16, 32)
}


def filled(table: Mapping[str, str], **words: str) -> dict[str, str]:
    """The spellings of ``table`` with ``words`` filled in."""
    return {name: spelling.format(**words) for name, spelling in table.items()}


def store_bits(size: int, value: str) -> str:
    """Write the 16 or 32 bits of the C integer ``value`` to ``{p}``."""
    return (
        f"({{{{ const int{size}_t bits_ = {value}; "
        "(void)__builtin_memcpy({p}, &bits_, sizeof bits_); }})"
    )


def low_bits(size: int, half: str, element: str) -> str:
    """Write the lowest 16 or 32 bits of ``half``, a register's half full of ``element``."""
    lane = f"vget_lane_s{size}(vreinterpret_s{size}_{element}({half}), 0)"
    return store_bits(size, lane)


def alone(product: str, element: str) -> str:
    """A product on half a register, for an accumulator of ``element`` that is a C scalar."""
    acc = f"vdup_n_{element}({{acc}})"
    return f"vget_lane_{element}({product.replace('{acc}', acc)}, 0)"


def nibbles(element: str, q: str) -> dict[int, tuple[str, ...]]:
    """Both halves of bytes."""
    high = f"vshr{q}_n_u8({{v}}, 4)"
    if element == "s8":
        bits = high.replace("{v}", f"vreinterpret{q}_u8_s8({{v}})")
        high = f"vreinterpret{q}_s8_u8({bits})"
    return {4: (f"vand{q}_{element}({{v}}, vdup{q}_n_{element}(15))", high)}


def group(element: str, q: str) -> str:
    """A register full of the ``{bits}`` bits ``{x}``, as ``element``."""
    bits = f"vdup{q}_n_s{{bits}}((int{{bits}}_t)({{x}}))"
    return f"vreinterpret{q}_{element}_s{{bits}}({bits})"


def forms(
    mnemonic: str,
    spellings: Mapping[Form, str],
    cols: int,
    *,
    rows: int = 1,
    factors: Factors = (1, "", ""),
    instructions: int = 1,
) -> tuple[MulAdd, ...]:
    """One multiply-add in each form that ``spellings`` has."""
    depth, x, y = factors
    return tuple(
        MulAdd(
            form=form,
            mnemonic=f"{mnemonic} by element" if form in ("scalar", "lane") else mnemonic,
            spelling=spelling,
            cols=cols,
            rows=rows,
            depth=depth,
            x=x,
            y=y,
            instructions=instructions,
        )
        for form, spelling in spellings.items()
    )
