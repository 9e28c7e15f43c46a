"""Do the checks of the properties notice a fault? One thing is changed in the generated C."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from support.products.space import Case
from support.products.trial import Lab, generated, lab
from support.specimens import VECTOR_TARGETS

from tilewright import targets
from tilewright.errors import TargetError
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim

M, N, K = 7, 11, 21
SPEC = Gemm(
    M,
    N,
    K,
    alpha=2,
    beta=0.5,
    batch=Strided(3),
    lda=Dim("lda"),
    ldb=Dim("ldb"),
    ldc=Dim("ldc"),
)
VALUES = (("lda", 24), ("ldb", 13), ("ldc", 12))
#: Tails that stop at the last element; one vector loads them all, or two side by side.
SCHEDULES = {
    "avx512": Schedule(tile=(4, 16), tails="mask", k_unroll=4),
    "avx2": Schedule(tile=(2, 16), tails="mask", k_unroll=4),
    "neon": Schedule(tile=(4, 12), tails="narrow", k_unroll=4),
    "sve256": Schedule(tile=(4, 16), tails="mask", k_unroll=4),
    "scalar": Schedule(tile=(4, 2), k_unroll=4),
}
#: An access of a whole vector in place of a part: a pattern and what it becomes.
UNMASKED = {
    ("avx512", "load"): (r"_mm512_maskz_loadu_ps\(mask, (pb[^)]*)\)", r"_mm512_loadu_ps(\1)"),
    ("avx512", "store"): (r"_mm512_mask_storeu_ps\(([^,]+), mask, ", r"_mm512_storeu_ps(\1, "),
    ("avx2", "load"): (r"_mm256_maskload_ps\((pb[^,]*), mask\)", r"_mm256_loadu_ps(\1)"),
    ("avx2", "store"): (r"_mm256_maskstore_ps\(([^,]+), mask, ", r"_mm256_storeu_ps(\1, "),
    ("neon", "load"): (r"vld1q_lane_f32\(\(pb \+ 8\) \+ 2, .*, 2\);", r"vld1q_f32(pb + 8);"),
    ("neon", "store"): (
        r"vst1_f32\(([^,]+), vget_low_f32\((c\d_2)\)\), .*;",
        r"vst1q_f32(\1, \2);",
    ),
    ("sve256", "load"): (r"svld1_f32\(mask, (pb[^)]*)\)", r"svld1_f32(svptrue_b32(), \1)"),
    ("sve256", "store"): (r"svst1_f32\(mask, ", r"svst1_f32(svptrue_b32(), "),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """``change`` makes one fault; without ``of`` in every target's C."""

    name: str
    change: Callable[[str], str]
    of: str = ""


def sub(pattern: str, replacement: str, *, every: bool = False) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, replacement, text, count=0 if every else 1)


def first(statement: str) -> Callable[[str], str]:
    """``statement`` before all others of the kernel."""
    return sub(r"(\nvoid kernel\([^;]*?\)\n\{\n)", rf"\1    {statement}\n")


def swap_stores(text: str) -> str:
    """Row 0 of the first tile where row 1 belongs, and the other way round."""
    head, _, rest = text.partition("static inline void tile1")
    vectors = r"_mm\d+_\w*store\w*|(sv|v)st1\w*|vec_xst\w*|__riscv_vs\w+"
    store = re.compile(rf"^ *({vectors})\(.*;|^ *(\*c\b|c\[).*;", re.MULTILINE)

    def swapped(line: re.Match[str]) -> str:
        names = {"c0_0": "c1_0", "c1_0": "c0_0"}
        return re.sub(r"\bc[01]_0\b", lambda name: names[name[0]], line[0])

    return store.sub(swapped, head) + _ + rest


def drop_last_multiply_add(text: str) -> str:
    lines = text.splitlines(keepends=True)
    fma = re.compile(r"c\d_0 = (.*(fmadd|vfma)|c\d_0 \+ )|MULADD_\w+\(c\d_0,")
    at = max(i for i, line in enumerate(lines) if fma.search(line))
    return "".join(lines[:at] + lines[at + 1 :])


