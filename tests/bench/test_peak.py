"""The peak: that its chains are chains, by following values through the machine code."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import compilers
from support.cases import sampled

import tilewright as tw
from tilewright import targets
from tilewright.errors import TargetError, ToolchainError
from tilewright.isa.target import Target
from tilewright.runtime.bench import peak as module
from tilewright.runtime.bench.peak import Loop, peak_call, peak_source
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library, disassemble
from tilewright.runtime.call import dispatch
from tilewright.runtime.machine.host import is_native, machine
from tilewright.spec.types import accumulator

#: Without a register's letter for assembly, as on RISC-V, vectors of several lengths are loaded for
#: each multiply-add, and compilers move such loads as they like.
TARGETS = [
    target
    for target in map(targets.load, compilers.TARGETS)
    if target.length is None or target.hints is not None
]

# --- machine code ------------------------------------------------------------------------------

_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*?)\s*(?:(?:[#<;]|//).*)?$")
_REGISTER = re.compile(r"^\{?(?:[xyz]mm|[vqdsza]|vs|(?=za))((?:za)?\d+)(?:\.\w+)?(?:\[\d+\])?\}?$")
#: Predicates of SVE.
_PREDICATE = re.compile(r"^p\d+(/[mz])?$")
_JUMP = re.compile(r"^(j\w+|b\.\w+|cbn?z|b|bdnz|b(eq|ne|lt|ge)u?z?)$")


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """What an instruction computes: ``addend`` + the product of ``factors``."""

    factors: tuple[Value, ...] = ()
    addend: Value | None = None


def _elsewhere(target: Target) -> bool:
    """Whether the target is of another architecture."""
    return target.machine not in ("", machine()) and not is_native(target)


def body(text: str) -> list[tuple[str, list[str]]]:
    """The instructions of the longest innermost loop: another one may store lines of matrices."""
    rows = [m.groups() for m in map(_LINE.match, text.splitlines()) if m]
    addresses = [int(address, 16) for address, _, _ in rows]
    loops = []
    for at, (address, name, operands) in enumerate(rows):
        target = re.search(r"([0-9a-f]{2,})$", operands.split(",")[-1].strip())
        if _JUMP.match(name) and target and int(target[1], 16) < int(address, 16):
            first = addresses.index(int(target[1], 16))
            loops.append([(n, re.split(r",\s*(?![^\[]*\])", o)) for _, n, o in rows[first:at]])
    if loops:
        return max(loops, key=len)
    raise AssertionError(f"no loop in\n{text}")


class Machine:
    """Follows values through registers; ``sums`` are those of multiply-adds, in order."""

    def __init__(self) -> None:
        self.registers: dict[str, Value] = {}
        self.sums: list[Value] = []

    def read(self, operand: str) -> Value:
        match = _REGISTER.match(operand)
        if match is None:  # memory
            return Value()
        return self.registers.setdefault(match[1], Value())

    def write(self, operand: str, value: Value) -> None:
        match = _REGISTER.match(operand)
        if match is not None:
            self.registers[match[1]] = value

    def run(self, name: str, operands: list[str]) -> None:
        operands = [operand for operand in operands if not _PREDICATE.match(operand)]
        fused = re.match(r"vfmadd(132|213|231)[sp][sd]$", name)
        if fused:
            order = {str(i + 1): self.read(operand) for i, operand in enumerate(operands)}
            first, second, addend = (order[digit] for digit in fused[1])
            self.sum(operands[0], (first, second), addend)
        elif re.match(r"fmla$|fmopa$", name) or re.match(
            r"(dm)?xv\w+(gerpp|madda[sd]p)$|xsmadda[sd]p$", name
        ):
            values = [self.read(operand) for operand in operands]
            self.sum(operands[0], (values[1], values[2]), values[0])
        elif re.match(r"f?mad$", name):
            values = [self.read(operand) for operand in operands]
            self.sum(operands[0], (values[0], values[1]), values[2])
        elif name == "fmadd":
            values = [self.read(operand) for operand in operands]
            self.sum(operands[0], (values[1], values[2]), values[3])
        elif re.match(r"v?muls[sd]$|fmul$", name):
            first, second = (self.read(operand) for operand in operands[-2:])
            self.write(operands[0], Value((first, second)))
        elif re.match(r"v?adds[sd]$|fadd$", name):
            first, second = (self.read(operand) for operand in operands[-2:])
            product, other = (
                (first, second) if first.factors and not first.addend else (second, first)
            )
            self.sum(operands[0], product.factors, other)
        elif re.match(r"v?mov|mov(prfx)?$|fmov$|ldr$", name) and len(operands) == 2:
            self.write(operands[0], self.read(operands[1]))

    def sum(self, to: str, factors: tuple[Value, ...], addend: Value) -> None:
        value = Value(factors, addend)
        self.sums.append(value)
        self.write(to, value)


def check_chains(text: str, loop: Loop) -> None:
    """Every multiply-add of two rounds needs the one of its own chain, and no other chain's."""
    machine = Machine()
    for name, operands in body(text) * 2:
        machine.run(name, operands)
    sums, chains = machine.sums, loop.chains
    assert len(sums) == 2 * loop.unroll * chains, f"{len(sums)} multiply-adds in\n{text}"
    ordered = in_chains(sums, chains)
    for chain in ordered:
        for before, after in pairwise(chain):
            if loop.through == "destination":
                assert after.addend is before, text
                assert not set(after.factors) & set(sums), text
            else:
                assert before in after.factors, text
                assert after.addend not in sums, text


