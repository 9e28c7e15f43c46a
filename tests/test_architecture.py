"""What the design promises of the sources: one direction of flow, one place per decision."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import jinja2
import jinja2.meta
import pytest
from support.source_tree import ROOMS, ROOT, Module, modules, room_of, templates

from tilewright import targets
from tilewright.spec.types import ITEMSIZE

#: What uses tilewright as its users do.
OUTSIDE = ("examples", "cli")
FACADE = "tilewright"  # dsl/__init__.py gathers the public names from everywhere
MAX_MODULE_LINES = 600
MAX_TEMPLATE_LINES = 150
MAX_FILES_OF_A_FOLDER = 16

MODULES = modules()
KNOWN = frozenset(module.name for module in MODULES)
AROUND = [
    path for room in ("tests", "benchmarks", "scripts") for path in ROOT.glob(f"{room}/**/*.py")
]
SOURCES = sorted({*AROUND, *(module.path for module in MODULES)})
every_module = pytest.mark.parametrize("module", MODULES, ids=lambda m: m.name)


def own_imports(module: Module) -> Iterator[tuple[str, int]]:
    for name, line in module.imports(KNOWN):
        if name == FACADE or name.startswith(f"{FACADE}."):
            yield name, line


def place(module: Module, line: int) -> str:
    return f"{module.path.relative_to(ROOT)}:{line}"


# -- one direction ------------------------------------------------------------------------------


def test_every_module_has_a_room_and_every_room_a_module() -> None:
    homes = {room_of(m.name): m for m in MODULES if m.path.name != "__init__.py"}
    assert "" not in homes, f"{homes[''].name} is in no room: give it one in ROOMS"
    assert set(homes) | {"templates"} == set(ROOMS)


@every_module
def test_a_module_imports_only_from_its_own_room_and_those_before(module: Module) -> None:
    if module.name == FACADE:
        return
    mine = room_of(module.name)
    for name, line in own_imports(module):
        at = place(module, line)
        if name == FACADE:
            assert mine in OUTSIDE, f"{at}: imports the facade"
            continue
        theirs = room_of(name) or "examples"
        assert ROOMS.index(theirs) <= ROOMS.index(mine), (
            f"{at}: {module.name} imports {name}, whose room comes later"
        )


def test_a_folder_shows_the_flow() -> None:
    counts: dict[Path, int] = {}
    for path in [*SOURCES, *templates()]:
        if path.name != "__init__.py":
            counts[path.parent] = counts.get(path.parent, 0) + 1
    crowded = {str(f.relative_to(ROOT)): n for f, n in counts.items() if n > MAX_FILES_OF_A_FOLDER}
    assert not crowded, "these folders hold more files than a reader takes in: make rooms"


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {
        module.name: {name for name, _ in own_imports(module)} - {module.name}
        for module in MODULES
        if module.name != FACADE
    }
    circle = sorted(name for name in graph if name in _reachable(graph, name))
    assert not circle, f"these import each other: {', '.join(circle)}"


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    left = set(graph[start])
    while left:
        reached |= left
        left = {inner for name in left for inner in graph.get(name, ())} - reached
    return reached


# -- one place per decision ---------------------------------------------------------------------


def test_lowering_inherits_at_most_once() -> None:
    """A class of ``lower`` has no base class that itself has a base class there."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for module in MODULES
        if room_of(module.name).startswith("lower.")
        for node in ast.walk(ast.parse(module.path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert bases["OuterProduct"] == {"KStep"}
    deep = [name for name, own in bases.items()
            if any(bases[base] & bases.keys() for base in own & bases.keys())]  # fmt: skip
    assert not deep


@every_module
def test_only_render_imports_jinja2(module: Module) -> None:
    if module.name != "tilewright.emit.render":
        assert "jinja2" not in {name.partition(".")[0] for name, _ in module.imports(KNOWN)}


@every_module
def test_only_settings_reads_the_environment(module: Module) -> None:
    if module.name == "tilewright.settings":
        return
    found = [place(module, line) for line in module.environment_reads()]
    assert not found, "ask settings(); a child process may be given {**os.environ, ...}"


C_TEXT = re.compile(
    r"""
    \#\s*(include|define|pragma|ifn?def|endif)\b
  | _mm\d*_ | __m(128|256|512)|__mmask | __builtin_ | __attribute__ | __asm__
  | \bv(ld|st|fma|fms|dup|add|mul|sub|get|set|trn|zip|uzp|combine|reinterpret)\w*_[fsu](16|32|64)\b
  | \b(static|extern|inline|typedef|volatile)\s+(const|inline|void|char|u?int|float|double|struct)
  | \bconst\s+(void|char|int\w*|uint\w*|float|double|size_t)\b
  | \b(void|char|int|u?int\d+_t|size_t|float|double)\s*\*?\s*\w+\s*(=[^=]|;|\[[^]]*\]\s*[=;]|\()
  | \b(for|while|if|switch)\s*\(.*\)\s*(\{(?!\})|$)
  | \breturn\b[^;]*;
  | ;\s*(\n|\}) | \)\s*\{\s*(\n|$) | ^\s*\}\s*$
  | /\*.*\*/
    """,
    re.VERBOSE | re.DOTALL,
)


@pytest.mark.parametrize(
    "text",
    [
        "#include <stdint.h>",
        "_mm256_loadu_ps({})",
        "vld1q_f32({})",
        "__builtin_fmaf({}, {}, {})",
        "for (int64_t i = 0; i < {}; ++i) {",
        "float acc[8];",
        "const float *a",
        "void {}(void) {\n",
        "{} = {};\n",
        "/* {} */",
        "double x = 0",
        "return 0;",
    ],
)
def test_c_text_is_recognised(text: str) -> None:
    assert C_TEXT.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "lda is smaller than a contiguous line; give lda=tw.dim('lda')",
        "an int, 0 or more",
        "all f32 or all f64",
        "int64_t",
        "int64_t[]",
        "void *",
        "float (f32) or double (f64)",
        "not for (you); try again",
        "{}: return value {}",
        "tile {}x{} needs {} vector registers on {} ({} accumulators); it has {}",
    ],
)
def test_prose_is_no_c_text(text: str) -> None:
    assert not C_TEXT.search(text)