def byte(place: str) -> str:
    return f"*(volatile unsigned char *)({place})"


#: The first element behind each operand.
BEHIND = {
    "A": f"a + {3 * M - 1} * lda + {K}",
    "B": f"b + {3 * K - 1} * ldb + {N}",
    "C": f"c + {M - 1} * ldc + {N}",
}


MUTANTS = [
    Mutant("drops K steps", sub(r"kt < (\d+);", r"kt < \1 - 1;", every=True)),
    Mutant("drops a multiply-add of the last K step", drop_last_multiply_add),
    Mutant("adds 1 to the leading dimension of A", sub(r"pa(\[| \+ )lda\b", r"pa\1(lda + 1)")),
    Mutant("adds 1 to the leading dimension of B", sub(r"pb \+= ldb;", "pb += ldb + 1;")),
    Mutant(
        "adds 1 to the leading dimension of C",
        sub(r"\bc(\[| \+ )ldc\b", r"c\1(ldc + 1)", every=True),
    ),
    Mutant("ignores beta", sub(r"\b0\.5f", "0.0f")),
    Mutant("ignores alpha", sub(r"\b2\.0f", "1.0f")),
    Mutant("drops a matrix of the batch", sub(r"\bi < 3;", "i < 2;", every=True)),
    Mutant("swaps two accumulators", swap_stores),
    *(
        Mutant(f"reads a byte behind {name}", first(f"(void){byte(end)};"))
        for name, end in BEHIND.items()
    ),
    Mutant("reads a byte before A", first(f"(void){byte('(const char *)a - 1')};")),
    Mutant("writes a byte behind C", first(f"{byte(BEHIND['C'])} = 1;")),
    Mutant("writes a byte before C", first(f"{byte('(char *)c - 1')} = 1;")),
    Mutant("writes the padding of C", first(f"c[{N}] = 0;")),
    Mutant("writes to B", first(f"{byte('b')} = 0;")),
    *(
        Mutant(f"skips a tail's mask in a {access}", sub(*change, every=True), of=target)
        for (target, access), change in UNMASKED.items()
    ),
]  # fmt: skip


def mutants(target: str) -> Iterator[Mutant]:
    return (mutant for mutant in MUTANTS if mutant.of in ("", target))


def original(target: str) -> Case:
    return Case(
        "kernel",
        targets.load(target),
        SPEC,
        SCHEDULES.get(target, Schedule(k_unroll=4)),
        VALUES,
        (),
    )


def renamed(text: str, name: str) -> str:
    """The kernel and its static functions under names that no other text has."""
    for own in set(re.findall(r"^static inline void (\w+)\(", text, re.MULTILINE)):
        text = re.sub(rf"\b{own}\b", f"{name}_{own}", text)
    return re.sub(r"\bkernel(?=[_(])", name, text)


@pytest.fixture(scope="module", params=VECTOR_TARGETS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The kernel and all its mutants, as mutant0 and so on, in one program."""
    case = original(request.param)
    _, text = generated([case], [])
    texts = [text]
    for i, mutant in enumerate(mutants(request.param)):
        changed = mutant.change(text)
        assert changed != text, f"{mutant.name}: nothing was changed"
        texts.append(renamed(changed, f"mutant{i}"))
    names = ["kernel", *(f"mutant{i}" for i in range(len(texts) - 1))]
    directory = tmp_path_factory.mktemp("mutants")
    return lab(["\n".join(texts)], names, case.target, directory, flags=["-w"])


def test_every_mutant_is_noticed(bench: Lab, request: pytest.FixtureRequest) -> None:
    target = request.node.callspec.params["bench"]
    case = original(target)
    bench.check(case)
    unnoticed = []
    for i, mutant in enumerate(mutants(target)):
        try:
            bench.check(replace(case, name=f"mutant{i}"))
        except (AssertionError, TargetError):
            continue
        unnoticed.append(mutant.name)
    assert not unnoticed
    bench.check(case)