def in_chains(sums: list[Value], chains: int) -> Iterator[list[Value]]:
    """The sums by the chain that each begins or goes on with."""
    found: list[list[Value]] = []
    for value in sums:
        needs = {value.addend, *value.factors}
        mine = [chain for chain in found if chain[-1] in needs]
        assert len(mine) < 2, "two chains meet"
        if mine:
            mine[0].append(value)
        else:
            found.append([value])
    assert len(found) == chains, f"{len(found)} chains, not {chains}"
    return iter(found)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("compiler", ["default", "clang"])
def test_chains_are_dependent_in_the_machine_code(
    target: Target, element: str, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler == "clang":
        if target.hints is None:
            pytest.skip("clang makes vectors of plain C's chains, as it may of a kernel's")
        found = compilers.use("clang", target, monkeypatch)
    try:
        found = find_compiler(target, emulated=_elsewhere(target))
    except (TargetError, ToolchainError) as error:
        pytest.skip(str(error))
    library = compile_library(
        peak_source(target, (element, element)), target, found, tmp_path, "peak"
    )
    listing = disassemble(library, found)
    functions = dict(re.findall(r"<(\w+)>:\n((?:.+\n)+)", listing))
    loops = list(module._loops(target, (element, element)))
    if target.matrix is None or target.matrix.factors == "matrices":
        assert {loop.chains for loop in loops} >= {1, 8, 10, 12, 14}
    for loop in loops:
        check_chains(functions[loop.name], loop)


#: Instructions that do what a form without a name, or with another one, says.
SAME = {"": ("imul", "madd", "mulss", "fmul"), "sudot": ("sudot", "usdot")}
PAIRS = [("u8", "s8"), ("s8", "s8"), ("u8", "u8"), ("bf16", "bf16"), ("f16", "f16"), ("f32", "f16")]
#: Every target, and it with all its features, each with some of the pairs.
SEVERAL = [
    pytest.param(each, types, id=f"{each.name} {' x '.join(types)}")
    for target in TARGETS
    for each in (target, target.having(target.features))
    for types in sampled(each.name, PAIRS, 2)
]


@pytest.mark.parametrize(("target", "types"), SEVERAL)
def test_no_product_is_taken_out_of_its_loop(
    target: Target, types: tuple[str, str], tmp_path: Path
) -> None:
    """The loop's body has as many multiply-adds as it should, those of two instructions too."""
    try:
        found = find_compiler(target, emulated=_elsewhere(target))
        library = compile_library(peak_source(target, types), target, found, tmp_path, "peak")
    except (TargetError, ToolchainError) as error:
        pytest.skip(str(error))
    listing = disassemble(library, found).replace("{vex} ", "").replace("{evex} ", "")
    if "(bad)" in listing:
        pytest.skip("the disassembler is older than the instructions")
    listing = re.sub(r"fmadd(132|213|231)", "fmadd231", listing)
    listing = re.sub(r"\b(f?m)ad\b", r"\1la", listing)  # another operand is overwritten
    listing = re.sub(r"\bdm(?=xv)", "", listing)  # what newer binutils call products of POWER10
    functions = dict(re.findall(r"<(\w+)>:\n((?:.+\n)+)", listing))
    loops = list(module._loops(target, types))
    assert max(loop.vector.lanes for loop in loops) == target.of(accumulator(*types))[0].lanes
    for loop in loops:
        seen = Counter(name for name, _ in body(functions[loop.name]))
        for part in loop.op.mnemonic.split(", "):
            name = part.partition(" ")[0]
            if name != "dup":  # a lane's element may be spread before the loop
                count = sum(seen[other] for other in SAME.get(name, (name,)))
                assert count >= loop.unroll * loop.chains, functions[loop.name]


def test_what_is_no_chain_is_recognised() -> None:
    vector = targets.load("avx2").of("f32")[0]
    loop = Loop("l", vector, vector.muladd[0], 1, "source")._replace(chains=16)
    single = loop._replace(chains=1)
    step = " 10:\tvfmadd231ps ymm2,ymm0,ymm1\n"
    listing = " 0f:\tnop\n" + step * 32 + " 99:\tjne    10 <l+0x10>\n"
    check_chains(listing, single._replace(through="destination"))
    with pytest.raises(AssertionError):  # the chapter's mistake: the factor is always the same
        check_chains(listing, single)
    with pytest.raises(AssertionError, match="1 chains, not 16"):
        check_chains(listing, loop)


# --- figures -----------------------------------------------------------------------------------


#: A core that is made up: GHz, cycles of latency, multiply-adds that it begins in each cycle.
CLOCK, LATENCY, PIPES = 2.0, {"source": 5, "destination": 4}, 2


def made_up_seconds(loop: Loop | module.Clock) -> float:
    """What a call of a loop takes on that core: chains wait for themselves, or for a pipe."""
    if isinstance(loop, module.Clock):
        return loop.adds / CLOCK / 1e9
    return loop.steps * max(LATENCY[loop.through], loop.chains / PIPES) / CLOCK / 1e9


def test_the_peak_is_the_best_of_the_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """That cores keep to it is measured by ``python -m benchmarks peaks``."""

    def seconds(target: Target, types: tuple[str, str], names: Iterable[str]) -> dict[str, float]:
        loops: list[Loop | module.Clock] = [module._CLOCK, *module._loops(target, types)]
        known = {loop.name: made_up_seconds(loop) for loop in loops}
        return {name: known[name] for name in names}

    monkeypatch.setattr(module, "_seconds", seconds)
    peak = tw.peak("host")
    assert peak.target == tw.compile(tw.Transpose(1, 1)).target
    assert peak.clock == pytest.approx(CLOCK)
    wide, narrow = peak.forms[0], peak.forms[-1]
    assert wide.lanes > narrow.lanes == 1
    assert peak.gflops == wide.gflops == pytest.approx(2 * wide.lanes * PIPES * CLOCK)
    for form in peak.forms:
        assert form.gflops == pytest.approx(2 * form.lanes * PIPES * CLOCK)
        assert form.chains >= PIPES * LATENCY["destination"]
        assert form.source_cycles == pytest.approx(LATENCY["source"])
        assert form.destination_cycles == pytest.approx(LATENCY["destination"])
        assert form.source == pytest.approx(LATENCY["source"] / CLOCK)


def test_loops_are_timed_in_turns_and_the_least_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    host, turns = targets.load("scalar"), []

    def timed(frame: int, count: int, calls: int) -> float:
        assert count == 1
        turns.append(frame)
        return calls * (1.0 if len(turns) == 4 else 2.0 + len(turns))

    monkeypatch.setattr(dispatch, "timer", lambda what: timed)
    names = [loop.name for loop in module._loops(host, ("f32", "f32"))][:2]
    found = module._seconds(host, ("f32", "f32"), names)
    assert found == {names[0]: 3.0, names[1]: 1.0}
    assert len(turns) > 8
    assert len(set(turns)) == 2
    assert all(one != other for one, other in pairwise(turns))


def test_the_peak_of_this_core() -> None:
    peak = tw.peak("host")
    assert peak.gflops == max(form.gflops for form in peak.forms)
    assert peak.clock > 0
    for form in peak.forms:
        assert form.chains in (1, *module.CHAINS)
        assert min(form.source, form.destination, form.source_cycles, form.gflops) > 0


def test_the_peak_is_measured_anew_unless_asked() -> None:
    first = tw.peak("scalar")
    assert tw.peak("scalar") is not first
    again = tw.peak("scalar", cached=True)
    assert tw.peak("scalar", "f32", cached=True) is again
    assert tw.peak("scalar", "f64", cached=True).type == "f64"


def test_the_peak_of_two_types() -> None:
    peak = tw.peak("scalar", ("u8", "s8"))
    assert peak.type == "u8 x s8"
    assert tw.peak("scalar", (np.int8, "s8")).type == "s8"
    assert tw.peak("scalar", "bf16").gflops > 0
    for form in peak.forms:
        assert form.destination_cycles > 0
        assert np.isnan(form.source_cycles) or form.source_cycles > 0
    timing = tw.compile(tw.Gemm(48, 48, 48, a="u8", b="s8"), target="scalar").bench(seconds=0.02)
    assert timing.of_peak is not None
    assert timing.of_peak > 0


def test_the_peak_is_a_c_function_too() -> None:
    call = peak_call("host", "f64")
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        call.address
    )
    before = call.keep[2].copy()
    function(*call.operands)
    assert (call.keep[2] != before).any()
    assert call.flops > 10_000