@every_module
def test_c_text_lives_in_templates_and_targets(module: Module) -> None:
    if room_of(module.name) == "targets":
        return
    found = [
        f"{place(module, line)}: {text!r}" for text, line in module.strings() if C_TEXT.search(text)
    ]
    assert not found, "C text belongs in templates/ or, as a spelling, in targets/"


ISA_WORD = re.compile(
    r"(?i)(?<![a-z])(avx\d*|sse\d*|amx|neon|asimd|sve2?|sme2?|vsx|rvv|[xyz]mm)(?![a-z])"
)


@every_module
def test_the_language_names_no_instruction_set(module: Module) -> None:
    if ROOMS.index(room_of(module.name) or "cli") > ROOMS.index("generate"):
        return
    for text, line in [*module.strings(), *module.names()]:
        assert not ISA_WORD.search(text.replace("_", " ")), f"{place(module, line)}: {text!r}"


#: Names of targets, features and matrix units; not those that are words of the language as well.
NAMES_OF_HARDWARE = {
    *targets.NAMES,
    *(name for target in map(targets.load, targets.NAMES) for name in target.features),
    *(unit.name for target in map(targets.load, targets.NAMES) if (unit := target.matrix)),
} - {"scalar", "acc", *ITEMSIZE}


@every_module
def test_no_branch_is_on_a_name_of_hardware(module: Module) -> None:
    """A new target or matrix unit is data: nothing elsewhere asks what one is called."""
    if room_of(module.name) == "targets":
        return
    for text, line in module.compared():
        assert text not in NAMES_OF_HARDWARE, f"{place(module, line)}: {text!r}"


# -- sizes, and nothing unused ------------------------------------------------------------------


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines < MAX_MODULE_LINES


@pytest.mark.parametrize("template", templates(), ids=lambda path: path.name)
def test_a_template_is_short(template: Path) -> None:
    lines = len(template.read_text().splitlines())
    assert lines < MAX_TEMPLATE_LINES


def test_every_template_is_used() -> None:
    environment = jinja2.Environment(autoescape=False)
    folder, find = ROOT / "templates", jinja2.meta.find_referenced_templates
    needs = {
        path.relative_to(folder).as_posix(): set(find(environment.parse(path.read_text())))
        for path in templates()
    }
    named = re.compile(r"\w[\w./]*\.j2")
    used = {text for module in MODULES for text, _ in module.strings() if named.fullmatch(text)}
    missing = used - needs.keys()
    assert not missing, f"named in Python, not in templates/: {missing}"
    reached: set[str] = set()
    while used:
        name = used.pop()
        reached.add(name)
        used |= {inner for inner in needs[name] if inner is not None} - reached
    assert reached == needs.keys(), f"never rendered: {sorted(needs.keys() - reached)}"
