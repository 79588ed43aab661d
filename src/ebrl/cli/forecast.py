"""``ebrl forecast`` and ``ebrl timeline``."""

from __future__ import annotations

import enum
import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json, RunDir, RunFile, Sets
from ebrl.errors import UsageError

if TYPE_CHECKING:
    from ebrl.config.schema import RunConfig
    from ebrl.resources.profile import Profile
    from ebrl.runtime.display import Display


class Sharing(enum.StrEnum):
    """What the stages share."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


def forecast(
    run_file: RunFile,
    sets: Sets = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What ebrl profile wrote; without it the run is profiled first.")
    ] = None,
    updates: Annotated[int, typer.Option(min=1, help="Updates to forecast.")] = 50,
    cpu_sharing: Annotated[
        Sharing, typer.Option(help="Whether all stages share the CPUs, or each has devices of its own.")
    ] = Sharing.SHARED,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long to profile, if need be.")] = 15.0,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where files go; runs/forecast-NAME by default.")
    ] = None,
    json: Json = False,
) -> Answer:
    """Say how fast a run will be before it starts, what each stage waits for, and which limit binds.

    The run's own control plane runs on a model of this machine, with costs from a profile. Writes an event log
    (for ebrl replay), timeline.png, trace.json (for ui.perfetto.dev) and forecast.json.
    """
    from ebrl.cli.progress import open_display
    from ebrl.config.load import load_config, to_toml
    from ebrl.records.writer import write_json
    from ebrl.report.forecast import as_text
    from ebrl.report.run import show_run
    from ebrl.runtime.forecast import forecast as foretell
    from ebrl.runtime.plugins import check_plugins

    config = load_config(run_file, sets or [])
    check_plugins(config)
    directory = output or Path(config.run.directory) / f"forecast-{config.run.name}"
    directory.mkdir(parents=True, exist_ok=True)
    with open_display(quiet=json) as display:
        costs, where = _profile(config, profile, directory, seconds, display)
        display.phase(f"forecasting {updates} updates")
        document = foretell(config, costs, updates=updates, sharing=cpu_sharing.value, run_dir=directory)
        title = f"forecast: {config.env.name}, {config.simulation.num_envs} environments"
        shown = show_run(directory, directory, title=title)
    (directory / "config.toml").write_text(to_toml(config), encoding="utf-8")
    document |= {"profile": str(where), "output": str(directory)}
    document |= {name: shown[name] for name in ("timeline", "trace")}
    write_json(directory / "forecast.json", document)
    return Answer(document, "\n".join([*as_text(document), *_more_text(document)]))


def timeline(
    run_dir: RunDir,
    seconds: Annotated[float | None, typer.Option(min=0.001, help="Seconds that the picture shows.")] = None,
    json: Json = False,
) -> Answer:
    """Show what every process of a run did when, and why it waited: timeline.png and trace.json."""
    from ebrl.report.forecast import as_text
    from ebrl.report.run import show_run

    document = show_run(run_dir, run_dir, title=run_dir.resolve().name, seconds=seconds)
    files = [f"picture     {document['timeline']}", f"trace       {document['trace']} (open it at ui.perfetto.dev)"]
    return Answer(document, "\n".join([*as_text(document), *files]))


def _profile(
    config: RunConfig, given: Path | None, directory: Path, seconds: float, display: Display
) -> tuple[Profile, Path]:
    """The profile that was named, the one that was kept, or a new one."""
    from ebrl.profiling.measure import take_profile
    from ebrl.records.writer import write_json
    from ebrl.resources.profile import Profile
    from ebrl.runtime.forecast import check_fits

    kept = directory / "profile.json"
    path = given or kept
    if given is not None or kept.is_file():
        try:
            found = Profile.from_json(json_module.loads(path.read_text()))
            check_fits(found, config)
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{path} is not a profile: {error}") from error
        except UsageError:
            if given is not None:
                raise
            display.notice(f"{kept} is of another run")
        else:
            display.notice(f"costs from {path}")
            return found, path
    taken = take_profile(config, seconds=seconds, say=display.phase, progress=display.progress)
    write_json(kept, taken.to_json())
    return taken, kept


def _more_text(document: dict[str, Any]) -> list[str]:
    total = max(sum(document["staleness_counts"].values()), 1)
    stale = ", ".join(f"{s}: {n / total:.0%}" for s, n in document["staleness_counts"].items())
    limits = sorted(document["roofline"]["limits"].items(), key=lambda item: item[1])
    lines = [f"staleness   {stale} (bound {document['staleness_bound']})"]
    if "host_cpu_share" in document:
        shares = document["host_cpu_share"]
        rest = 1 - sum(shares.values())
        lines.append("CPUs        " + ", ".join(f"{kind} {s:.0%}" for kind, s in shares.items()) + f", idle {rest:.0%}")
    return [
        *lines,
        f"roofline    {document['roofline']['trajectories_per_s']:.2f} trajectories/s, "
        f"{document['roofline']['binding']} binds; " + ", ".join(f"{name} {value:.2f}" for name, value in limits),
        f"picture     {document['timeline']}",
        f"trace       {document['trace']} (open it at ui.perfetto.dev)",
    ]
