"""Random kernels against numpy, by the interpreter and as C, between guard pages.

Cases are drawn with ``--seed``; ``--case avx2_017`` runs one of them alone.
"""

from __future__ import annotations

import ctypes
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.products.operands import PADDING, operands
from support.products.space import LEVELS, Case, case, operations
from support.products.trial import generated, lab, report
from support.specimens import VECTOR_TARGETS

from tilewright import targets
from tilewright.errors import ToolchainError
from tilewright.generate import plan_for, program_for
from tilewright.interpret.run import interpret
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.machine.host import is_native
from tilewright.spec.schedule import TAILS

CASES = 104
CHUNKS = 4
#: What an interpreted case may cost, in multiply-adds of one vector.
INTERPRETED = 8_000
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g0")
Keys = list[tuple[str, int, int]]
NATIVE = [name for name in VECTOR_TARGETS if is_native(targets.load(name))]
CLANG_FOR = {"CC": "clang", "TILEWRIGHT_CC_AARCH64": "clang --target=aarch64-linux-gnu"}


#: The target of which all cases are compiled; of others half, some by each compiler.
WHOLE = "avx2"
#: How many cases the slower tests take, of SMALL programs if there are enough.
EMULATED, SANITIZED, INSIDE, SMALL = 8, 12, 16, 400
#: Those take one chunk of these targets.
ONE_CHUNK: dict[str, list[str]] = {
    "test_emulated_kernels_agree_with_numpy": [n for n in ("avx512", "avx2") if n in NATIVE],
    "test_sanitizers_find_nothing": NATIVE,
    "test_operands_may_lie_inside_of_larger_arrays": NATIVE,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "batch" not in metafunc.fixturenames:
        return
    seed, only = metafunc.config.option.seed, metafunc.config.option.case
    batches: dict[str, Keys] = {}
    test = metafunc.function.__name__
    names: Sequence[str] = ONE_CHUNK.get(test, list(VECTOR_TARGETS))
    for name in names:
        for chunk in range(chunks(test, name)):
            indices = range(chunk, CASES, CHUNKS)
            batches[f"{name}-{chunk}"] = [(name, seed, i) for i in indices]
    if only:
        name, _, index = only.rpartition("_")
        batches = {only: [(name, seed, int(index))]} if name in names else {}
    together = [  # a process draws each case once
        pytest.param(batch, marks=pytest.mark.xdist_group(batch[0][0]))
        for batch in batches.values()
    ]
    metafunc.parametrize("batch", together, ids=batches.keys())


def chunks(test: str, name: str) -> int:
    """How many parts of a target's cases a test takes."""
    if test in ONE_CHUNK or targets.load(name).length is not None:
        return 1  # of the last the sweep has more
    half = test == "test_compiled_kernels_agree_with_numpy" and name != WHOLE
    return CHUNKS // 2 if half else CHUNKS


def drawn(batch: Keys, count: int = CASES) -> list[Case]:
    drew = [case(targets.load(name), seed, index) for name, seed, index in batch]
    if len(drew) <= count:
        return drew
    return sorted(drew, key=lambda c: operations(c.spec, c.schedule, c.target) > SMALL)[:count]


def fail_for(faults: Sequence[str], of: int) -> None:
    if faults:
        pytest.fail(f"{len(faults)} of {of} cases are wrong\n" + "\n".join(faults), pytrace=False)


def run(drew: list[Case], directory: Path, cases: Cases, *, emulated: bool = False) -> None:
    """Compile the cases into one program and check them all."""
    faults: list[str] = []
    good, text = generated(drew, faults)
    if good:
        names = [one.name for one in good]
        bench = lab([text], names, drew[0].target, directory, emulated=emulated)
        passed = report(bench.check, good, faults)
        cases.count(drew[0].target.name, "compiled", len(good))
        cases.count(drew[0].target.name, bench.means, passed)
    fail_for(faults, len(drew))


def test_compiled_kernels_agree_with_numpy(
    batch: Keys, tmp_path: Path, cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other batch with clang, where there is one."""
    if batch[0][2] % 2 and shutil.which("clang"):
        for variable, command in CLANG_FOR.items():
            monkeypatch.setenv(variable, command)
    run(drawn(batch), tmp_path, cases)


def test_emulated_kernels_agree_with_numpy(batch: Keys, tmp_path: Path, cases: Cases) -> None:
    """By qemu, or by the header, what this CPU has itself too."""
    run(drawn(batch, EMULATED), tmp_path, cases, emulated=True)


def test_the_interpreter_agrees_with_numpy(batch: Keys, cases: Cases) -> None:
    faults: list[str] = []
    drew = [one for one in drawn(batch)[::3] if work(one) <= INTERPRETED]
    passed = report(interpreted, drew, faults)
    cases.count(batch[0][0], "interpreted", passed)
    fail_for(faults, len(drew))


def work(one: Case) -> int:
    m, n, k = (one.size(slot, getattr(one.spec, slot)) for slot in "mnk")
    count = one.size("count", one.spec.batch.count) if one.spec.batch else 1
    lanes = one.target.of(one.spec.type)[0].lanes
    return m * n * k * count // lanes


def interpreted(one: Case) -> None:
    plan = plan_for(one.spec, one.schedule, one.target)
    program = program_for(plan)
    for kind in ("integers", "special"):
        given = operands(one, kind)
        arguments = [
            [flat for flat, _ in argument] if isinstance(argument, list) else argument
            for argument in given.arguments
        ]
        interpret(plan, program, arguments, [v for _, v in one.values], one.scalars)
        given.check(given.c)


# -- sanitizers, and arrays inside of larger ones --------------------------------------------------


def test_sanitizers_find_nothing(batch: Keys, tmp_path: Path) -> None:
    drew, faults = drawn(batch, SANITIZED), list[str]()
    good, text = generated(drew, faults)
    bench = lab([text], [c.name for c in good], drew[0].target, tmp_path, flags=SANITIZERS)
    report(bench.check, good, faults)
    fail_for(faults, len(drew))


def test_operands_may_lie_inside_of_larger_arrays(batch: Keys, tmp_path: Path) -> None:
    """At any element: only C itself is written, to the bit."""
    drew, faults = drawn(batch, INSIDE), list[str]()
    good, text = generated(drew, faults)
    target = drew[0].target
    try:
        compiler = find_compiler(target, emulated=False)
    except ToolchainError as error:
        pytest.skip(str(error))
    library = ctypes.CDLL(str(compile_library(text, target, compiler, tmp_path, "inside")))
    report(lambda one: inside(library, one), good, faults)
    fail_for(faults, len(drew))


def inside(library: ctypes.CDLL, one: Case) -> None:
    given = operands(one, "integers")
    around, pointers, keep = 0, list[int](), list[list[tuple[Any, int]]]()
    for index, argument in enumerate(given.arguments):
        flats = [flat for flat, _ in argument] if isinstance(argument, list) else [argument]
        held = [surrounded(flat, before=index * 3 + 1 + i) for i, flat in enumerate(flats)]
        places = [array.ctypes.data + at * array.itemsize for array, at in held]
        keep.append(held)
        if isinstance(argument, list):
            table = (ctypes.c_void_p * max(1, len(places)))(*places)
            keep.append([(table, 0)])
            pointers.append(ctypes.addressof(table))
        else:
            pointers.append(places[0])
        if argument is given.c:
            around = len(keep) - 1
    values = [value for _, value in one.values]
    sizes = (ctypes.c_int64 * max(1, len(values)))(*values)
    scratch_bytes = getattr(library, f"{one.name}_scratch_bytes")
    scratch_bytes.restype = ctypes.c_int64
    scratch = np.empty(scratch_bytes(sizes) + 64, np.uint8)
    getattr(library, f"{one.name}_invoke")(
        (ctypes.c_void_p * len(pointers))(*pointers),
        sizes,
        (ctypes.c_double * max(1, len(one.scalars)))(*one.scalars),
        ctypes.c_void_p(-(-scratch.ctypes.data // 64) * 64),
    )
    (array, at) = keep[around][0]
    given.check(array[at : at + given.c.size])
    outside = np.concatenate([array[:at], array[at + given.c.size :]])
    assert (outside == PADDING).all(), "the kernel wrote outside of C"


def surrounded(flat: np.ndarray, before: int) -> tuple[np.ndarray, int]:
    """A copy of ``flat`` with ``before`` elements in front of it and as many behind."""
    whole = np.full(flat.size + 2 * before, PADDING).astype(flat.dtype)
    whole[before : before + flat.size] = flat
    return whole, before


# -- the cases themselves --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in VECTOR_TARGETS]
)
def test_the_cases_cover_the_space(name: str, pytestconfig: pytest.Config) -> None:
    """What the factors promise must not get lost where levels meet, or schedules are refused."""
    target = targets.load(name)
    drew = [case(target, pytestconfig.option.seed, i) for i in range(CASES)]
    seen = Counter(feature for one in drew for feature in features(one))
    every = [
        *(("orders", orders) for orders in LEVELS["orders"]),
        *(("type", type_) for type_ in ("f32", "f64")),
        *((factor, x) for factor in ("alpha", "beta") for x in set(LEVELS[factor])),
        *(("batch", kind) for kind in ("NoneType", "Strided", "Offsets", "Addresses")),
        *(("count", x) for x in ("0", "1", "more", "run time")),
        *(("run-time", s) for s in ("m", "n", "k", "lda", "ldb", "ldc", "stride_a", "count")),
        *(("tails", tails) for tails in TAILS),
        *(("vectorize", x) for x in (None, "m", "n", "k")),
        *(("schedule", x) for x in ("default", "tile", "loops", "block", "k_unroll", "k_split")),
        *(("pack", x) for x in ("a", "b", "ab")),
        *(("outer", letter) for letter in "bk"),
        *(("empty", slot) for slot in "mnk"),
        ("loops", "mnkmnk"),
    ]  # fmt: skip
    missing = [feature for feature in every if not seen[feature]]
    assert not missing


def features(one: Case) -> Iterable[tuple[str, object]]:
    spec, schedule = one.spec, one.schedule
    yield "orders", "".join(getattr(spec, name).order for name in "abc")
    yield "type", spec.type
    yield "alpha", spec.alpha
    yield "beta", spec.beta
    yield "batch", type(spec.batch).__name__
    if spec.batch:
        count = spec.batch.count
        yield "count", ("0", "1", "more")[min(2, count)] if isinstance(count, int) else "run time"
    yield from (("run-time", slot) for slot, _ in one.values)
    yield "tails", schedule.tails
    yield "vectorize", schedule.vectorize
    yield "pack", schedule.pack
    for name in ("tile", "loops", "block", "k_unroll", "k_split"):
        if getattr(schedule, name):
            yield "schedule", name
    if schedule.loops:
        yield "loops", schedule.loops.replace("b", "")
        outer = schedule.loops[: max(map(schedule.loops.rfind, "mn"))]
        yield from (("outer", letter) for letter in "bk" if letter in outer)
    if schedule == type(schedule)():
        yield "schedule", "default"
    yield from (("empty", s) for s in "mnk" if one.size(s, getattr(spec, s)) == 0)