@pytest.mark.skipif(is_native(targets.load("neon")), reason="it is native here")
def test_what_is_emulated_has_no_peak() -> None:
    with pytest.raises(TargetError, match="the peak of neon cannot be measured here"):
        tw.peak("neon")


def test_the_peak_of_a_network_is_that_of_the_types_it_multiplies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = {"a": tw.Tensor("s8", (64, 32)), "b": tw.Tensor("f32", (32, 16))}
    x = tw.Tensor("u8", (tw.dim("m"), 64))
    spec = tw.network(lambda x, w: (x @ w.a * 0.5) @ w.b).of(x=x, w=w)
    work = spec.work({"m": 3})
    assert work == {("u8", "s8"): 2 * 3 * 64 * 32, ("f32", "f32"): 2 * 3 * 32 * 16}
    assert spec.flops({"m": 3}) == sum(work.values())

    def meter(_target: object, types: tuple[str, str]) -> Any:
        """Return a meter of a loop of 1000 operations, faster for integers."""
        taken = 1.0 if types == ("u8", "s8") else 4.0
        return SimpleNamespace(loop=SimpleNamespace(flops=1000), seconds=lambda: taken)

    monkeypatch.setattr(module, "Meter", meter)
    host = targets.load("avx2")
    at_peak = module.AtPeak(host, work)
    assert at_peak.seconds() == pytest.approx((2 * 3 * 64 * 32 + 4 * 2 * 3 * 32 * 16) / 1000)
    assert module.AtPeak(host, {}).seconds() == 4.0  # the clock rate


@pytest.mark.parametrize("of_peak", [0.25, 1.0])
def test_a_kernel_beside_the_peak(of_peak: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """That none is above it is measured by ``python -m benchmarks peaks``."""
    kernel = tw.compile(tw.Gemm(64, 48, 64))
    per_call, taken = 1e-6, []

    def per_meter(meter: module.Meter) -> float:
        """Of a loop that does so much more in each second."""
        taken.append(meter)
        return float(meter.loop.flops / (kernel.flops / per_call / of_peak))

    monkeypatch.setattr(module.Meter, "seconds", per_meter)
    monkeypatch.setattr(dispatch, "timer", lambda what: lambda at, count, calls: calls * per_call)
    timing = kernel.bench(seconds=0.001)
    assert timing.median == timing.best == pytest.approx(per_call)
    assert timing.spread == pytest.approx(0)
    assert timing.gflops == pytest.approx(kernel.flops / per_call / 1e9)
    assert timing.of_peak == pytest.approx(of_peak)
    assert len(taken) >= 5
