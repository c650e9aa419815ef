"""The library in four calls, which the command line shares: `train`, `resume`, `load`, and a result.

A result is scored by `Trained.evaluate` and acts by `Trained.predict`.
"""

import importlib
import logging
import operator
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from operant import catalog, streams
from operant.envs import without_episodes
from operant.nets import missing_tool, set_precision
from operant.runtime.checkpoints import load as load_checkpoint
from operant.runtime.evaluation import Evaluation
from operant.runtime.experiments import require_no_compiling, require_no_game, require_no_workers
from operant.runtime.predicting import Predictor
from operant.runtime.progress import ProgressMode
from operant.runtime.run import Run, RunError, TakenError, default_run_path
from operant.runtime.samples import keep_samples
from operant.runtime.settings import Settings
from operant.runtime.signals import saving_first
from operant.runtime.training import Outcome, resume_from
from operant.runtime.training import train as run_training

logger = logging.getLogger(__name__)

LANGUAGE = ("transformers", "tokenizers", "peft", "datasets")
"""Packages of the extra `language` that every run of a language model needs."""
EPISODES = 100
"""Of each seed, when a run is scored after training, unless another number is asked for."""


@dataclass(frozen=True)
class Trained:
    """A run and what it has learned.

    Attributes:
        run: its folder.
        experiment: the learner (`experiment.learner`) and its environments.
        outcome: how the training ended; None if it was only loaded.
    """

    run: Run
    experiment: Any
    outcome: Outcome | None = None

    def evaluate(self, episodes: int | None = None, *, backend: str | None = None) -> Evaluation:
        """Score the policies of all seeds, greedily.

        Args:
            episodes: of each seed, or held-out examples of a language model. Default: 100 episodes, all the examples.
            backend: "tensor" or "gymnasium"; means nothing for language models. Default: that of the run.
        """
        if episodes is None:
            episodes = getattr(self.experiment, "held_out", EPISODES)
        return self.experiment.evaluate(episodes, backend=backend)

    def predict(
        self, observations: Any, memory: Any = None, *, seed_index: int = 0, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """Return what the policy of one seed does.

        Args:
            observations: NumPy arrays, or a dictionary of them, as `gymnasium.make(task)` gives them: one observation,
                or N of them stacked along a first axis. For games of Atari, as `operant.envs.Atari` gives them.
            memory: what a recurrent policy returned with the observation before; None at the start of an episode. In a
                batch the rows that start an episode are set to 0. Other policies have none.
            seed_index: the place of the seed among those of the run.
            deterministic: whether to take the likeliest action, or to sample as in training.

        Returns:
            The action that `env.step` takes, or `[N, ...]` of them for a batch; and the memory to hand over next.

        Raises:
            ValueError: the run is of a language model, there is no such seed, or a shape is wrong.
        """
        noise = None if deterministic else lambda rows: self.experiment.learner.noise(rows, self._stream)
        return self._predictor.predict(observations, memory, seed_index=seed_index, noise=noise)

    @cached_property
    def _predictor(self) -> Predictor:
        settings, learner = self.run.settings, self.experiment.learner
        if catalog.find(settings.algorithm).chapter == "language":
            raise ValueError(
                f"{settings.algorithm} has trained a language model, which answers prompts and takes no observations; "
                f"try `operant chat {self.run.path}`"
            )
        wrap = getattr(self.experiment, "wrap", None)
        return Predictor(learner, settings.task, seeds=len(settings.seeds), wrap=wrap, device=learner.device)

    @cached_property
    def _stream(self) -> torch.Generator:
        """Random numbers of the actions that `predict` samples."""
        device = self.experiment.learner.device
        return streams.torch_generator(self.run.settings.seeds[0], "predicting", device=device)

    def close(self) -> None:
        """Close the environments. Twice does no harm."""
        self.experiment.close()


def configure(algorithm: str, task: str, *, preset: str | None = None, **parameters: Any) -> Any:
    """Return an algorithm's configuration for a task.

    Args:
        algorithm: a name of the catalog.
        task: selects the tuned values for it, where there are some.
        preset: a named set of values instead.
        **parameters: single values, which win.

    Raises:
        ValueError: a name is unknown, or a value out of its range.
    """
    entry = catalog.find(algorithm)
    return _chapter(entry).configuration(entry, task, preset, **parameters)


def train(
    algorithm: str,
    task: str,
    *,
    seeds: int | Sequence[int] | NDArray[np.integer[Any]] = 1,
    seed: int = 0,
    budget: int | None = None,
    run: str | Path | None = None,
    preset: str | None = None,
    config: Any = None,
    progress: ProgressMode = "auto",
    interrupted: Callable[[], bool] | None = None,
    command: Sequence[str] = tuple(sys.argv),
    **parameters: Any,
) -> Trained:
    """Train an algorithm on a task, all seeds side by side, and keep everything in a folder.

    Args:
        algorithm: a name that `operant list` prints, such as `"ppo"`.
        task: what to train on, such as `"CartPole-v1"`.
        seeds: how many, counted from `seed`; or the seeds themselves.
        seed: the first one.
        budget: of each seed, in the algorithm's unit (environment steps, prompts, ...). Default: the algorithm's own.
        run: the folder, new or empty. Default: `runs/<algorithm>-<task>-<n>`, the first that is free.
        preset: a named configuration. Default: the one for the task.
        config: a whole configuration instead of a preset and parameters.
        progress: whether and how to show progress on standard error.
        interrupted: asked after every iteration and at every step of an evaluation that plays episodes; true saves the
            state and stops. Default: whether Ctrl-C, SIGTERM or SIGUSR1 came; once the state is saved they take their
            course (`operant.runtime.signals.saving_first`).
        command: the command line to write down.
        **parameters: fields of `operant.runtime.settings.Settings` (`env_backend="gymnasium"`) and of the
            algorithm's configuration (`gamma=0.98`).

    Raises:
        ValueError: a name is unknown or a value out of its range; nothing was written.
        RunError: the folder is in use or cannot be written.
        OSError: a server that the algorithm needs does not answer; nothing was written.
        KeyboardInterrupt: Ctrl-C came; the state is saved, after a second one that of the last checkpoint.
    """
    entry = catalog.find(algorithm)
    common = {field.name for field in fields(Settings)}
    chosen = {name: parameters.pop(name) for name in list(parameters) if name in common}
    budget = entry.budget if budget is None else budget
    settings = Settings(algorithm=algorithm, task=task, seeds=_seeds(seeds, seed), budget=budget, **chosen)
    if config is None:
        config = configure(algorithm, task, preset=preset, **parameters)
    elif preset is not None or parameters:
        raise ValueError(f"config is complete: it goes without a preset and without {', '.join(parameters) or preset}")
    resolved = _resolve(entry, settings, config)
    experiment = _assemble(entry, settings, config, resolved)
    with saving_first(interrupted) as stopping, closing(experiment):
        _reach(experiment)
        facts = resolved | {"compile": getattr(experiment, "compiled", False)}
        make = partial(Run.create, settings=settings, config=config, command=command, resolved=facts)
        folder = _first_free(make, algorithm, task) if run is None else make(run)
        return _go(Trained(folder, experiment), progress, stopping)


def _first_free(make: Callable[[Path], Run], algorithm: str, task: str) -> Run:
    """Make a run in the first default folder that is free, also where others are looking for one."""
    while True:
        try:
            return make(default_run_path(algorithm, task))
        except TakenError:
            continue


def resume(
    run: str | Path,
    *,
    budget: int | None = None,
    progress: ProgressMode = "auto",
    interrupted: Callable[[], bool] | None = None,
    command: Sequence[str] = tuple(sys.argv),
    remote_code: bool = False,
) -> Trained:
    """Go on with an interrupted run, exactly where its latest checkpoint was taken, to the end of its budget.

    Args:
        run: its folder.
        budget: to go on to another one, of each seed, which the run keeps; schedules stretch over it. Not for language
            models. Default: that of the run.
        progress: as for `train`.
        interrupted: as for `train`.
        command: the command line to write down.
        remote_code: whether Python code that came with a language model may run, if the run wants it.

    Raises:
        ValueError: the budget is no positive integer, or the run is of a language model, which keeps its budget.
        RunError: there is no run, it has consumed more than the budget, another process trains it, or it wants to run
            code that is not allowed.
        CheckpointError: there are checkpoints, but all are damaged.
        RestoreError: the environment is not deterministic, so that its saved episodes cannot be gone on with.
        OSError: a server that the algorithm needs does not answer.
        KeyboardInterrupt: as for `train`.
    """
    folder = Run.open(run)
    with folder.lock():
        if budget is not None:
            _require_budget(folder)
            folder.set_budget(budget)
        experiment = _reassemble(folder, remote_code)
        with saving_first(interrupted) as stopping, closing(experiment):
            _reach(experiment)
            resume_from(folder, experiment.learner)
            if budget is not None:
                folder.keep_settings()
            folder.add_session(command)
            return _go(Trained(folder, experiment), progress, stopping)


def load(run: str | Path, *, remote_code: bool = False) -> Trained:
    """Return a run with its latest checkpoint loaded, to be evaluated or looked at.

    Gymnasium's environments that it was trained in begin new episodes; only `resume` goes on with those it was in.

    Args:
        run: its folder.
        remote_code: as for `resume`.

    Raises:
        RunError: there is no run, it has no checkpoint yet, or it wants to run code that is not allowed.
        CheckpointError: there are checkpoints, but all are damaged.
    """
    folder = Run.open(run)
    found = folder.checkpoints.latest()
    if found is None:
        raise RunError(f"{folder.path} has no checkpoint yet; train it with `operant resume {folder.path}`")
    experiment = _reassemble(folder, remote_code)
    experiment.learner.load_state_dict(without_episodes(load_checkpoint(found[0])))
    return Trained(folder, experiment)


def _seeds(seeds: Any, first: int) -> tuple[int, ...]:
    """Return the seeds of a run from their number or from themselves."""
    if isinstance(seeds, np.ndarray):
        seeds = seeds.tolist()
    if isinstance(seeds, Sequence):
        if first:
            raise ValueError(
                f"seed={first} says where to count from, but the seeds are given one by one: {list(cast(Any, seeds))}"
            )
        return tuple(cast(Sequence[int], seeds))
    try:
        return tuple(range(first, first + operator.index(seeds)))
    except TypeError as error:
        raise ValueError(f"seeds must be their number, or a list of integers, got {seeds!r}") from error


def _require_budget(folder: Run) -> None:
    """Refuse another budget for a language model, whose training ends with its budget: a later step starts anew."""
    name = folder.settings.algorithm
    if catalog.find(name).chapter == "language":
        raise ValueError(
            f"{name} cannot be resumed with another budget; go on from its model with "
            f"`operant train {name} TASK --init {folder.path}`"
        )


def _reach(experiment: Any) -> None:
    """Fail now if a server that the learners need is not there, before anything is written."""
    if hasattr(experiment, "reach"):
        experiment.reach()


def _go(trained: Trained, progress: ProgressMode, interrupted: Callable[[], bool]) -> Trained:
    settings = trained.run.settings
    outcome = run_training(
        trained.experiment.learner,
        trained.run,
        budget=settings.budget,
        evaluate=lambda _: _evaluate(trained, interrupted),
        evaluate_every=settings.evaluation_interval,
        checkpoint_seconds=settings.checkpoint_seconds,
        interrupted=interrupted,
        progress=progress,
    )
    return replace(trained, outcome=outcome)


def _evaluate(trained: Trained, interrupted: Callable[[], bool]) -> Evaluation:
    """Score the policies in the course of training, and keep what they answered, where they do."""
    evaluation = trained.experiment.evaluate(interrupted=interrupted)
    keep_samples(trained.run, trained.experiment.learner.consumed, getattr(trained.experiment, "samples", ()))
    return evaluation


def _resolve(entry: catalog.Algorithm, settings: Settings, config: Any) -> dict[str, Any]:
    """Decide what the settings leave open: the smallest networks are fastest on one thread of the CPU."""
    if entry.chapter != "control":
        require_no_compiling(settings)
        require_no_game(settings)
        require_no_workers(settings)
    language = entry.chapter == "language"
    large = language and not _chapter(entry).built_in(config)
    device = settings.device
    if device == "auto":
        device = "cuda" if large and torch.cuda.is_available() else "cpu"
    if not _present(device):
        raise ValueError(f"device {device!r} is not on this machine; `operant doctor` lists those that are")
    cores = _cores()
    threads = settings.threads or (cores if large else min(2, cores) if language else 1)
    return {"device": device, "threads": threads, "precision": settings.precision}


def _cores() -> int:
    """Return how many cores this process may use: as `OMP_NUM_THREADS` says, or all that it may run on."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _present(device: str) -> bool:
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return True
    backend = getattr(torch, kind)
    return bool(backend.is_available()) and int(index or 0) < backend.device_count()


def _assemble(entry: catalog.Algorithm, settings: Settings, config: Any, resolved: dict[str, Any]) -> Any:
    torch.set_num_threads(resolved["threads"])
    set_precision(resolved["precision"], torch.device(resolved["device"]), stacked=entry.chapter == "control")
    torch.backends.cudnn.allow_tf32 = resolved["precision"] != "highest"  # of convolutions, which it does not reach
    return _chapter(entry).assemble(entry, settings, config, device=resolved["device"])


def _reassemble(folder: Run, remote_code: bool) -> Any:
    entry = catalog.find(folder.settings.algorithm)
    config = folder.config(getattr(importlib.import_module(entry.module), entry.config))
    if entry.chapter == "language":
        _chapter(entry).check_code(config, folder.path, allowed=remote_code)
    resolved = folder.resolved()
    if not _present(resolved["device"]):
        logger.warning(
            "%s was trained on %s, which is not here; it goes on on the cpu", folder.path, resolved["device"]
        )
        resolved["device"] = "cpu"
    compiled = resolved.get("compile", False)
    if compiled and (missing := missing_tool(torch.device(resolved["device"]))):
        logger.warning("%s was compiled, which needs %s; it goes on without", folder.path, missing)
        compiled = False
    settings = replace(folder.settings, compile="on" if compiled else "off")
    return _assemble(entry, settings, config, resolved)


def _chapter(entry: catalog.Algorithm) -> Any:
    """Return the package of an algorithm's chapter.

    Raises:
        ModuleNotFoundError: what it needs is not installed; the message says how to do so.
    """
    absent = [name for name in LANGUAGE if entry.chapter == "language" and find_spec(name) is None]
    if absent:
        raise ModuleNotFoundError(f'{entry.name} needs {", ".join(absent)}: pip install "operant[language]"')
    return importlib.import_module(f"operant.{entry.chapter}")
