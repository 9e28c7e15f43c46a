"""tilewright's own sources, read for the tests of its architecture."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The rooms, first to last: a module imports only from its own room and those before it.
ROOMS = (
    "errors", "keywords", "settings", "spec", "nn", "symbolic", "isa", "elementwise", "ir", "plan",
    "lower.vectors", "lower.tile", "lower.move_access", "lower.move_tile", "lower.move",
    "lower.transpose", "lower.rows", "lower.staging", "lower.pack_b", "lower.nest",
    "lower.pack_quantized", "lower.stack", "interpret", "explain", "routines", "emit", "generate",
    "targets", "templates",
    "runtime.store", "runtime.machine", "runtime.tuned", "runtime.build", "runtime.arrays",
    "runtime.quantized", "runtime.call", "runtime.threads", "runtime.emulate", "runtime.reference",
    "runtime.bench",
    "runtime.edited", "runtime.pickled", "runtime.callable_kernel", "runtime.kernel",
    "runtime.packers", "runtime.operators", "runtime.several", "runtime.imported",
    "runtime.network_kernel", "runtime.driver",
    "runtime.matmul", "runtime.harness", "runtime.library", "runtime.calibrate", "runtime.fuzz",
    "tuning", "torch", "jax", "onnx", "examples", "cli", "__main__",
)  # fmt: skip


def rooms() -> dict[str, str]:
    """Package to folder, as pyproject.toml maps them."""
    text = (ROOT / "pyproject.toml").read_text()
    mapping: dict[str, str] = tomllib.loads(text)["tool"]["setuptools"]["package-dir"]
    return mapping


@dataclass(frozen=True)
class Module:
    """One source file: its module name and its syntax tree."""

    name: str
    path: Path

    @property
    def package(self) -> str:
        """The package it lies in; a package's own ``__init__`` lies in the package."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.path.read_text(), self.path.name)

    def compared(self) -> Iterator[tuple[str, int]]:
        """Each text that something is compared with, and its line."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Compare() | ast.MatchValue():
                    asked: ast.AST = node
                case ast.Call(func=ast.Attribute(attr="startswith" | "endswith")):
                    asked = node
                case _:
                    continue
            texts = (one for one in ast.walk(asked) if isinstance(one, ast.Constant))
            yield from ((one.value, one.lineno) for one in texts if isinstance(one.value, str))

    def imports(self, known: frozenset[str]) -> Iterator[tuple[str, int]]:
        """Each imported module and its line; ``from x import y`` is x.y if that is known."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = self.package.split(".")
                    base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    yield (inner if inner in known else base), node.lineno

    def strings(self) -> Iterator[tuple[str, int]]:
        """Each string that is no docstring, with its line; an f-string's holes read ``{}``."""
        inside = _docstrings(self.tree)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.JoinedStr):
                inside |= {id(part) for part in ast.walk(node)} - {id(node)}
        for node in ast.walk(self.tree):
            if id(node) in inside:
                continue
            if isinstance(node, ast.JoinedStr):
                yield _text(node), node.lineno
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value, node.lineno

    def names(self) -> Iterator[tuple[str, int]]:
        """Each identifier with its line."""
        for node in ast.walk(self.tree):
            for field in ("id", "attr", "arg", "name"):
                value = getattr(node, field, None)
                if isinstance(value, str):
                    yield value, getattr(node, "lineno", 0)

    def environment_reads(self) -> Iterator[int]:
        """Lines that read the environment; a copy made for a child, ``{**os.environ}``, is none."""
        copies = {
            id(value)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Dict)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is None
        }
        for node in ast.walk(self.tree):
            name = getattr(node, "attr", None) or getattr(node, "id", None)
            if name in ("environ", "environb", "getenv", "expandvars") and id(node) not in copies:
                yield node.lineno  # type: ignore[attr-defined]


def _docstrings(tree: ast.Module) -> set[int]:
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _text(joined: ast.JoinedStr) -> str:
    return "".join(
        part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "{}"
        for part in joined.values
    )


def modules() -> list[Module]:
    """Every module of every room."""
    found = []
    for package, folder in rooms().items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            parts = inner[:-1] if path.name == "__init__.py" else inner
            found.append(Module(".".join((package, *parts)), path))
    return found


def templates() -> list[Path]:
    """Every jinja2 template."""
    return sorted((ROOT / "templates").rglob("*.j2"))


def room_of(name: str) -> str:
    """The room of a module, ``""`` for a package that only holds rooms."""
    inner = name.removeprefix("tilewright.")
    return next((room for room in ROOMS if f"{inner}.".startswith(f"{room}.")), "")


def room_file(room: str) -> Path:
    """The module that is a room, or the ``__init__`` of the package that is one."""
    mapped = rooms().get(f"tilewright.{room}")
    if mapped is not None:
        return ROOT / mapped / "__init__.py"
    base, _, inner = room.partition(".")
    folder = ROOT / base if (ROOT / base).is_dir() and base != "dsl" else ROOT / "dsl" / base
    path = folder.joinpath(*inner.split(".")) if inner else folder
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
