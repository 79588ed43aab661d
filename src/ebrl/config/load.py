"""TOML and ``--set a.b=c`` into a ``RunConfig``; every mistake names its field."""

from __future__ import annotations

import json
import math
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ebrl.config.modes import Mode, in_mode
from ebrl.config.schema import GenerationSection, RunConfig, SimulationSection, TrainingSection
from ebrl.errors import ConfigError, nearest


def load_config(path: Path, overrides: Iterable[str] = (), *, mode: Mode | None = None) -> RunConfig:
    """Read a run.

    Args:
        path: a TOML file.
        overrides: ``section.field=value`` texts; the value is TOML, or a bare string. They come last.
        mode: whose switches replace those of the file; None leaves them.

    Raises:
        ConfigError: the file cannot be read, or a field is unknown or has an impossible value.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("", f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("", f"{path} is not TOML: {error}") from error
    if mode is not None:
        document = in_mode(mode, document)
    for override in overrides:
        _override(document, override)
    return make_config(document)


def make_config(document: Mapping[str, Any]) -> RunConfig:
    """A ``RunConfig`` from nested mappings, with cross-field checks."""
    try:
        config = RunConfig.model_validate(dict(document))
    except ValidationError as error:
        raise ConfigError(*_explain(error)) from None
    _check(config)
    return config


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """One line for each field that differs, ``field: old → new``."""
    before, after = _flatten(old.model_dump()), _flatten(new.model_dump())
    return [
        f"{field}: {before.get(field)!r} → {after.get(field)!r}"
        for field in sorted(before.keys() | after.keys())
        if before.get(field) != after.get(field)
    ]


def to_toml(config: RunConfig) -> str:
    """The whole configuration, defaults included, as TOML."""
    lines: list[str] = []
    for section, values in config.model_dump().items():
        lines.append(f"[{section}]")
        nested = {key: value for key, value in values.items() if isinstance(value, dict)}
        lines += [f"{key} = {_toml(value)}" for key, value in values.items() if key not in nested]
        for key, table in nested.items():
            lines.append(f"[{section}.{key}]")
            lines += [f"{_toml(name)} = {_toml(value)}" for name, value in table.items()]
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """``value`` as TOML, which is JSON but for tables, infinity, surrogates and DEL."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _override(document: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError("--set", f"{override!r}: want section.field=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    table = document
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError("--set", f"{override!r}: {key} is not a section")
    table[keys[-1]] = value


def _explain(error: ValidationError) -> tuple[str, str]:
    """Field and problem of the first mistake that pydantic found."""
    found = error.errors()
    first = found[0]
    if first["type"] == "missing":  # perhaps only misspelt
        first = next((one for one in found if one["type"] == "extra_forbidden"), first)
    where = _where(first)
    field = ".".join(where)
    if first["type"] == "extra_forbidden":
        known = _fields_at(where[:-1])
        hint = nearest(where[-1], known) or f"known: {', '.join(sorted(known))}"
        return field, f"unknown field; {hint}"
    if first["type"] == "missing":
        return field, "is required"
    if first["type"] in ("model_type", "dict_type"):
        return field, f"= {first['input']!r}: want a table, [{field}]"
    # A field that may be one thing or another has a mistake for each.
    problem = " or ".join(one["msg"] for one in found if _where(one) == where)
    problem = problem[0].lower() + problem[1:].replace(" or Input should be", " or")
    return field, f"= {first['input']!r}: {problem}"


def _where(mistake: ErrorDetails) -> list[str]:
    return [str(part) for part in mistake["loc"] if part not in ("list[int]", "literal['all']")]


