"""Settings of all runs: `Settings`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal, cast

import numpy as np

from operant import doors
from operant.runtime.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, require
from operant.runtime.tables import to_table

_ACTING, _CONTROL = ("control", "tabular"), ("control",)

OF_PACKAGES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("env_kwargs", "env_backend", "evaluate_episodes", "evaluate_max_steps", "wrappers"), _ACTING),
    **dict.fromkeys(("vectorization", "num_workers", "lost_workers", "worker_seconds"), _CONTROL),
    **dict.fromkeys(("clip_rewards", "episodic_life", "compile"), _CONTROL),
    "shards": ("control", "language"),
}
"""Packages whose algorithms have a setting; all have the others."""

MOST_SEEDS = 1_000_000
"""Maximum number of seeds of a run; more would exhaust memory without a message."""

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?|xpu(:\d+)?")


@dataclass(frozen=True)
class Settings:
    """Settings common to all algorithms. Those of one algorithm are in its configuration.

    Raises:
        ValueError: a value is out of range.
    """

    algorithm: str
    """Name of the algorithm, as `operant list` prints it."""

    task: str
    """A Gymnasium id such as CartPole-v1, or your own environment, path/to/file.py:MyEnv; for
    language models a built-in task such as arithmetic, or a data set."""

    seeds: tuple[int, ...] = (0,)
    """Seeds of the run, trained in parallel; different integers from 0. One seed is not a result: use 5 or more."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Parameters for the constructor of the task's environment, such as size=30 slippery=false; drawing=@FILE is the
    text of a file."""

    budget: PositiveInt = 100_000
    """Training budget of each seed, in the algorithm's unit: environment steps, prompts or examples."""

    wrappers: tuple[str, ...] = ()
    """Wrappers around the environments, the innermost first: your own classes, path/to/file.py:Name or
    'path/to/file.py:Name(scale=0.1)', derived from operant.envs.Wrapper. Those with in_evaluation also apply in
    evaluations."""

    env_backend: Literal["auto", "tensor", "gymnasium", "envpool"] = "auto"
    """Implementation of the environments: operant's batched ones (tensor), Gymnasium's, the faster of these (auto), or
    EnvPool's in C++ threads, if installed: with EnvPool a resumed run begins new episodes."""

    vectorization: Literal["sync", "async"] = "sync"
    """Where Gymnasium's environments run: in this process (sync), or in worker processes (async)."""

    num_workers: NonNegativeInt = 0
    """Worker processes that share the environments, in training and evaluations; 0: one per core, at most one per
    environment. More pay off if environments wait for something else."""

    lost_workers: Literal["end", "restart", "replay"] = "end"
    """When a worker dies or hangs: end training with an error that names its environments, to be resumed (end); replace
    it, and play the episodes of its environments again up to now (replay), which changes no bit of the run; or replace
    it, and begin new episodes (restart), without exact resume."""

    worker_seconds: PositiveFloat = 120.0
    """Seconds that a worker process may take for one reply before training ends with an error that names it."""

    clip_rewards: bool = True
    """For Atari: whether rewards are clipped to [-1, 1] in training; scores never are."""

    episodic_life: bool = False
    """For Atari: whether losing a life ends an episode in training; scores are of whole games."""

    device: str = "auto"
    """Device: cpu, cuda, cuda:1, mps, xpu, or auto: the CPU for small networks, a GPU, if there is one, for
    pretrained language models."""

    threads: NonNegativeInt = 0
    """CPU threads; 0: chosen by operant: 1 for small networks, where more only cost time, 2 for the built-in language
    models (1 if torch was imported before operant, whose threads then spin, or with several shards), all cores for
    pretrained ones (with several shards, an equal part of them for each)."""

    precision: Literal["highest", "high", "medium"] = "highest"
    """Precision of 32-bit matrix products: highest is exact up to rounding; high (TF32) and medium (bfloat16; TF32 on
    CUDA) are faster on layers of 256 and more with hardware support, and exact to 2 or 3 digits."""

    compile: Literal["auto", "on", "off"] = "auto"
    """Whether updates are compiled (`torch.compile`'s back end): costs seconds at the start and saves a tenth to a half
    of each update; auto: if the run is long enough and there is a C++ compiler."""

    shards: PositiveInt = 1
    """Shards of each batch and its environments or prompts, for up to as many processes: --processes changes no bit of
    a run, but another number of shards changes the last bits. Powers of two divide best."""

    evaluate_every: NonNegativeInt = 0
    """Budget units of one seed between two evaluations; 0: a twentieth of the budget. The last one is at the end."""

    evaluate_episodes: PositiveInt = 20
    """Episodes of each seed in one evaluation."""

    evaluate_max_steps: NonNegativeInt = 0
    """Steps after which an episode of an evaluation is truncated, unless the environment has a shorter limit; its
    return until then counts. 0: 100000, for tables 10000."""

    checkpoint_seconds: NonNegativeFloat = 60.0
    """Seconds of wall-clock time between two checkpoints, the most that a crash can cost. 0: after every update."""

    keep_checkpoints: int | Literal["auto", "all", "none"] = "auto"
    """Checkpoints that are kept along the training, apart from the newest two, to go back to (`operant watch RUN --at
    STEP`): the start, and after each of this many equal parts of the budget; all: after every update; none; auto: 20 of
    them where one takes at most 2 MiB, else none."""

    callbacks: tuple[str, ...] = ()
    """Callbacks during training: file.py:Name, or "file.py:Name(patience=3)", where Name is a subclass of
    operant.Callback, or makes one. A resumed run calls them again."""

    track: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Trackers that also receive the metrics (extra: track), configured by their own environment variables. A resumed
    run uses them again."""

    @property
    def evaluation_interval(self) -> int:
        """Budget units of one seed between two evaluations."""
        return self.evaluate_every or max(1, self.budget // 20)

    def table(self, package: str | None) -> dict[str, Any]:
        """Return the settings of a run for a file.

        Args:
            package: of the algorithm; unchanged settings of other packages are left out. None if the algorithm is
                unknown.
        """
        idle = {name for name, packages in OF_PACKAGES.items() if package is not None and package not in packages}
        changed = {} if package is None else self.of_others(package)
        return {name: value for name, value in to_table(self).items() if name not in idle or name in changed}

    def of_others(self, package: str) -> dict[str, Any]:
        """Return the changed settings, with values, that algorithms of `package` do not have.

        `compile` off is allowed for all.
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
                "its constructor, with all wrappers, by gymnasium.register, and give its id, such as "
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
        if not (self.keep_checkpoints in ("auto", "all", "none") or _positive(self.keep_checkpoints)):
            raise ValueError(f"keep_checkpoints must be auto, all, none or at least 1, got {self.keep_checkpoints!r}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds must be one or more different non-negative integers, got {self.seeds}")
        if not _DEVICE.fullmatch(self.device):
            raise ValueError(f"device must be auto, cpu, cuda, cuda:<n>, mps or xpu, got {self.device!r}")


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def counted_seeds(first: int, count: int) -> tuple[int, ...]:
    """Return `count` seeds from the first on.

    Raises:
        ValueError: there are more than `MOST_SEEDS`, or the first one is not an integer.
    """
    if not isinstance(cast(object, first), Integral):
        raise ValueError(f"seed, the first of the seeds, must be an integer, got {first!r}")
    if count > MOST_SEEDS:
        raise ValueError(f"a run has at most {MOST_SEEDS} seeds, got {count}: --seed is the first of them")
    return tuple(range(first, first + count))


def _plain(value: Any, where: str) -> Any:
    """Return a parameter as read back from a file: lists for tuples, Python numbers for NumPy's.

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
        f"{where} must be a number, a bool, a string, or a list or dictionary of these, as config.toml stores it, "
        f"got {value!r:.80}; register an environment with it by gymnasium.register(..., kwargs=...)"
    )
