"""What the user chose: one run, as frozen models. Nothing is derived or filled in here.

Sections of plug-ins (``env.config``, ``policy.config``, ``algorithm.config``) stay plain mappings;
the plug-in's own ``Config`` checks them when it is loaded, so this module imports no simulator.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class RunSection(_Section):
    """The run as a whole."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Letters, digits, dots, dashes; part of the run directory's name."""
    directory: str = "runs"
    """Where run directories are made."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Everything random in the run follows from it."""
    deterministic: bool = False
    """Same seed, same weights, bit for bit, whatever the timing: full generation batches, slack 0.
    Costs the overlap of simulation and generation."""


class EnvSection(_Section):
    """The environment."""

    name: str
    """``namespace/task`` of an installed plug-in, or ``module:Class``."""
    python: str = ""
    """Interpreter of the env workers, a path; it needs numpy and the simulator, not ebrl. Empty takes the private
    environment that ``ebrl install`` made, or else the interpreter that runs ebrl."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Fields of the environment's own ``Config``."""


class PolicySection(_Section):
    """The policy."""

    name: str = "flow"
    """An installed plug-in, or ``module:Class``."""
    chunk_len: int = Field(8, ge=1, le=1024)
    """Actions of a chunk; all are executed before the next chunk is made."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Fields of the policy's own ``Config``."""


class AlgorithmSection(_Section):
    """The algorithm."""

    name: str = "ppo"
    """An installed plug-in, or ``module:Class``."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Fields of the algorithm's own ``Config``."""


class SimulationSection(_Section):
    """The simulation stage."""

    num_envs: int = Field(16, ge=1, le=4096)
    """Environments; a multiple of ``envs_per_worker``."""
    envs_per_worker: int = Field(1, ge=1, le=1024)
    """Environments that one process steps, and that take up every chunk together; 1 gives each its own. More pays where
    an env step is so short that messages and processes cost more than it does."""
    cpus: list[int] | Literal["all"] = "all"
    """Logical processors that env workers are bound to; ``all`` is what this process may use."""
    cpus_per_worker: int = Field(1, ge=1)
    """Logical processors that an env worker has while it steps or resets, and threads of its numeric
    libraries; a divisor of the number of ``cpus``. More than 1 pays for simulators with threads of their own."""
    quantum: int = Field(0, ge=0)
    """Env steps before a CPU may go to another env worker; 0 runs the chunk to its end."""
    step_barrier: bool = False
    """Let the environments of a group take each env step together, as lock-step vector environments
    do. Slower; for comparisons. Wants ``generation.env_groups``."""
    observe: Literal["chunk_end", "every_step"] = "chunk_end"
    """When observations are made, and images rendered: where the policy looks, or after every env step, as
    other systems do. Slower; for comparisons."""
    finished_episodes: Literal["replace", "run_to_horizon"] = "replace"
    """What becomes of an episode that its task has ended: a new one begins at once, or it is stepped to its
    time limit for nothing, as lock-step systems do. Slower; for comparisons."""
    render_gpus: list[int] | Literal["auto"] = "auto"
    """GPUs that env workers render on, in turn, by CUDA's numbers. ``auto`` takes the one that generation works on,
    if EGL knows it. For MuJoCo's renderer; ``MUJOCO_EGL_DEVICE_ID`` in the environment goes first."""
    binding: Literal["cpu", "none"] = "cpu"
    """Whether an env worker is bound to the CPUs of its grant, or runs where the kernel puts it."""


class GenerationSection(_Section):
    """The generation stage."""

    env_groups: int = Field(0, ge=0)
    """Groups of environments that are generated for when all of their members wait; 0 is greedy and
    usually faster. 1 is one full batch per round: a barrier after every chunk."""
    round_robin: bool = False
    """Serve env groups in a fixed order instead of first come, first served. Slower; for comparisons."""
    buckets: list[int] = Field(default_factory=list)
    """Batch sizes that a generator is fast at, ascending; a batch is cut to the largest it reaches. The
    environments of one env worker are generated for together, so sizes are rounded down to whole workers."""
    min_batch: int = Field(1, ge=1)
    """Wait for so many environments before generating, unless no other can join. 1 is best where
    generation has a device of its own; half of ``num_envs`` where it shares CPUs with simulation.
    Rounded up to whole env workers."""
    max_batch: int = Field(256, ge=1)
    """Most environments that are generated for at once; rounded down to whole env workers."""
    num_generators: int = Field(1, ge=1, le=64)
    """Processes that generate; each holds the policy and serves a batch of its own. At most one for each
    env worker."""
    cpus: list[int] | Literal["all"] = "all"
    """Logical processors that generators are bound to; ``all`` binds them to none."""
    device: str = "cpu"
    """torch device of every generator."""
    threads: int = Field(1, ge=1)
    """torch threads of each generator."""


