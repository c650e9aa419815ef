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
"""Settings that only the algorithms of some packages have, with these packages."""

MOST_SEEDS = 1_000_000
"""Maximum number of seeds of a run, to avoid exhausting memory."""

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?|xpu(:\d+)?")


@dataclass(frozen=True)
class Settings:
    """Settings common to all algorithms; hyperparameters are in the configuration of the algorithm.

    Raises:
        ValueError: a value is out of range.
    """

    algorithm: str
    """Name of the algorithm (see `operant list`)."""

    task: str
    """Gymnasium id such as CartPole-v1, a custom environment as path/to/file.py:MyEnv, the drawing of a grid (.txt) or
    a finite model (.csv, .tsv, .json, .npz); for language models a built-in task such as arithmetic, or a data set."""

    seeds: tuple[int, ...] = (0,)
    """Seeds, trained in parallel: different non-negative integers. A single seed is not a reliable result: use 5 or
    more."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the environment, such as size=30 slippery=false; drawing=@FILE reads the text of a file."""

    budget: PositiveInt = 100_000
    """Training budget per seed, in the algorithm's unit: environment steps, prompts or examples."""

    wrappers: tuple[str, ...] = ()
    """Wrappers of the environments, from the innermost to the outermost: subclasses of operant.envs.Wrapper as
    path/to/file.py:Name or 'path/to/file.py:Name(scale=0.1)'. Those with in_evaluation are also used in evaluations."""

    env_backend: Literal["auto", "tensor", "gymnasium", "envpool"] = "auto"
    """Backend of the environments: operant's batched ones (tensor), Gymnasium's (gymnasium), the faster available one
    of these (auto), or EnvPool's in C++ threads (envpool), with which a resumed run starts new episodes."""

    vectorization: Literal["sync", "async"] = "sync"
    """Vectorization of Gymnasium's environments: in this process (sync), or in worker processes (async)."""

    num_workers: NonNegativeInt = 0
    """Number of worker processes for the environments of training and evaluations; 0: one per core, at most one per
    environment. Use more if environments wait for something other than the processor."""

    lost_workers: Literal["end", "restart", "replay"] = "end"
    """Behavior if a worker dies or hangs: end training with an error, to be resumed (end); replace the worker and
    replay its episodes, which does not change results (replay); or replace the worker and start new episodes, without
    exact resume (restart)."""

    worker_seconds: PositiveFloat = 120.0
    """Time limit in seconds for a reply of a worker process."""

    clip_rewards: bool = True
    """Clip rewards to [-1, 1] in training, for Atari; scores are never clipped."""

    episodic_life: bool = False
    """End training episodes when a life is lost, for Atari; scores are of whole games."""

    device: str = "auto"
    """Device: cpu, cuda, cuda:1, mps, xpu, or auto: the CPU for small networks, and a GPU if available for pretrained
    language models."""

    threads: NonNegativeInt = 0
    """Number of CPU threads. 0: 1 for small networks, for which more threads are slower; 2 for built-in language models
    (1 with several shards, or if torch was imported before operant, so that waiting threads spin); all cores for
    pretrained ones (divided among shards)."""

    precision: Literal["highest", "high", "medium"] = "highest"
    """Precision of float32 matrix products: highest; high (TF32) and medium (bfloat16; TF32 on CUDA) are faster for
    layers of 256 units or more with hardware support, and accurate to 2 or 3 digits."""

    compile: Literal["auto", "on", "off"] = "auto"
    """Compile updates (backend of torch.compile): takes some seconds at the start and saves 10 to 50 % of each update.
    auto: if the run is long enough and a C++ compiler is available."""

    shards: PositiveInt = 1
    """Number of shards of each batch and its environments or prompts, the maximum of --processes. Results do not depend
    on the number of processes, but their last bits depend on the number of shards. Powers of two are recommended."""

    evaluate_every: NonNegativeInt = 0
    """Interval of evaluations, in budget units per seed; 0: a twentieth of the budget. The last one is at the end."""

    evaluate_episodes: PositiveInt = 20
    """Number of episodes per seed and evaluation."""

    evaluate_max_steps: NonNegativeInt = 0
    """Maximum number of steps of an evaluation episode, which is truncated then, unless the environment has a lower
    limit.
    0: 100000; for tabular methods the environment's limit, or 10000 if it has none."""

    checkpoint_seconds: NonNegativeFloat = 60.0
    """Interval of checkpoints in seconds, the maximum training time lost in a crash. It is longer if checkpoints would
    take more than a twentieth of the time. 0: after every update."""

    keep_checkpoints: int | Literal["auto", "all", "none"] = "auto"
    """Checkpoints to keep for time travel (`operant watch RUN --at STEP`), in addition to the newest two: this number
    in equal intervals of the budget, and the start; all: after every update; none; auto: 20 if a checkpoint has at most
    2 MiB, otherwise none."""

    callbacks: tuple[str, ...] = ()
    """Training callbacks, used again by a resumed run: file.py:Name or "file.py:Name(patience=3)", where Name is a
    subclass of operant.Callback or a function that returns an instance."""

    track: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Experiment trackers (extra: track), used again by a resumed run; configure them by their environment
    variables."""

    @property
    def evaluation_interval(self) -> int:
        """Interval of evaluations, in budget units per seed."""
        return self.evaluate_every or max(1, self.budget // 20)

    def table(self, package: str | None) -> dict[str, Any]:
        """Return the settings of a run as a table for its configuration file.

        Args:
            package: package of the algorithm; default settings of other packages are omitted. None if the algorithm is
                unknown.
        """
        idle = {name for name, packages in OF_PACKAGES.items() if package is not None and package not in packages}
        changed = {} if package is None else self.of_others(package)
        return {name: value for name, value in to_table(self).items() if name not in idle or name in changed}

    def of_others(self, package: str) -> dict[str, Any]:
        """Return the non-default settings that algorithms of `package` do not have.

        `compile="off"` is allowed for all algorithms.
        """
        plain = vars(Settings(self.algorithm, self.task)) | ({"compile": "off"} if self.compile == "off" else {})
        others = [name for name, packages in OF_PACKAGES.items() if package not in packages]
        return {name: getattr(self, name) for name in others if getattr(self, name) != plain[name]}

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.generic):
                object.__setattr__(self, name, value.item())
        if not isinstance(vars(self)["device"], str):  # such as torch.device("cpu")
            object.__setattr__(self, "device", str(self.device))
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
        require_device(self.device)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def require_device(device: str) -> None:
    """Validate the name of a device.

    Raises:
        ValueError: there is no such device on any machine.
    """
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"device must be auto, cpu, cuda, cuda:<n>, mps or xpu, got {device!r}")


def counted_seeds(first: int, count: int) -> tuple[int, ...]:
    """Return `count` consecutive seeds from `first`.

    Raises:
        ValueError: `count` exceeds `MOST_SEEDS`, or `first` is not an integer.
    """
    if not isinstance(cast(object, first), Integral):
        raise ValueError(f"seed, the first of the seeds, must be an integer, got {first!r}")
    if count > MOST_SEEDS:
        raise ValueError(f"a run can have at most {MOST_SEEDS} seeds, got {count}; use --seed for the first seed")
    return tuple(range(first, first + count))


def seeds_of(seeds: Any, first: int) -> tuple[int, ...]:
    """Return the seeds as a tuple, from their number or from a list.

    Raises:
        ValueError: there is a first seed for a list, or the seeds are neither a number nor a list.
    """
    if isinstance(seeds, np.ndarray):
        seeds = seeds.tolist()
    if isinstance(seeds, Sequence):
        if first:
            raise ValueError(f"seed={first} is the first seed, but seeds is a list: {list(cast(Any, seeds))}")
        return tuple(seed.item() if isinstance(seed, np.integer) else seed for seed in cast(Sequence[Any], seeds))
    if isinstance(seeds, bool) or not isinstance(seeds, Integral):
        raise ValueError(f"seeds must be their number, or a list of integers, got {seeds!r}")
    return counted_seeds(first, int(seeds))


def seeds_in_words(seeds: Sequence[int]) -> str:
    """Return the number of seeds and which they are, such as `8 seeds, 0 to 7`."""
    first, count = seeds[0], len(seeds)
    if count == 1:
        return f"seed {first}"
    if tuple(seeds) == tuple(range(first, first + count)):
        return f"{count} seeds, {first} to {seeds[-1]}"
    rest = ", ..." if count > 10 else ""
    return f"{count} seeds: {', '.join(map(str, seeds[:10]))}{rest}"


def too_many_seeds(seeds: Sequence[int], most: int) -> str:
    """Return the fix of an error: these seeds do not fit into memory, of which there is enough for `most`."""
    fix = f"train at most {most} seeds together" if most else "use a machine with more memory"
    alone = f", and --seed {len(seeds)} --seeds 1 trains seed {len(seeds)} alone" if not seeds[0] else ""
    return f"{fix}; --seeds is their number{alone}"


def _plain(value: Any, where: str) -> Any:
    """Convert a keyword argument to the form that is read from a file: tuples to lists, NumPy numbers to Python's.

    Raises:
        ValueError: the value cannot be stored in a file.
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
