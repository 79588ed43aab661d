"""Who may import whom, read from the source: a new edge between packages is a decision, not an accident."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ebrl"

ALLOWED: dict[str, set[str]] = {
    "": set(),
    "ids": set(),
    "errors": set(),
    "registry": {"errors"},
    "config": {"errors"},
    "scheduling": {"ids"},
    "resources": {"ids", "errors"},
    "plan": {"config", "resources"},
    "data": {"errors"},
    "envs": {"data", "errors"},
    "policies": {"data", "registry"},
    "algorithms": {"data", "policies.base", "registry"},
    "workers": {"data", "envs.base", "policies.base", "algorithms.base", "registry", "errors"},
    "host": {"resources", "plan"},
    "runtime": {"scheduling"},
    "engines": {"runtime", "workers", "host", "data", "scheduling", "envs.base", "ids", "errors", "registry"},
    "records": {"scheduling"},
    "report": {"records"},
}
"""Package → what of ebrl it may import besides itself; a dotted name allows that module only."""

FREE = {"cli", "bench", "testing"}
"""May import everything; of these, only the last is imported by nobody but tests and the command line."""

PURE = {"scheduling", "resources"}
PURE_MAY_IMPORT = {
    "__future__",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "math",
    "statistics",
    "typing",
}

TYPES_ONLY = {("data", "algorithms.base"), ("data", "policies.base")}
"""Edges that exist for the type checker alone."""

MODULES = sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    """First part of the module's name below ebrl; empty for ebrl itself."""
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every module the file imports, and whether only a type checker sees it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in guarded
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in guarded


def covers(allowed: str, imported: str) -> bool:
    return imported == allowed or imported.startswith(allowed + ".")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_its_package_may(path: Path) -> None:
    package = package_of(path)
    if package in FREE:
        return
    for name, types_only in imports(path):
        if not name.startswith("ebrl."):
            continue
        target = name.removeprefix("ebrl.")
        allowed = {package, *ALLOWED[package]} - {""}
        if types_only:
            allowed |= {edge[1] for edge in TYPES_ONLY if edge[0] == package}
        assert any(covers(one, target) for one in allowed), f"{package or 'ebrl'} may not import ebrl.{target}"


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if package_of(path) in PURE],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_control_has_neither_clock_nor_chance_nor_libraries(path: Path) -> None:
    for name, _ in imports(path):
        top = name.split(".")[0]
        assert top == "ebrl" or top in PURE_MAY_IMPORT, f"control may not import {name}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"time", "random", "__import__", "open", "exec", "eval"}


def test_the_table_names_every_package() -> None:
    there = {package_of(path) for path in MODULES}
    assert there - {""} <= set(ALLOWED) | FREE


def test_nothing_below_leans_on_the_command_line() -> None:
    assert not FREE & {one.split(".")[0] for allowed in ALLOWED.values() for one in allowed}
    assert set(PURE_MAY_IMPORT) <= {*sys.stdlib_module_names}
