"""Simulators that ``ebrl install`` knows, and which interpreter an environment runs under.

Simulators' packages exclude each other, so each gets a virtual environment of its own, under the
user's cache directory. Only files are looked at here: no simulator is imported and nothing is started,
unless the user named an interpreter, which is asked once what it is.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ebrl.errors import UnknownPlugin, UsageError
from ebrl.host.interpreters import examined

COMPLETE = "ebrl-complete.json"
"""The file that is written last; a directory without it is garbage."""

_GL = 'import os\nos.environ.setdefault("MUJOCO_GL", "glx")  # no picture is made, and EGL may be missing\n'
_NO_LOG = (
    "import sys, types\n"
    'macros = types.ModuleType("robosuite.macros_private")\n'
    'macros.MUJOCO_GPU_RENDERING, macros.FILE_LOGGING_LEVEL, macros.CONSOLE_LOGGING_LEVEL = False, None, "ERROR"\n'
    "sys.modules[macros.__name__] = macros  # else robosuite appends to a log file that another user may own\n"
)
_GYM = (
    "import gymnasium, {module}\n"
    "env = gymnasium.make({arguments})\n"
    "env.reset(seed=0)\n"
    "env.step(env.action_space.sample())\n"
)


@dataclass(frozen=True, slots=True)
class SystemLibrary:
    """A library that pip cannot bring."""

    name: str
    packages: str
    """That bring it on Debian and its relatives."""
    required: bool = False
    """Nothing works without it; else only cameras need it."""

    def is_there(self) -> bool:
        """Whether it can be loaded."""
        try:
            ctypes.CDLL(self.name)
        except OSError:
            return False
        return True

    @property
    def advice(self) -> str:
        """How to get it."""
        return f"run: apt-get install --no-install-recommends {self.packages}"


_EGL = SystemLibrary("libEGL.so.1", "libegl1 libgl1-mesa-dri libgl1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """What goes into one private environment, and what it is for."""

    name: str
    covers: tuple[str, ...]
    """Patterns of the names of the environments that run in it."""
    packages: tuple[str, ...]
    """Every package, ``name==version``; nothing else is installed."""
    module: str
    """Importable where the simulator is."""
    smoke: str
    """A program that imports the simulator, makes an environment, resets it and takes one step."""
    disk_mb: int
    licence: str
    pythons: tuple[tuple[int, int], ...] = ((3, 11), (3, 12))
    """Versions that all packages exist for; the first is the one that they were tried with."""
    from_source: tuple[str, ...] = ()
    """Packages without a wheel; they hold no code to compile."""
    indexes: tuple[tuple[str, str], ...] = ()
    """A package, and a registry that has it if the usual one does not."""
    system: tuple[SystemLibrary, ...] = ()

    @property
    def tag(self) -> str:
        """Name of its directory: other packages are another directory."""
        return f"{self.name}-{hashlib.sha256(' '.join(self.packages).encode()).hexdigest()[:10]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A private environment that is complete."""

    simulator: str
    path: str
    python: str
    """Its interpreter."""
    version: str
    """Of Python."""
    megabytes: int
    seconds: float
    """That the installation took."""
    notes: tuple[str, ...]
    """What was found missing, such as a system library that cameras need."""


def _pins(name: str) -> tuple[str, ...]:
    lines = (Path(__file__).parent / "pins" / f"{name}.txt").read_text().splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


