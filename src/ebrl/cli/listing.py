"""``ebrl list``."""

from __future__ import annotations

import enum
import inspect
from typing import Annotated, Any

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json


class What(enum.StrEnum):
    """What can be listed."""

    ENVS = "envs"
    POLICIES = "policies"
    ALGORITHMS = "algorithms"
    DEVICES = "devices"


_KIND = {What.ENVS: "env", What.POLICIES: "policy", What.ALGORITHMS: "algorithm"}


def list_plugins(
    what: Annotated[What, typer.Argument(help="What to list.")],
    every: Annotated[bool, typer.Option("--all", help="Also every task of a family such as metaworld/*.")] = False,
    json: Json = False,
) -> Answer:
    """List what is installed, one line each."""
    entries = _devices() if what is What.DEVICES else _plugins(_KIND[what], every=every or json)
    return Answer({what.value: entries}, _text(entries))


def _plugins(kind: str, *, every: bool) -> list[dict[str, Any]]:
    from ebrl.registry import load, names

    entries = []
    for name in names(kind):
        entry: dict[str, Any] = {"name": name, "available": True}
        entries.append(entry)
        try:
            cls, _ = load(kind, name)
        except Exception as error:  # a broken plug-in must not hide the others
            entry |= {"available": False, "description": f"cannot be imported: {error}"}
            continue
        entry["description"] = (inspect.getdoc(cls) or "no description").splitlines()[0]
        if not getattr(cls, "verified", True):
            entry |= {"verified": False, "unverified_because": cls.unverified_because}
            entry["description"] += f" Not run against the real simulator: {cls.unverified_because}"
        if kind == "env":
            entry |= _interpreter(name)
        if every and name.endswith("/*") and hasattr(cls, "tasks"):
            entry["tasks"] = [name.removesuffix("*") + task for task in _tasks(cls)]
    return entries


def _interpreter(name: str) -> dict[str, Any]:
    """Which interpreter the environment runs under, or what to do for it to have one."""
    from ebrl.errors import UsageError
    from ebrl.host.simulators import python_for

    try:
        return {"python": python_for(name)}
    except UsageError as error:
        return {"available": False, "python": None, "advice": str(error)}


def _tasks(cls: Any) -> list[str]:
    try:
        return list(cls.tasks())
    except Exception:  # its library is not installed
        return []


def _devices() -> list[dict[str, Any]]:
    from ebrl.host.probe import machine

    facts = machine()
    text = f"{facts['usable_cpus']} usable logical processors, {facts['cpu_model']}"
    entries: list[dict[str, Any]] = [{"name": "cpu", "available": True, "description": text}]
    try:
        import torch
    except ImportError as error:
        return [*entries, {"name": "cuda", "available": False, "description": f"torch cannot be imported: {error}"}]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        text = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        entries.append({"name": f"cuda:{index}", "available": True, "description": text})
    return entries


def _text(entries: list[dict[str, Any]]) -> str:
    width = max((len(entry["name"]) for entry in entries), default=0)
    lines = []
    for entry in entries:
        lines.append(f"{entry['name']:{width}}  {entry['description']}")
        if "advice" in entry:
            lines.append(f"{'':{width}}  → {entry['advice']}")
        lines += [f"  {task}" for task in entry.get("tasks", [])]
    return "\n".join(lines) or "none installed"
