"""Who may import whom, read from the source: a new edge between packages is a decision, not an accident."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ebrl"

ALLOWED: dict[str, set[str]] = {
    "ids": set(),
    "errors": set(),
    "registry": {"errors"},
    "config": {"errors"},
    "scheduling": {"ids", "resources"},
    "resources": {"ids"},
    "plan": {"config", "scheduling", "resources", "ids", "errors"},
    "data": {"errors"},
    "envs": {"data", "errors"},
    "policies": {"data"},
    "algorithms": {"policies.base"},
    "workers": {"data", "envs.base", "policies.base", "algorithms.base", "registry", "errors"},
    "host": {"errors", "ids", "resources"},
    "runtime": {
        "config",
        "data",
        "engines.local",
        "engines.virtual",
        "envs.base",
        "errors",
        "host",
        "plan",
        "policies.base",
        "profiling.sections",
        "profiling.workload",
        "records",
        "registry",
        "report",
        "resources",
        "scheduling",
        "workers.building",
        "ids",
    },
    "engines": {"data", "scheduling", "resources", "envs.base", "ids", "errors", "host"},
    "profiling": {
        "config",
        "engines.local",
        "errors",
        "host",
        "ids",
        "plan",
        "records",
        "resources",
        "runtime.local",
        "runtime.loop",
        "scheduling",
        "registry",
    },
    "records": {"errors", "scheduling", "resources.decoding"},
    "report": {"errors", "records", "scheduling"},
}
"""Package → what of ebrl it imports besides itself; a dotted name allows that module only.

What DESIGN.md section 4 allows and nobody uses yet is not here: whoever needs it adds it.
"""

FOR_TYPES: dict[str, set[str]] = {"data": {"algorithms.base", "policies.base"}}
"""The same for imports that only a type checker sees."""

FREE = {"", "__main__", "bench", "cli", "testing"}
"""May import everything; nothing below leans on them."""

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


def edges(path: Path) -> Iterator[tuple[str, bool]]:
    """What the module imports of other packages of ebrl, by its name below ebrl."""
    for name, types_only in imports(path):
        below = name.removeprefix("ebrl.")
        if name == "ebrl" or (below != name and below.split(".")[0] != package_of(path)):
            yield below, types_only


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_its_package_may(path: Path) -> None:
    package = package_of(path)
    if package in FREE:
        return
    for target, types_only in edges(path):
        allowed = ALLOWED[package] | (FOR_TYPES.get(package, set()) if types_only else set())
        assert any(covers(one, target) for one in allowed), f"{package} may not import ebrl.{target}"


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_may_import_no_more_than_it_does(package: str) -> None:
    used = {target for path in MODULES if package_of(path) == package for target, _ in edges(path)}
    allowed = ALLOWED[package] | FOR_TYPES.get(package, set())
    assert [one for one in sorted(allowed) if not any(covers(one, target) for target in used)] == []


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
    assert {package_of(path) for path in MODULES} == set(ALLOWED) | FREE