@functools.cache
def simulators() -> dict[str, Simulator]:
    """Everything that ``ebrl install`` can install, by name."""
    table = (
        Simulator(
            name="libero",
            covers=("libero/*",),
            packages=_pins("libero"),
            from_source=("bddl",),
            module="libero",
            smoke=_GL
            + _NO_LOG
            + "from libero.libero import benchmark\n"
            + "from libero.libero.envs.env_wrapper import ControlEnv\n"
            + 'suite = benchmark.get_benchmark("libero_spatial")()\n'
            + "off = dict(has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False)\n"
            + "env = ControlEnv(bddl_file_name=suite.get_task_bddl_file_path(0), **off)\n"
            + "env.reset()\n"
            + "env.set_init_state(suite.get_task_init_states(0)[0])\n"
            + "env.step([0.0] * 7)\n",
            disk_mb=2140,
            licence="MIT; scenes and meshes CC BY 4.0",
            system=(_EGL,),
        ),
        Simulator(
            name="maniskill",
            covers=("maniskill/*",),
            packages=_pins("maniskill"),
            indexes=(("torch", "https://download.pytorch.org/whl/cpu"),),
            module="mani_skill",
            smoke="import sapien\n"  # its own tasks want a rendering device, which the adapter makes up for
            + "import mani_skill.envs\n"
            + "scene = sapien.Scene([sapien.physx.PhysxCpuSystem()])\n"
            + "builder = scene.create_actor_builder()\n"
            + "builder.add_box_collision(half_size=[0.1] * 3)\n"
            + "builder.initial_pose = sapien.Pose([0, 0, 1])\n"
            + 'box = builder.build(name="box")\n'
            + "scene.step()\n"
            + "assert box.pose.p[2] < 1\n",
            disk_mb=2160,
            licence="Apache-2.0; assets CC BY-NC 4.0 (not for commercial use)",
            system=(
                SystemLibrary("libX11.so.6", "libx11-6", required=True),
                SystemLibrary("libvulkan.so.1", "libvulkan1 mesa-vulkan-drivers"),
            ),
        ),
        Simulator(
            name="robosuite",
            covers=("robosuite/*",),
            packages=_pins("robosuite"),
            module="robosuite",
            smoke=_GL
            + _NO_LOG
            + "import robosuite\n"
            + "off = dict(has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False)\n"
            + 'env = robosuite.make("Lift", robots="Panda", **off)\n'
            + "env.reset()\n"
            + "env.step([0.0] * env.action_dim)\n",
            disk_mb=1280,
            licence="MIT",
            system=(_EGL,),
        ),
        Simulator(
            name="metaworld",
            covers=("metaworld/*",),
            packages=_pins("metaworld"),
            module="metaworld",
            smoke=_GYM.format(module="metaworld", arguments='"Meta-World/MT1", env_name="reach-v3", seed=0'),
            disk_mb=390,
            licence="MIT",
            system=(_EGL,),
        ),
        Simulator(
            name="gymnasium-robotics",
            covers=tuple(
                f"gym/{start}*" for start in ("Fetch", "Hand", "Adroit", "FrankaKitchen", "PointMaze", "AntMaze")
            ),
            packages=_pins("gymnasium-robotics"),
            module="gymnasium_robotics",
            smoke=_GYM.format(module="gymnasium_robotics", arguments='"FetchReach-v4"'),
            disk_mb=250,
            licence="MIT",
            system=(_EGL,),
        ),
        Simulator(
            name="gym-pusht",
            covers=("gym/gym_pusht/*",),
            packages=_pins("gym-pusht"),
            module="gym_pusht",
            smoke=_GYM.format(module="gym_pusht", arguments='"gym_pusht/PushT-v0"'),
            disk_mb=330,
            licence="Apache-2.0",
        ),
    )
    return {simulator.name: simulator for simulator in table}


def simulator_named(name: str) -> Simulator:
    """The simulator of this name.

    Raises:
        UnknownPlugin: there is none that can be installed.
    """
    try:
        return simulators()[name]
    except KeyError:
        raise UnknownPlugin("simulator", name, simulators()) from None


def simulator_of(env_name: str) -> Simulator | None:
    """The simulator that an environment runs in; None if it needs none of those that can be installed."""
    covering = (s for s in simulators().values() if any(fnmatchcase(env_name, pattern) for pattern in s.covers))
    return next(covering, None)


def python_for(env_name: str, python: str | None = None, *, field: str = "env.python") -> str:
    """Absolute path of the interpreter that env workers of ``env_name`` run under.

    ``python`` if it is given; else the private environment of the simulator, if it is installed; else
    this interpreter, if it has the simulator or the environment needs none.

    Args:
        env_name: as in ``env.name``.
        python: what the user chose.
        field: where the user chose it, for messages.

    Raises:
        ConfigError: the interpreter that was named cannot run env workers.
        UsageError: the simulator is not installed.
    """
    if python is not None:
        return examined(python, field)
    simulator = simulator_of(env_name)
    if simulator is None:
        return sys.executable
    found = installed(simulator)
    if found is not None:
        return found.python
    if importlib.util.find_spec(simulator.module) is not None:
        return sys.executable
    raise UsageError(f"environment {env_name!r} is not installed; run: ebrl install {simulator.name}")


def directory() -> Path:
    """Where private environments are: ``ebrl/envs`` in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "ebrl" / "envs"


def installed(simulator: Simulator) -> Installed | None:
    """The private environment of a simulator; None if there is none with the packages that it has now."""
    path = directory() / simulator.tag
    try:
        facts = json.loads((path / COMPLETE).read_text())
    except (OSError, ValueError):
        return None
    python = path / "bin" / "python"
    if not python.exists():  # the interpreter that it was made from has been removed
        return None
    return Installed(**facts | {"path": str(path), "python": str(python), "notes": tuple(facts["notes"])})


def write_complete(found: Installed) -> None:
    """Declare a private environment complete; from now on it is used."""
    target = Path(found.path) / COMPLETE
    draft = target.with_suffix(".part")
    draft.write_text(json.dumps(asdict(found), indent=2))
    draft.rename(target)


def lock_of(path: Path) -> Path:
    """The file that whoever writes to the private environment ``path`` holds a lock on."""
    return path.parent / f".{path.name.rpartition('-')[0]}.lock"


def half_made(*, min_age_s: float) -> list[Path]:
    """Directories of installations that were killed; those that go on are not among them."""
    oldest = time.time() - min_age_s
    places = [path for path in sorted(directory().glob("*-*")) if path.is_dir() and not (path / COMPLETE).exists()]
    return [path for path in places if path.stat().st_mtime <= oldest and not _locked(path)]


def _locked(path: Path) -> bool:
    try:
        with lock_of(path).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # somebody has it, or nobody can tell where there are no locks
        return True
    return False
