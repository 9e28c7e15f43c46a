"""Every template is needed, is reached in all its branches, and does the printing itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import jinja2
import jinja2.nodes
import numpy as np
import pytest
from support.compilers import TARGETS
from support.source_tree import ROOT, templates
from support.specimens import SPECIMENS, specimens

import tilewright.emit.render
import tilewright.generate
from tilewright import targets
from tilewright.emit.listing import Macros
from tilewright.emit.parallel import joined
from tilewright.emit.render import render
from tilewright.errors import PlanError
from tilewright.generate import Request, generate, header, plan_for, program_for
from tilewright.ir.nest import NestNode
from tilewright.ir.nodes import inside, walk
from tilewright.ir.ops import MultiplyAdd, Op
from tilewright.ir.values import Operation
from tilewright.isa.target import Target
from tilewright.runtime.bench import peak
from tilewright.runtime.bench.peak_program import peak_program
from tilewright.runtime.calibrate import loops
from tilewright.runtime.call import dispatch_build
from tilewright.runtime.harness import harness
from tilewright.runtime.library import make
from tilewright.runtime.quantized.quantize import quantize
from tilewright.runtime.threads import build as threads_build
from tilewright.spec.gemm import Gemm
from tilewright.spec.network.tensor import Tensor
from tilewright.spec.network.trace import network
from tilewright.spec.operands import Matrix, Packed
from tilewright.spec.schedule import Schedule

COLUMNS = Matrix("f32", "F")
HALVES = targets.load("avx512").having(["fp16"])
#: Each thread packs blocks of B that do not fit its stack.
PACKING = Schedule(loops="Nnmk", block={"n": 64}, pack="b")
LAYER = network(lambda x, w: x @ w.b)
#: A kernel that notes the times of its stages.
TIMED = LAYER.of(x=Tensor("f32", (2, 3)), w={"b": Tensor("f32", (3, 2))}), Schedule()
TEXTS = {path.relative_to(ROOT / "templates").as_posix(): path.read_text() for path in templates()}
every_template = pytest.mark.parametrize("name", TEXTS)


def library(target: str) -> str:
    chosen = specimens(target)
    return generate([Request(n, *SPECIMENS[n], targets.load(target)) for n in chosen]).text


#: The folders of what a library in C is made of.
OF_LIBRARIES = ("library/", "project/", "selftest/", "threads/elsewhere", "threads/compiled")


def rendered(name: str) -> list[str]:
    """Whatever tilewright makes of its templates, as far as ``name`` may be a part of it."""
    if name.startswith(OF_LIBRARIES):
        packed = Gemm(1, 16, 1, a="s8", b=Packed("s8"))
        parallel = Gemm(64, 64, 64), Schedule(loops="NMk")
        weights = {"b": np.ones((3, 2), np.float32)}
        low = {"b": quantize(np.ones((32, 8), np.float32), "q4_0")}
        large = {"b": np.ones((520, 512), np.float32)}  # more than 1 MiB: in a file
        family = [Gemm(1, 1, 1), Gemm(2, 1, 1)]
        kernels = {"family": family, "packed": packed, "loop": parallel}
        several = ["amx", "neon", "power10", "rvv256"]
        layers = {
            "layer": LAYER.of(x=Tensor("f32", (2, 3)), w=weights),
            "low": LAYER.of(x=Tensor("f32", (2, 32)), w=low),
            "large": LAYER.of(x=Tensor("f32", (2, 520)), w=large),
        }
        given = {"layer": weights, "low": low, "large": large}
        made = [
            make.library("lib", kernels, targets=several, jobs=1),
            make.library("net", layers, targets=["scalar"], jobs=1, weights=given),
        ]
        return [text for library in made for text in library.files.values()]
    return [
        library("avx2"),
        library("amx"),
        library("sme"),
        generate([Request("f16", Gemm(2, 32, 4, a="f16", c="f16"), Schedule(), HALVES)]).text,
        generate([Request("timed", *TIMED, targets.load("scalar"), stamped=True)]).text,
        generate([Request("packs", Gemm(1, 128, 256), PACKING, targets.load("scalar"))]).text,
        header([Request("f", Gemm(2, 3, 4), Schedule(), targets.load("scalar"))], "f"),
        harness(Gemm(2, 3, 4, a="bf16", d="bf16"), target="scalar"),
        harness(Gemm(2, 3, 4), target="scalar", bench=True),
        peak_program("scalar"),
        peak.peak_source(targets.load("avx2"), ("f32", "f32")),
        peak.peak_source(targets.load("amx"), ("u8", "s8")),
        peak.peak_source(targets.load("sme"), ("f32", "f32")),
        loops.source(targets.load("avx2")),
        dispatch_build.source(),
        threads_build.source(),
        render("dispatch/dispatch.h.j2"),
        render("runner/runner.c.j2", names=["kernel"]),
        render("digest/digest.c.j2", few=1),
        render("jax/handler.c.j2", arrays=4),
        render("emulation/x86.h.j2"),
        render("emulation/amx.h.j2"),
    ]


@lru_cache(maxsize=2)
def as_it_is(of_libraries: bool) -> list[str]:
    return rendered(OF_LIBRARIES[0] if of_libraries else "")


@every_template
def test_without_a_template_something_is_missing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = as_it_is(name.startswith(OF_LIBRARIES))
    environment = tilewright.emit.render._environment().overlay()
    own = environment.loader
    assert own is not None
    environment.loader = jinja2.ChoiceLoader([jinja2.DictLoader({name: ""}), own])
    environment.cache = None
    monkeypatch.setattr(tilewright.emit.render, "_environment", lambda: environment)
    try:
        changed = rendered(name) != whole
    except jinja2.UndefinedError:
        changed = True
    assert changed


# -- every branch is taken -------------------------------------------------------------------------


def nodes(nest: tuple[NestNode, ...]) -> Iterator[NestNode]:
    for node in nest:
        yield node
        yield from nodes(inside(node))


def poorer() -> Target:
    """A target whose vectors cannot be transposed: no shipped one is like that."""
    whole = targets.load("avx2")
    return replace(whole, vectors=tuple(replace(v, transpose={}) for v in whole.vectors))


@lru_cache(maxsize=1)
def used() -> tuple[set[str], list[Op]]:
    """The kinds of nodes in all specimens' programs, and their operations."""
    programs = [
        program_for(plan_for(spec, schedule, targets.load(target)))
        for target in TARGETS
        for spec, schedule in (SPECIMENS[name] for name in specimens(target))
    ]
    programs.append(program_for(plan_for(Gemm(4, 4, 24, b=COLUMNS), Schedule(), poorer())))
    halves = Gemm(1, 64, 4, a="f16", b=Packed("f16"))  # picked where conversions have units apart
    programs.append(
        program_for(plan_for(halves, Schedule(), targets.load("avx512").having(["zen5"])))
    )
    timed = plan_for(*TIMED, targets.load("scalar"))
    programs.append(program_for(timed, stamped=True))
    operations = [
        op for program in programs for tile in program.tiles for op in walk(tile.body + tile.end)
    ]
    nests = [nest for program in programs for nest in (program.nest, joined(program).nest)]
    kinds = {node.kind for nest in nests for node in nodes(nest)}
    listings = [Macros().listing(tile) for program in programs for tile in program.tiles]
    kinds |= {op.kind for each in listings for op in walk(each.body + each.end)}
    return kinds | {op.kind for op in operations}, operations