class TrainingSection(_Section):
    """The training stage, and when the run is over."""

    batch_trajectories: int = Field(32, ge=1, le=100_000)
    """B: trajectories of an update; a multiple of ``siblings`` and of ``simulation.envs_per_worker``."""
    trajectory: Literal["segment", "episode"] = "segment"
    """What is trained on as one piece. ``segment``: a fixed number of chunks, over the ends of episodes.
    ``episode``: an episode from its first to its last env step; wants ``simulation.envs_per_worker = 1``."""
    trajectory_chunks: int = Field(16, ge=1, le=100_000)
    """Chunks of a segment; the value of its last observation stands for what follows. Not used for whole
    episodes, which are as long as they are: the environment's time limit says how much memory they take."""
    siblings: int = Field(1, ge=1, le=100_000)
    """G: episodes that start from the same initial state and train together, for algorithms that compare
    them. More than 1 wants ``trajectory = "episode"``."""
    group_deadline_s: float = Field(600.0, ge=0)
    """Siblings that are not all complete so many seconds after the first of them began are dropped together;
    0 waits for ever. Ten minutes, unless set; want more where few environments play many long episodes."""
    slack: int = Field(1, ge=0, le=64)
    """S: updates that data may lag behind; 0 is synchronous. More overlaps more, and trains on
    older data."""
    window: int = Field(1, ge=1)
    """W: how far in admission order a finished trajectory may overtake unfinished ones. Trajectories that
    train together (siblings, or those of one env worker) count as one."""
    max_env_steps: int = Field(400_000, ge=1)
    """The run ends after so many env steps (runs that it resumes included)."""
    max_updates: int = Field(1_000_000, ge=1)
    """The run ends after so many updates (runs that it resumes included)."""
    max_minutes: float = Field(1e6, gt=0, allow_inf_nan=True)
    """The run ends after so many minutes of training; ``inf`` sets no limit."""
    cpus: list[int] | Literal["all"] = "all"
    """Logical processors that the learner is bound to; ``all`` binds it to none."""
    device: str = "cpu"
    """torch device of the learner."""
    threads: int = Field(1, ge=1)
    """torch threads of the learner."""
    nice: int = Field(0, ge=0, le=19)
    """How readily the learner yields its CPU to simulation and generation (``nice``)."""


class PretrainSection(_Section):
    """Warm start: clone a scripted expert before reinforcement learning."""

    enabled: bool = False
    """Let ``train`` do it first. ``ebrl pretrain`` does it in any case."""
    num_demos: int = Field(4, ge=1)
    """Successful demonstrations."""
    noise_std: float = Field(0.5, ge=0)
    """Of the time-correlated noise on the expert's actions, so that the clone is imperfect."""
    noise_correlation: float = Field(0.8, ge=0, lt=1)
    """From one env step to the next."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Of demonstrations and cloning; not the run's seed, since the demonstrations decide the clone."""
    updates: int = Field(1200, ge=1)
    """Gradient steps."""
    batch: int = Field(256, ge=1)
    """Windows per gradient step."""
    lr: float = Field(1e-3, gt=0)
    """AdamW, cosine decay to zero."""


class EvaluationSection(_Section):
    """Success before and after, from initial states that are never trained on."""

    episodes: int = Field(128, ge=0)
    """Per evaluation; 0 turns both off."""


class ResourcesSection(_Section):
    """Who gets how much of the machine."""

    allocation: Literal["by_hand", "planned"] = "by_hand"
    """``by_hand`` takes CPUs, threads and batch sizes from the other sections; ``planned`` lets the allocator choose
    them, from a profile of this run (``ebrl profile``; ``ebrl plan`` shows the choice)."""
    gpu_use: Literal["best", "split", "whole", "turns", "hand_over", "hybrid"] = "best"
    """How generation and training share emulated GPUs: in whatever way is fastest; by SMs of every GPU; by whole
    GPUs; by time; every GPU handed from one stage to the other, memory included where it is short; or generation on
    half of them, then training on all. All but ``best`` are for comparisons."""
    lend: bool = True
    """Where emulated GPUs are split by SMs, generators have the learner's SMs too while it has nothing to train."""
    profile: str = "profile.json"
    """File that ``ebrl profile`` wrote; for ``planned``."""
    rebalance: bool = True
    """Let a planned allocation follow measured rates while the run goes on."""
    sample_s: float = Field(1.0, gt=0)
    """Seconds between two looks at the rates; longer, where a round of chunks takes longer."""


