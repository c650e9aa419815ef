"""What every run is told, whatever it trains: `Settings`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from operant import doors
from operant.runtime.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, require
from operant.runtime.tables import to_table

_ACTING, _CONTROL = ("control", "tabular"), ("control",)

OF_PACKAGES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("env_kwargs", "env_backend", "evaluate_episodes", "evaluate_max_steps", "wrappers"), _ACTING),
    **dict.fromkeys(("vectorization", "num_workers", "lost_workers", "worker_seconds"), _CONTROL),
    **dict.fromkeys(("clip_rewards", "episodic_life", "compile", "shards"), _CONTROL),
}
"""Packages whose algorithms have a setting; those that are not named here all have."""

MOST_SEEDS = 1_000_000
"""Seeds of one run; a larger number is a mistake, and would fill the memory before anything is said."""

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?|xpu(:\d+)?")


@dataclass(frozen=True)
class Settings:
    """The choices common to all algorithms. Those of one algorithm stand in its own configuration.

    Raises:
        ValueError: a value is out of its range.
    """

    algorithm: str
    """Name of the algorithm, as `operant list` prints it."""

    task: str
    """What to train on: a Gymnasium id such as CartPole-v1, or an environment of yours, path/to/file.py:MyEnv; for
    language models a built-in task such as arithmetic, or a data set."""

    seeds: tuple[int, ...] = (0,)
    """Seeds of the run, trained side by side; different integers from 0. One seed is no result: take 5 or more."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Parameters for the constructor of the task's environment, such as size=30 slippery=false; drawing=@FILE is the
    text of a file."""

    budget: PositiveInt = 100_000
    """How much to train, for each seed, in the algorithm's own unit: environment steps, prompts or examples."""

    wrappers: tuple[str, ...] = ()
    """Wrappers around the environments, the innermost first: classes of yours, path/to/file.py:Name or
    'path/to/file.py:Name(scale=0.1)', as operant.envs.Wrapper describes them. Those that say so hold in evaluations."""

    env_backend: Literal["auto", "tensor", "gymnasium", "envpool"] = "auto"
    """Where environments come from: operant's batched ones (tensor), Gymnasium's, or the faster of these that exists
    (auto); EnvPool's, in C++ threads, where it is installed: with these a resumed run begins new episodes."""

    vectorization: Literal["sync", "async"] = "sync"
    """Where Gymnasium's environments run: in this process (sync), or in worker processes (async)."""

    num_workers: NonNegativeInt = 0
    """Worker processes of a run, which its environments are divided among, in training and evaluations; 0: one a core,
    or fewer where there are fewer environments. More pay off where environments wait for something else."""

    lost_workers: Literal["end", "restart"] = "end"
    """What happens when a worker process dies or hangs: training ends with an error that names its environments and
    can be resumed (end); or it is replaced, and its environments begin new episodes (restart): no exact resume then."""

    worker_seconds: PositiveFloat = 120.0
    """Seconds that a worker process may take for one answer before training ends with an error that names it."""

    clip_rewards: bool = True
    """For games of Atari: whether rewards are clipped to [-1, 1] in training; scores never are."""

    episodic_life: bool = False
    """For games of Atari: whether losing a life ends an episode in training; what is scored are whole games."""

    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, mps, xpu, or auto: the CPU for small networks, a GPU, if there is one, for
    pretrained language models."""

    threads: NonNegativeInt = 0
    """Threads for arithmetic on the CPU; 0 lets operant choose: 1 for small networks, where more only cost time, 2
    for the built-in language models (1 where torch was imported before operant, whose threads then spin), all cores for
    pretrained ones."""

    precision: Literal["highest", "high", "medium"] = "highest"
    """Of matrix products of 32-bit numbers: highest is exact to rounding; high (TF32) and medium (bfloat16; on CUDA
    devices TF32, too) are faster on layers of 256 and more where there are units for them, and exact to 2 or 3
    digits."""

    compile: Literal["auto", "on", "off"] = "auto"
    """Whether updates are compiled (`torch.compile`'s back end): it costs seconds at the start and saves a tenth to a
    half of each update; auto: where the run is long enough to repay it and there is a C++ compiler."""

    shards: PositiveInt = 1
    """Parts that each batch and its environments are divided into, which are computed alike on any number of processes
    up to this one: --processes changes no bit of a run. Powers of two divide best. With more than one a run differs in
    the last bits from one with another number."""

    evaluate_every: NonNegativeInt = 0
    """Budget units of one seed between two evaluations; 0 means a twentieth of the budget. The last is at the end."""

    evaluate_episodes: PositiveInt = 20
    """Episodes of each seed in one evaluation."""

    evaluate_max_steps: NonNegativeInt = 0
    """Steps after which an episode of an evaluation is cut where the environment has no shorter limit of its own; it
    counts with what it scored until then. 0: 100000, for tables 10000."""

    checkpoint_seconds: NonNegativeFloat = 60.0
    """Seconds of wall-clock time between two checkpoints; what a crash can cost at most. 0 saves after every update."""

    callbacks: tuple[str, ...] = ()
    """Code of one's own that is called in the course of training: file.py:Name, or "file.py:Name(patience=3)", where
    Name is a subclass of operant.Callback, or makes one. A resumed run calls it again."""

    track: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics are shown, too (extra: track); where to, and for whom, is set by the trackers' own environment
    variables. A resumed run is shown there, too."""

    @property
    def evaluation_interval(self) -> int:
        """Budget units of one seed between two evaluations."""
        return self.evaluate_every or max(1, self.budget // 20)

    def table(self, package: str | None) -> dict[str, Any]:
        """Return what a file says of the settings of a run.

        Args:
            package: of the algorithm, whose file names no setting that others alone have, unless it was changed; None
                where there is nothing to say about the algorithm.
        """
        idle = {name for name, packages in OF_PACKAGES.items() if package is not None and package not in packages}
        changed = {} if package is None else self.of_others(package)
        return {name: value for name, value in to_table(self).items() if name not in idle or name in changed}

    def of_others(self, package: str) -> dict[str, Any]:
        """Return the settings, and their values, that were changed though algorithms of `package` do not have them.

        Not to compile is what those without anything to compile do.
        """
        plain = vars(Settings(self.algorithm, self.task)) | ({"compile": "off"} if self.compile == "off" else {})
        others = [name for name, packages in OF_PACKAGES.items() if package not in packages]
        return {name: getattr(self, name) for name in others if getattr(self, name) != plain[name]}

    def __post_init__(self) -> None:
        require(self)
        task = vars(self)["task"]
        if not isinstance(task, str):
            raise ValueError(
                f'task must be a name such as "CartPole-v1", got an object of type {type(task).__name__}; register '
                "what makes the environment, in all its wrappers, with gymnasium.register, and give its id, such as "
                '"module:Name-v0"'
            )
        if not isinstance(self.env_kwargs, Mapping) or not all(isinstance(name, str) for name in self.env_kwargs):  # pyright: ignore[reportUnnecessaryIsInstance] - from anywhere
            raise ValueError(f"env_kwargs must be a dictionary with names as keys, got {self.env_kwargs!r}")
        plain = {name: _plain(value, f"env_kwargs: {name}") for name, value in self.env_kwargs.items()}
        object.__setattr__(self, "env_kwargs", plain)
        object.__setattr__(
            self, "wrappers", (self.wrappers,) if isinstance(self.wrappers, str) else tuple(self.wrappers)
        )
        for wrapper in self.wrappers:
            doors.Call.of(wrapper)
        for name in ("algorithm", "task"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} must be named, got {getattr(self, name)!r}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds must be one or more different non-negative integers, got {self.seeds}")
        if not _DEVICE.fullmatch(self.device):
            raise ValueError(f"device must be auto, cpu, cuda, cuda:<n>, mps or xpu, got {self.device!r}")


def counted_seeds(first: int, count: int) -> tuple[int, ...]:
    """Return as many seeds from the first on.

    Raises:
        ValueError: there are more than `MOST_SEEDS`.
    """
    if count > MOST_SEEDS:
        raise ValueError(f"a run has at most {MOST_SEEDS} seeds, got {count}: --seed says from which they count")
    return tuple(range(first, first + count))


def _plain(value: Any, where: str) -> Any:
    """Return a parameter as a file gives it back: lists for tuples, numbers of Python for those of NumPy.

    Raises:
        ValueError: a file cannot hold it.
    """
    if isinstance(value, np.ndarray | np.generic):
        return _plain(cast(Any, value).tolist(), where)
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in cast(Sequence[Any], value)]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where) for key, item in cast(Mapping[Any, Any], value).items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{where} must be a number, a truth value, a text, or a list or dictionary of these, which config.toml holds, "
        f"got {value!r:.80}; register an environment with it by gymnasium.register(..., kwargs=...)"
    )
