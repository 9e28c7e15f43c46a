"""What the Neon vectors share: how their spellings are filled in, and accesses below 64 bits.

In a table of spellings ``{q}`` is "q" for whole registers and empty for halves.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.isa.vector import Factors, Form, MulAdd

from .stored import fields, table, words

#: The 16, 32 or 64 bits at ``{p}``, which need not be aligned, as a C integer.
BITS = {
    size: f"({{{{ int{size}_t bits_; __builtin_memcpy(&bits_, {{p}}, sizeof bits_); bits_; }}}})"
    for size in (16, 32, 64)
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


def parts(element: str, q: str) -> dict[str, tuple[str, ...]]:
    """Parts of bytes, and what they mean by a table."""
    low, high = words(table(unsigned=element == "u8"))
    numbers = f"vcombine_u8(vcreate_u8({low}), vcreate_u8({high}))"
    seen = (f"vreinterpret{q}_{element}_u8(", ")") if element != "u8" else ("", "")
    back = f"vreinterpret{q}_u8_{element}({{v}})" if element != "u8" else "{v}"

    def part(right: int, mask: int) -> str:
        moved = back
        if right:
            moved = f"v{'shr' if right > 0 else 'shl'}{q}_n_u8({back}, {abs(right)})"
        if mask << max(right, 0) & 0x80 and mask & 1:  # the shift leaves no other bits
            return moved.join(seen)
        return f"vand{q}_u8({moved}, vdup{q}_n_u8({mask}))".join(seen)

    def looked_up(index: str) -> str:
        index = index.removeprefix(seen[0]).removesuffix(seen[1])
        return f"vqtbl1{q}_u8({numbers}, {index})".join(seen)

    return fields(part, looked_up)


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