Padding = Literal["left_out", "masked"]


class EmulationSection(_Section):
    """Devices that are not there, for trying out and comparing on any machine: with ``generation.device`` and
    ``training.device`` set to ``emulated``, both stages do their real work on a CPU and take as long as a GPU would."""

    workload: str = ""
    """Times of the GPUs: a workload that comes with ebrl (``ebrl plan --list``), or a workload file."""
    machine: str = ""
    """GPUs and memory: a machine that comes with ebrl, or a hardware file."""
    gpus: int = Field(0, ge=0)
    """How many of the machine's GPUs, of one node; 0 takes all."""
    cpus: int = Field(0, ge=0)
    """Env workers that may run at once, for environments that sleep through their env steps; 0 is as many as there
    are real CPUs."""
    padding: Padding = "left_out"
    """Chunks of a trajectory that were never executed, because its episode was over: ebrl leaves them out of an update.
    ``masked`` emulates systems that only mask their losses, so that they take as long to train on as others."""
    speed: float = Field(1.0, gt=0)
    """Emulated devices are so many times faster than the workload says, so that a long run fits into minutes."""


class FailuresSection(_Section):
    """Deadlines, and how much may go wrong."""

    start_s: float = Field(180.0, gt=0)
    """For a process to import its libraries and build what it needs."""
    reset_s: float = Field(60.0, gt=0)
    """For one reset: of all environments of an env worker, if there are several."""
    step_s: float = Field(30.0, gt=0)
    """For the env steps of one grant: those of a chunk, unless ``simulation.quantum`` is set, in all
    environments of an env worker."""
    generation_s: float = Field(60.0, gt=0)
    """For one generation batch."""
    training_s: float = Field(600.0, gt=0)
    """For one update or one checkpoint."""
    drain_s: float = Field(12.0, gt=0)
    """For work in flight when the run stops, and again for its checkpoint."""
    watchdog_s: float = Field(30.0, ge=0)
    """After so long without any progress the run says who waits for whom; 0 never says it."""
    max_env_failures: int = Field(5, ge=0)
    """Failures in a row of one environment (of one env worker, if it has several) that the run survives."""
    worker_memory_gib: float = Field(0.0, ge=0)
    """Replace an env worker that has more memory of its own than this, for simulators that lose some at every
    reset; looked at whenever all of its environments are reset together. Its children and what it shares with
    others do not count. 0 sets no limit: what is normal differs a hundredfold between simulators, and a limit
    below it would start a process for every episode."""
    worker_resets: int = Field(0, ge=0)
    """Replace an env worker after so many resets of its environments, at the next reset of all of them; 0 never."""


class CheckpointSection(_Section):
    """Checkpoints."""

    every_updates: int = Field(20, ge=0)
    """0 saves at the end only."""
    keep: int = Field(3, ge=1)
    """Newest ones that are kept; the first is kept too."""


class RecordsSection(_Section):
    """What is kept of the run's decisions."""

    level: Literal["off", "chunks", "steps"] = "chunks"
    """Events and commands in ``events.jsonl.zst``. ``chunks`` leaves out grants that end inside a chunk;
    there are none unless ``simulation.quantum`` is set, and a run recorded without them cannot be replayed."""


class RunConfig(_Section):
    """Everything a run needs to be told."""

    run: RunSection = RunSection()
    env: EnvSection
    policy: PolicySection = PolicySection()
    algorithm: AlgorithmSection = AlgorithmSection()
    simulation: SimulationSection = SimulationSection()
    generation: GenerationSection = GenerationSection()
    training: TrainingSection = TrainingSection()
    pretrain: PretrainSection = PretrainSection()
    evaluation: EvaluationSection = EvaluationSection()
    resources: ResourcesSection = ResourcesSection()
    emulation: EmulationSection = EmulationSection()
    failures: FailuresSection = FailuresSection()
    checkpoint: CheckpointSection = CheckpointSection()
    records: RecordsSection = RecordsSection()
