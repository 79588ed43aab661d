"""``__all__`` says exactly what is public."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import ebrl
from ebrl.config.load import load_config
from ebrl.config.schema import RunConfig
from ebrl.errors import EbrlError
from ebrl.runtime.session import evaluate, train

SOURCE = Path(ebrl.__file__).parent
WITH_ALL = sorted(
    path.relative_to(SOURCE.parent).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if "__all__" in path.read_text() and path.name != "__main__.py"
)


def test_the_package_offers_the_verbs_of_the_command_line() -> None:
    assert (ebrl.load, ebrl.train, ebrl.evaluate) == (load_config, train, evaluate)
    assert (ebrl.RunConfig, ebrl.EbrlError) == (RunConfig, EbrlError)
    assert sorted(ebrl.__all__) == dir(ebrl)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ebrl' has no attribute 'trian'"):
        _ = ebrl.trian


@pytest.mark.parametrize("name", WITH_ALL)
def test_every_name_in_all_exists(name: str) -> None:
    module = importlib.import_module(name)
    assert [public for public in module.__all__ if not hasattr(module, public)] == []


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_the_all_of_a_package_is_what_it_has(path: Path) -> None:
    """Names that a package's ``__init__`` binds at its top level, type-checking imports included."""
    bound: set[str] = set()
    listed: list[str] = []
    for node in _top_level(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name == "__all__":
                listed = ast.literal_eval(node.value)
            else:
                bound.add(name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ebrl"):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
    public = {name for name in bound if not name.startswith("_") or name == "__version__"}
    assert set(listed) == public


def _top_level(tree: ast.Module) -> list[ast.stmt]:
    inner = [node for outer in tree.body if isinstance(outer, ast.If) for node in outer.body]
    return [*tree.body, *inner]