@pytest.mark.parametrize("name", ["kernel/ops.c.j2", "kernel/nest.c.j2"])
def test_every_kind_of_node_is_printed_in_some_golden_file(name: str) -> None:
    printed = set(re.findall(r'\b(?:op|n|node)\.kind == "(\w+)"', TEXTS[name]))
    assert printed
    # What only a feature of SVE has is compiled and run in tests/targets/test_sve_code.py.
    assert printed - {"unzip"} <= used()[0], "add a specimen that has it"


def test_every_form_of_access_and_multiply_add_is_printed_in_some_golden_file() -> None:
    operations = used()[1]
    for kind in ("load", "store"):
        assert {active(op) for op in operations if op.kind == kind} == {"all", "some", "mask"}
    forms = {op.op.form for op in operations if isinstance(op, MultiplyAdd)}
    assert forms == {"broadcast", "scalar", "lane", "memory"}


def active(op: Any) -> str:
    if op.active is None:
        return "all"
    return "some" if isinstance(op.active, int) else "mask"


# -- C is written by templates ---------------------------------------------------------------------


@every_template
def test_a_template_prints_more_than_it_is_given(name: str) -> None:
    """It has text of its own between the holes: punctuation of C, and words."""
    tree = jinja2.Environment(autoescape=False).parse(TEXTS[name])
    own = "".join(node.data for node in tree.find_all(jinja2.nodes.TemplateData))
    assert re.search(r"[;{}=(]", own)
    assert len(re.findall(r"\w+", own)) > 10


def strings(value: Any, seen: set[int]) -> Iterator[str]:
    """Every string that a template could print of ``value``."""
    if id(value) in seen or isinstance(value, Target):  # a target's spellings are C by intent
        return
    seen.add(id(value))
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from strings(key, seen)
            yield from strings(inner, seen)
    elif isinstance(value, (tuple, list, set, frozenset)):
        for inner in value:
            yield from strings(inner, seen)
    elif is_dataclass(value) and "isa" not in type(value).__module__:
        for field in fields(value):
            yield from strings(getattr(value, field.name), seen)


@pytest.mark.parametrize("target", [name for name in TARGETS if specimens(name)])
def test_no_statement_is_made_in_python(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Mapping[str, Any]] = []

    def spy(template: str, **context: Any) -> str:
        given.append(context)
        return render(template, **context)

    monkeypatch.setattr(tilewright.generate, "render", spy)
    library(target)
    (context,) = given
    specs = {kernel.spec_text for kernel in context["kernels"]}  # outputs are a dict in Python
    texts = set(strings(context, set())) - specs
    assert not [text for text in texts if re.search(r"[;{}\n]|/\*|\*/", text)]


@dataclass(frozen=True, slots=True)
class Unknown(Operation):
    """An operation that no template knows."""

    kind: ClassVar[str] = "unknown"


def test_a_kind_without_a_branch_is_refused() -> None:
    macro = "{% from 'kernel/ops.c.j2' import operation %}{{ operation(op, 0) }}"
    environment = tilewright.emit.render._environment()
    with pytest.raises(PlanError, match="unknown cannot be written in C"):
        environment.from_string(macro).render(op=Unknown())
    macro = "{% from 'kernel/nest.c.j2' import node %}{{ node(none, op, 0) }}"
    with pytest.raises(PlanError, match="unknown cannot be written in C"):
        environment.from_string(macro).render(op=Unknown())
