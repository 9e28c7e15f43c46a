"""Finds spills and reloads in K loops, from what ``objdump -d`` prints.

It reads x86-64 in either syntax, AArch64, and RISC-V.

A K loop is an innermost loop that multiplies and adds, and stores nothing. In it, no instruction
may touch the stack frame; a buffer on the stack, read through an index or a pointer, is no spill.
Where K is unrolled completely, the same holds between the first and the last multiply-add of each
straight run of code: what is reloaded around them belongs to the loops over blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

_HEADING = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
_LINE = re.compile(r"^\s*([0-9a-f]+):\s*\t(?:(?:[0-9a-f]{2,8} )+\s*\t)?(?:\{\w+\} )?(\S+)\s*(.*)$")
_TARGET = re.compile(r"\b(?:0x)?([0-9a-f]+) <")
_COMMENT = re.compile(r"\s+(# |// ).*")
_JUMP = re.compile(r"^(j\w*|b|b\.\w+|cbn?z|tbn?z|b(eq|ne|lt|ge|le|gt)u?z?)$")
_CALL = re.compile(r"^(callq?|blr?|jalr?)$")
_RETURN = re.compile(r"^(retq?|br)$")
_PUSH = re.compile(r"^(push|pop)q?$")
_FMA = re.compile(
    r"^(vfn?m(add|sub)\w*|fn?m(add|sub|la|ls)(l[bt]?)?2?|fn?m(ad|sb)|vp?dp\w+|vpmaddwd|bfmmla|(bf|[su]+)dot|[su]adalp|[su]*mmla|(bf|[fsu]+)mopa|vf?w?macc(bf16)?\.v[vfx])$"
)
_MULTIPLY = re.compile(r"^v?f?mul([sp][sd])?$")
# What a caller on AArch64 gets back, moved up between the last multiply-adds; vectors are q.
_RESTORE = re.compile(r"^ld[pr] (d(8|9|1[0-5])|x(19|2[0-9]|30)), ")
# C's address, moved up likewise: nothing is loaded from there.
_ADDRESS = re.compile(r"^(x\d+), \[sp\b")
# Registers are spilled and reloaded whole: what is moved under a mask lies in a buffer.
_MASKED = re.compile(r"^(vp?maskmov|v(mov|p?expand)\w* .*\{%?k[1-7]\})")
# Whole registers of RISC-V's vectors are stored and loaded by compilers alone.
_WHOLE = re.compile(r"^v[ls]\d+r(e\d+)?\.v$")
_LOADED = re.compile(r"^vl[suo]?[ex]")
# The frame pointer is one only where the function makes it so; else it is a register like others.
_FRAME_POINTER = (
    re.compile(r"^(mov|lea|add)q?$"),
    re.compile(r"%rsp\)?,%rbp$|^rbp,\[?rsp\b|^x29, sp\b"),
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of disassembly; ``target`` is where a jump goes."""

    address: int
    mnemonic: str
    operands: str
    target: int | None = None

    def __str__(self) -> str:
        return f"{self.address:x}: {self.mnemonic} {self.operands}"


@dataclass(frozen=True, slots=True)
class Region:
    """A K loop (``looped``), or a straight run of multiply-adds outside any."""

    instructions: tuple[Instruction, ...]
    looped: bool


@dataclass(frozen=True, slots=True)
class Spill:
    """An access to the stack frame where there must be none."""

    function: str
    instruction: Instruction

    def __str__(self) -> str:
        return f"{self.function}: {self.instruction}"


