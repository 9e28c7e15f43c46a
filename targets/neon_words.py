"""Shared parts of the Neon vectors: spellings from tables, and accesses of less than 64 bits.

In a table of spellings, ``{q}`` is "q" for vectors of 128 bits, which fill a register. It is empty
for vectors of 64 bits, which take half a register.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.isa.vector import Factors, Form, MulAdd

from .stored import fields, table, words

#: C expressions for the 16, 32 or 64 bits at ``{p}`` as an integer; the address need not be
#: aligned.
BITS = {
    size: f"({{{{ int{size}_t bits_; __builtin_memcpy(&bits_, {{p}}, sizeof bits_); bits_; }}}})"
    for size in (16, 32, 64)
}


def filled(table: Mapping[str, str], **words: str) -> dict[str, str]:
    """Return the spellings of ``table`` with ``words`` filled in."""
    return {name: spelling.format(**words) for name, spelling in table.items()}


def fill(element: str, lanes: int) -> str:
    """Return C for the first ``{count}`` lanes of ``{v}``, and the other lanes of ``{other}``."""
    bits = int(element[1:])
    q, low, high = ("", "0x100000000", "") if bits * lanes == 64 else ("q", "0", "1")
    if bits * lanes == 128 and bits == 32:
        low, high = "0x100000000", "0x300000002"
    numbers = f"vcreate_s{bits}({low})"
    if high:
        numbers = f"vcombine_s{bits}({numbers}, vcreate_s{bits}({high}))"
    chosen = f"vclt{q}_s{bits}({numbers}, vdup{q}_n_s{bits}((int{bits}_t)({{count}})))"
    return f"vbsl{q}_{element}({chosen}, {{v}}, {{other}})"


def store_bits(size: int, value: str) -> str:
    """Return C that writes the 16 or 32 bits of the C integer ``value`` to ``{p}``."""
    return (
        f"({{{{ const int{size}_t bits_ = {value}; "
        "(void)__builtin_memcpy({p}, &bits_, sizeof bits_); }})"
    )


def low_bits(size: int, half: str, element: str) -> str:
    """Return C that writes the lowest 16 or 32 bits of ``half``, half a register of ``element``."""
    lane = f"vget_lane_s{size}(vreinterpret_s{size}_{element}({half}), 0)"
    return store_bits(size, lane)


def zipped(number: int, bits: int) -> str:
    """Return C that interleaves units of ``bits`` bits of x and y.

    They are those of the lower 64 bits of both if ``number`` is 1, of the upper ones if it is 2.
    """
    x, y = (f"vreinterpretq_u{bits}_s32({{{name}}})" for name in "xy")
    return f"vreinterpretq_s32_u{bits}(vzip{number}q_u{bits}({x}, {y}))"


def alone(product: str, element: str) -> str:
    """Return C that computes ``product`` in half a register, but takes and gives a C scalar sum."""
    acc = f"vdup_n_{element}({{acc}})"
    return f"vget_lane_{element}({product.replace('{acc}', acc)}, 0)"


def parts(element: str, q: str) -> dict[str, tuple[str, ...]]:
    """Return ``Vector.fields``: C that extracts each bit field from the bytes of ``{v}``.

    A field of type f4_e2m1 selects one of 16 numbers in a table.
    """
    low, high = words(table(unsigned=element == "u8"))
    numbers = f"vcombine_u8(vcreate_u8({low}), vcreate_u8({high}))"
    seen = (f"vreinterpret{q}_{element}_u8(", ")") if element != "u8" else ("", "")
    back = f"vreinterpret{q}_u8_{element}({{v}})" if element != "u8" else "{v}"

    def part(right: int, mask: int) -> str:
        moved = back
        if right:
            moved = f"v{'shr' if right > 0 else 'shl'}{q}_n_u8({back}, {abs(right)})"
        if mask << max(right, 0) & 0x80 and mask & 1:  # the shift clears all other bits
            return moved.join(seen)
        return f"vand{q}_u8({moved}, vdup{q}_n_u8({mask}))".join(seen)

    def looked_up(index: str) -> str:
        index = index.removeprefix(seen[0]).removesuffix(seen[1])
        return f"vqtbl1{q}_u8({numbers}, {index})".join(seen)

    return fields(part, looked_up)


def group(element: str, q: str) -> str:
    """Return C that repeats the low ``{bits}`` bits of the integer ``{x}`` through a register."""
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
    """Return one multiply-add for each form in ``spellings``."""
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
