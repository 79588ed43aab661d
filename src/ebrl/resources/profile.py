"""What a run costs: seconds for each kind of work, measured offline on one machine.

Every piece of work has two parts: seconds on a CPU, which stretch when the CPU is shared, and
seconds of something else (a device, a sleep), which do not. Samples are kept in the order in which
they were taken, so that whatever is correlated in reality stays so in a forecast.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ebrl.resources.decoding import decode

FORMAT = 2
"""Of the JSON document; another one is refused."""


class Work(NamedTuple):
    """One piece of work, in seconds."""

    cpu_s: float
    """On a CPU; takes longer in time when the CPU is shared."""
    other_s: float = 0.0
    """On a device, or asleep; takes as long whatever the CPUs do."""


class Grant(NamedTuple):
    """One grant of env steps, as an env worker carried it out."""

    num_steps: int
    """Env steps of all its environments together."""
    cpu_s: float
    other_s: float


class PlayedEpisode(NamedTuple):
    """An episode, or as much of it as was seen."""

    num_steps: int
    success: bool
    finished: bool


class BatchCost(NamedTuple):
    """Mean cost of a generation batch."""

    num_chunks: int
    cpu_s: float
    other_s: float


class BatchTime(NamedTuple):
    """How long a piece of work takes with so many threads and so large a batch, on CPUs that nobody else wants."""

    threads: int
    """Of torch."""
    num_chunks: int
    """Of the generation batch, or of each micro-batch of the update."""
    seconds: float
    """The fifth of the calls that was disturbed least ends here; with 1 thread, without waiting for a CPU."""
    relative_error: float
    """Standard error of the mean, over the mean; 1 where there were too few calls to tell."""
    num_calls: int
    """How often it was measured, after warm-up."""


class Memory(NamedTuple):
    """What one process has at its peak that it shares with nobody, as a line over the size of its batch."""

    fixed_bytes: int = 0
    chunk_bytes: int = 0
    """More for each chunk of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Samples in five numbers and their count."""

    count: int
    mean: float
    sd: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationProfile:
    """Costs of the simulation stage, one env worker at a time."""

    env_step_s: Summary
    """Seconds of one env step by the env worker's own clock, without waiting for a CPU."""
    reset_s: Summary
    within_env_correlation: float
    """Of the times of two env steps that follow each other in one environment."""
    tapes: tuple[tuple[Grant, ...], ...]
    """Per env worker, its grants in order; overhead of the grant included. Of one that steps several environments
    ``num_steps`` counts the env steps of all of them, so that cost / ``num_steps`` is always that of one env step;
    a forecast plays a tape for each environment, whose costs then vary less from one to the next than in reality."""
    resets: tuple[Work, ...]
    """Of one environment each."""
    episodes: tuple[PlayedEpisode, ...]
    max_episode_steps: int
    length_scale: tuple[tuple[int, float], ...] = ()
    """How episodes shorten as the policy improves: env steps of the run, factor on lengths; linear in between."""
    corun: float = 1.0
    """CPU seconds of the same work while the other stages run too, over those alone."""
    own_bytes: int = 0
    """Memory of one env worker that it shares with nobody, after some episodes; the largest of all."""
    observation_s: float = 0.0
    """Seconds that an env step takes longer whose observation is read: rendering and copying. 0 where chunks of one
    action leave nothing to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationProfile:
    """Costs of the generation stage."""

    table: tuple[BatchCost, ...]
    """By batch size, ascending."""
    adopt: Work
    """Of new weights."""
    share_scale: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """Share of the device, factor on the time; ascending."""
    corun: float = 1.0
    by_threads: tuple[BatchTime, ...] = ()
    """Ascending by threads, then batch."""
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProfile:
    """Costs of the training stage, for the run's own batch."""

    updates: tuple[Work, ...]
    checkpoint: Work
    corun: float = 1.0
    epochs: int = 1
    """Times that an update looks at each chunk."""
    micro_batch: int = 0
    """Chunks that the run's own updates look at at once; 0 is the whole batch."""
    by_threads: tuple[BatchTime, ...] = ()
    """Of whole updates; ascending by threads, then micro-batch."""
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlProfile:
    """Costs of the main process: messages, scheduler and records, in seconds of CPU."""

    event_s: tuple[tuple[str, float], ...]
    """By kind of event, its records included."""
    command_s: float
    """Per command sent."""
    latency_s: float
    """From a message's sending to its reading on an idle CPU, without either side's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Everything a forecast has to know of a run's costs; JSON in and out."""

    hardware: Mapping[str, Any]
    """Facts of the machine it was taken on."""
    sections: Mapping[str, Any]
    """What was chosen of environment, policy and algorithm, and where generation and training run."""
    chunk_len: int
    quantum: int
    """Env steps per grant when it was taken."""
    batch_trajectories: int
    trajectory_chunks: int
    taken_s: float
    """What taking it cost."""
    tick_s: float
    """Between two looks of the kernel at who should run: how long two busy processes keep a CPU in turn."""
    nice_works: bool
    """Whether the kernel lets a nice process yield to processes of other sessions (not under autogroup)."""
    simulation: SimulationProfile
    generation: GenerationProfile
    training: TrainingProfile
    control: ControlProfile
    cost_s: tuple[tuple[str, float], ...] = ()
    """What taking it cost by stage, in the order of the stages; warm-up included, though no sample is of it."""
    stopped_early: tuple[str, ...] = ()
    """Stages that ended before their time because their means were known well enough."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document that ``from_json`` reads."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Profile:
        """The profile that ``to_json`` wrote.

        Raises:
            ValueError: it was written by another version of the program, or a field is missing or unknown.
        """
        if document.get("format") != FORMAT:
            raise ValueError(f"profile has format {document.get('format')!r}, want {FORMAT}; take it again")
        fields = {name: value for name, value in document.items() if name != "format"}
        profile: Profile = decode(Profile, fields, "profile")
        return profile


def summarise(values: Sequence[float]) -> Summary:
    """Samples in numbers; percentiles by nearest rank."""
    if not values:
        return Summary(count=0, mean=0.0, sd=0.0, p50=0.0, p95=0.0, p99=0.0)
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    return Summary(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        sd=statistics.pstdev(ordered),
        p50=at(0.5),
        p95=at(0.95),
        p99=at(0.99),
    )


def lag_correlation(series: Sequence[Sequence[float]]) -> float:
    """Correlation of neighbours, over several series about their common mean; 0 where nothing varies."""
    values = [value for one in series for value in one]
    if len(values) < 3:
        return 0.0
    mean = statistics.fmean(values)
    variance = statistics.fmean((value - mean) ** 2 for value in values)
    pairs = [(one[i] - mean) * (one[i + 1] - mean) for one in series for i in range(len(one) - 1)]
    return statistics.fmean(pairs) / variance if pairs and variance > 0 else 0.0


def generation_cost(profile: GenerationProfile, num_chunks: int) -> Work:
    """Cost of a batch: linear between measured sizes, and beyond the last two of them."""
    table = profile.table
    if len(table) == 1:
        return Work(table[0].cpu_s, table[0].other_s)
    upper = next((i for i, row in enumerate(table) if row.num_chunks >= num_chunks), len(table) - 1)
    high = max(upper, 1)
    a, b = table[high - 1], table[high]
    share = (num_chunks - a.num_chunks) / (b.num_chunks - a.num_chunks)
    return Work(
        max(0.0, a.cpu_s + share * (b.cpu_s - a.cpu_s)),
        max(0.0, a.other_s + share * (b.other_s - a.other_s)),
    )


def alpha_beta(profile: GenerationProfile) -> tuple[float, float]:
    """T(b) ≈ α + β·b in seconds, by least squares on the whole table; neither is below 0."""
    return line([(row.num_chunks, row.cpu_s + row.other_s) for row in profile.table])


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope of y over x by least squares, neither below 0; of a single x the mean, and no slope."""
    values = [y for _, y in points]
    if len({x for x, _ in points}) == 1:
        return statistics.fmean(values), 0.0
    slope, intercept = statistics.linear_regression([float(x) for x, _ in points], values)
    slope = max(slope, 0.0)
    return max(intercept if slope else statistics.fmean(values), 0.0), slope


def episode_lengths(profile: SimulationProfile, count: int = 200) -> tuple[tuple[int, bool], ...]:
    """``count`` equally likely episodes (length in env steps, success), unfinished ones allowed for.

    A short measurement sees the short episodes end and the long ones not. The product-limit
    estimator takes unfinished ones as "longer than this"; what is left over ends at the time limit.
    """
    alive = 1.0
    quantiles: list[tuple[float, int, bool]] = []  # survival below which an episode has this length
    at_risk = len(profile.episodes)
    for episode in sorted(profile.episodes, key=lambda one: (one.num_steps, not one.finished)):
        if episode.finished:
            alive *= 1.0 - 1.0 / at_risk
            quantiles.append((alive, episode.num_steps, episode.success))
        at_risk -= 1
    found: list[tuple[int, bool]] = []
    for index in range(count):
        survival = 1.0 - (index + 0.5) / count
        ended = next(((length, success) for left, length, success in quantiles if survival > left), None)
        found.append(ended or (profile.max_episode_steps, False))
    return tuple(found)