def _fields_at(path: list[str]) -> list[str]:
    model: type[BaseModel] = RunConfig
    for key in path:
        annotation = model.model_fields[key].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        model = annotation
    return list(model.model_fields)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flatten(typing.cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _check(config: RunConfig) -> None:
    """What one field alone cannot tell."""
    for name in ("env", "policy", "algorithm"):
        _check_values(f"{name}.config", getattr(config, name).config)
    envs, generation = config.simulation.num_envs, config.generation
    _check_workers(config.simulation)
    _check_generation(generation, envs, config.simulation.envs_per_worker)
    _check_trajectories(config.training, config.simulation.envs_per_worker)
    if config.simulation.step_barrier and not generation.env_groups:
        raise ConfigError("simulation.step_barrier", "= true: want generation.env_groups of at least 1")
    if config.simulation.quantum > config.policy.chunk_len:
        chunk = config.policy.chunk_len
        raise ConfigError(
            "simulation.quantum", f"= {config.simulation.quantum}: want at most policy.chunk_len ({chunk})"
        )
    if isinstance(config.simulation.cpus, list) and len(set(config.simulation.cpus)) != len(config.simulation.cpus):
        raise ConfigError("simulation.cpus", f"= {config.simulation.cpus}: names a CPU twice")
    if isinstance(config.simulation.cpus, list) and not config.simulation.cpus:
        raise ConfigError("simulation.cpus", '= []: want at least one CPU, or "all"')
    if config.run.deterministic:
        _check_deterministic(config, envs, config.training.batch_trajectories)


def _check_values(field: str, value: Any) -> None:
    """A plug-in's section must be the same after it was stored as TOML and sent as JSON."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_values(f"{field}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_values(f"{field}[{index}]", item)
    elif value is None:
        raise ConfigError(field, "= None: leave the field out to have its default")
    elif not isinstance(value, str | int | float):
        raise ConfigError(field, f"= {value!r}: want a string, number, true, false, list or table")


def _check_workers(simulation: SimulationSection) -> None:
    envs, width = simulation.num_envs, simulation.envs_per_worker
    if envs % width:
        raise ConfigError("simulation.num_envs", f"= {envs}: want a multiple of simulation.envs_per_worker ({width})")


def _check_generation(generation: GenerationSection, envs: int, width: int) -> None:
    """``width`` environments of a worker are generated for together."""
    least, most, groups, workers = generation.min_batch, generation.max_batch, generation.env_groups, envs // width
    if least > most:
        raise ConfigError("generation.min_batch", f"= {least}: want at most max_batch ({most})")
    if least > envs:
        raise ConfigError("generation.min_batch", f"= {least}: want at most simulation.num_envs ({envs})")
    if groups > workers:
        what = "simulation.num_envs" if width == 1 else "the number of env workers"
        raise ConfigError("generation.env_groups", f"= {groups}: want at most {what} ({workers})")
    if generation.num_generators > workers:
        raise ConfigError(
            "generation.num_generators",
            f"= {generation.num_generators}: want at most the number of env workers ({workers})",
        )
    needed = -(-least // width) * width
    if most < needed:
        raise ConfigError(
            "generation.max_batch",
            f"= {most}: want at least {needed}, which is min_batch in whole env workers (of {width} environments)",
        )
    needed = -(-workers // groups) * width if groups else 0
    if most < needed:
        raise ConfigError("generation.max_batch", f"= {most}: want a whole env group ({needed}) or more")
    buckets = generation.buckets
    if buckets != sorted(set(buckets)) or any(bucket < 1 for bucket in buckets):
        raise ConfigError("generation.buckets", f"= {buckets}: want sizes of at least 1 in ascending order")


def _check_trajectories(training: TrainingSection, width: int) -> None:
    batch, siblings = training.batch_trajectories, training.siblings
    if siblings > 1 and training.trajectory != "episode":
        raise ConfigError("training.siblings", f'= {siblings}: want training.trajectory = "episode"')
    if training.trajectory == "episode" and width > 1:
        raise ConfigError("simulation.envs_per_worker", f'= {width}: training.trajectory = "episode" wants 1')
    for field, size in (("training.siblings", siblings), ("simulation.envs_per_worker", width)):
        if batch % size:
            raise ConfigError("training.batch_trajectories", f"= {batch}: want a multiple of {field} ({size})")


def _check_deterministic(config: RunConfig, envs: int, batch: int) -> None:
    if config.training.slack != 0:
        raise ConfigError("training.slack", f"= {config.training.slack}: run.deterministic wants 0")
    if config.training.window != 1:
        raise ConfigError("training.window", f"= {config.training.window}: run.deterministic wants 1")
    if config.training.trajectory != "segment":
        raise ConfigError(
            "training.trajectory",
            f'= {config.training.trajectory!r}: run.deterministic wants "segment", for who plays which episode '
            "follows timing",
        )
    if batch != envs:
        raise ConfigError(
            "training.batch_trajectories", f"= {batch}: run.deterministic wants simulation.num_envs ({envs})"
        )
    if config.generation.min_batch != envs:
        raise ConfigError(
            "generation.min_batch",
            f"= {config.generation.min_batch}: run.deterministic wants full batches, simulation.num_envs ({envs})",
        )