@dataclass(frozen=True)
class Function:
    """A function's instructions in the order of their addresses.

    What is asked of each of them is worked out once for all: there may be thousands.
    """

    name: str
    instructions: tuple[Instruction, ...]

    def regions(self) -> list[Region]:
        """Its K loops, then the straight runs of multiply-adds outside them."""
        return list(self._regions)

    @cached_property
    def _regions(self) -> tuple[Region, ...]:
        loops = [
            loop
            for loop in _innermost(self.instructions)
            if any(map(self.multiplies, loop)) and not any(map(self._stores, loop))
        ]
        inside = {one.address for loop in loops for one in loop}
        runs = map(self._between, _straight(self.instructions, inside))
        return (
            *(Region(tuple(loop), True) for loop in loops),
            *(Region(tuple(run), False) for run in runs if run),
        )

    def spills(self) -> list[Spill]:
        """What touches the frame in any of the regions."""
        return [spill for region in self._regions for spill in self.spills_in(region)]

    def spills_in(self, region: Region) -> list[Spill]:
        """What touches the frame in one of the regions."""
        return [
            Spill(self.name, one)
            for one in region.instructions
            if self._touches_frame(one) and (region.looped or not _is_for_later(one, region))
        ]

    def multiplies(self, one: Instruction) -> bool:
        """Whether an instruction is a multiply-add; where there is none, a multiplication."""
        return self._product.match(one.mnemonic) is not None

    @cached_property
    def _product(self) -> re.Pattern[str]:
        fused = any(_FMA.match(other.mnemonic) for other in self.instructions)
        return _FMA if fused else _MULTIPLY

    def _touches_frame(self, one: Instruction) -> bool:
        if one.mnemonic.startswith("lea") or _MASKED.match(f"{one.mnemonic} {one.operands}"):
            return False
        if _CALL.match(one.mnemonic) or _PUSH.match(one.mnemonic):
            return True
        if _WHOLE.match(one.mnemonic):
            return True
        return self._slot.search(one.operands) is not None

    @cached_property
    def _slot(self) -> re.Pattern[str]:
        """A place in the frame: the stack or frame pointer and a constant, without an index."""
        mnemonic, operands = _FRAME_POINTER
        framed = any(
            mnemonic.match(one.mnemonic) and operands.search(one.operands)
            for one in self.instructions
        )
        x86, arm = ("(rsp|rbp)", "(sp|x29)") if framed else ("rsp", "sp")
        return re.compile(rf"\(%{x86}\)|\[{x86}([+-]\w+)?\]|\[{arm}(, #-?\w+(, mul vl)?)?\]")

    def _stores(self, one: Instruction) -> bool:
        """Whether a vector leaves for memory outside the frame."""
        if self._touches_frame(one):
            return False
        if one.mnemonic.startswith("st"):
            return True
        if _LOADED.match(one.mnemonic):
            return False
        moves = one.mnemonic.startswith(("v", "mov"))
        first, last = one.operands.partition(",")[0], re.sub(r"\{.*?\}", "", one.operands)
        return moves and ("PTR [" in first or last.endswith(")"))

    def _between(self, run: Sequence[Instruction]) -> Sequence[Instruction]:
        """From the first to the last multiply-add."""
        at = [i for i, one in enumerate(run) if self.multiplies(one)]
        return run[at[0] : at[-1] + 1] if at else ()


def _is_for_later(one: Instruction, region: Region) -> bool:
    """Whether straight code reloads on AArch64 what only the code behind it uses."""
    if _RESTORE.match(f"{one.mnemonic} {one.operands}"):
        return True
    address = _ADDRESS.match(one.operands)
    if address is None or one.mnemonic != "ldr":
        return False
    used = re.compile(rf"^ld.*\[{address[1]}\b")
    behind = (each for each in region.instructions if each.address > one.address)
    return not any(used.match(f"{each.mnemonic} {each.operands}") for each in behind)


def functions(disassembly: str) -> list[Function]:
    """The functions of the text; lines that are no instructions are passed over."""
    bodies: dict[str, list[Instruction]] = {}
    body: list[Instruction] = []
    for line in disassembly.splitlines():
        if heading := _HEADING.match(line):
            body = bodies.setdefault(heading[1], [])
        elif match := _LINE.match(line):
            body.append(_instruction(int(match[1], 16), match[2], match[3]))
    return [Function(name, tuple(body)) for name, body in bodies.items() if body]


def spills(disassembly: str) -> list[Spill]:
    """Every spill and reload in every K loop of the text."""
    return [spill for function in functions(disassembly) for spill in function.spills()]


def _instruction(address: int, mnemonic: str, rest: str) -> Instruction:
    operands = _COMMENT.sub("", rest).strip()
    target = _TARGET.search(operands) if _JUMP.match(mnemonic) else None
    return Instruction(address, mnemonic, operands, int(target[1], 16) if target else None)


def _innermost(instructions: Sequence[Instruction]) -> Iterator[list[Instruction]]:
    """What lies between the target of a jump backwards and the jump, with no such pair within."""
    first = instructions[0].address
    spans = {
        (one.target, one.address)
        for one in instructions
        if one.target is not None and first <= one.target <= one.address
    }
    for start, end in sorted(spans):
        if not any(start <= s and e <= end for s, e in spans - {(start, end)}):
            yield [one for one in instructions if start <= one.address <= end]


def _straight(
    instructions: Sequence[Instruction], without: set[int]
) -> Iterator[Sequence[Instruction]]:
    """Runs that no jump, call, return or target of a jump interrupts, less some addresses."""
    targets = {one.target for one in instructions}
    run: list[Instruction] = []
    for one in instructions:
        leaves = one.target is not None or _CALL.match(one.mnemonic) or _RETURN.match(one.mnemonic)
        if leaves or one.address in without or one.address in targets:
            yield run
            run = []
        if not leaves and one.address not in without:
            run.append(one)
    yield run
