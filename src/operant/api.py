"""The Python interface, which the command line uses too: `configure`, `train`, `resume` and `load`.

`train`, `resume` and `load` return a `Trained`: `Trained.evaluate` scores its policies, `Trained.predict` computes
actions.
"""

import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from operant import catalog, doors
from operant.build import (
    NO_WEIGHTS,
    assemble,
    begin_with,
    check_names,
    find,
    given,
    package,
    pin,
    reassemble,
    require_kinds,
    require_own_process,
    resolve,
    share_networks,
)
from operant.envs import without_episodes
from operant.envs.registry import drawn, from_object
from operant.runtime.advice import hints_of
from operant.runtime.callback_files import callbacks_of, named, recorded, unnamed
from operant.runtime.callbacks import Callback, Report
from operant.runtime.checkpoints import DamagedError
from operant.runtime.checkpoints import load as load_checkpoint
from operant.runtime.configuration import learner_kind
from operant.runtime.edits import require_unedited
from operant.runtime.evaluation import Evaluation
from operant.runtime.experiment import Answering, Collecting, Experiment, Reachable
from operant.runtime.generations import keep_samples
from operant.runtime.learner import HasWeights
from operant.runtime.ledger import keep_ledgers
from operant.runtime.progress import ProgressMode, announce
from operant.runtime.run import Run
from operant.runtime.run_paths import TakenError, default_run_path, location
from operant.runtime.settings import Settings, seeds_in_words, seeds_of
from operant.runtime.shards import group
from operant.runtime.signals import saving_first
from operant.runtime.time_travel import TimeTravel, require_reached
from operant.runtime.trackers import trackers_of
from operant.runtime.trained import Trained
from operant.runtime.training import require_own_beginning, resume_from
from operant.runtime.training import train as run_training
from operant.runtime.warned import keeping
from operant.runtime.weights import best_weights_of, load_best_weights, opened, require_best

logger = logging.getLogger(__name__)


def configure(algorithm: str | type, task: Any, *, preset: str | None = None, **parameters: Any) -> Any:
    """Return an algorithm's configuration for a task.

    Args:
        algorithm: name of a built-in algorithm, or an external one, as for `train`.
        task: training task, as for `train`; its preset is used if the algorithm has one.
        preset: name of another preset.
        **parameters: values of single fields, which override the preset.

    Raises:
        ValueError: a name is unknown, or a value out of its range.
    """
    entry, task = find(algorithm), doors.named(task)
    if not isinstance(task, str) and entry.package != "language":
        task, _ = from_object(task, {})
    return package(entry).configuration(entry, task, preset, **parameters)


def train(
    algorithm: str | type,
    task: Any = None,
    *,
    env: Any = None,
    seeds: int | Sequence[int] | NDArray[np.integer[Any]] = 1,
    seed: int = 0,
    budget: int | None = None,
    run: str | Path | None = None,
    init: str | Path | None = None,
    preset: str | None = None,
    config: Any = None,
    bonus: str | Sequence[str] = (),
    progress: ProgressMode = "auto",
    interrupted: Callable[[], bool] | None = None,
    report: Report | None = None,
    callbacks: Iterable[Callback | str] = (),
    command: Sequence[str] = tuple(sys.argv),
    **parameters: Any,
) -> Trained:
    """Train an algorithm on a task, all seeds in parallel, and save everything in a folder.

    Args:
        algorithm: a name from `operant list`, such as `"ppo"`; or your own learner's class, or its path,
            `"path/to/file.py:Name"` or `"package.module:Name"`.
        task: training task, such as `"CartPole-v1"`; your own environment, `"path/to/file.py:MyEnv"`, its class, a
            function that makes one (`lambda: MyEnv(size=3)`), or Gymnasium's `EnvSpec`; a text file (`.txt`) with the
            drawing of a grid; an `operant.mdp.MDP`, or a file with one (`.csv`, `.json`, ...). For language models a
            built-in task, a data set, or examples: a list of dictionaries or a `datasets.Dataset`. Optional if `env` or
            `dataset` is given.
        env: another name of the parameter `task`.
        seeds: number of seeds, counted from `seed`; or a list of seeds.
        seed: first seed.
        budget: training budget per seed, in the algorithm's unit (environment steps, prompts, ...). Default: the
            algorithm's default for the task.
        run: folder of the run, new or empty. Default: `runs/<algorithm>-<task>-<n>`, with the first free number.
        init: a run to start from, or `RUN/best` for its best evaluation: seeds of deep control start from its networks
            and normalization statistics, with new optimizers; language models from its model. Default: none.
        preset: name of a preset. Default: the one for the task.
        config: a complete configuration instead of a preset and parameters.
        bonus: exploration bonuses for deep control, such as `"episodic"` or `"rnd(weight=0.1)"`, or your own class,
            `"file.py:Curiosity"` (docs/exploration.md): each is a wrapper and, if the algorithm has `reward_channels`,
            a separate channel.
        progress: display of progress on standard error.
        interrupted: function called after every iteration and at every step of an evaluation in environments; once it
            returns True, the state is saved and training stops. Default: stop on Ctrl-C, SIGTERM or SIGUSR1, after
            saving the state (`operant.runtime.signals.saving_first`).
        report: function called with every record of metrics and every evaluation
            (`operant.runtime.callbacks.Report`), to display them elsewhere; it is disabled after an error.
        callbacks: instances of subclasses of `operant.Callback`, or strings such as `"file.py:Name(patience=3)"`,
            which are saved with the run and used again by `resume`. They are called on events and can stop training.
        command: command line to record.
        **parameters: fields of `operant.runtime.settings.Settings` (`env_backend="gymnasium"`) and of the
            algorithm's configuration (`gamma=0.98`); functions and classes are saved by their path, `"file.py:name"`.
            Those outside files, such as lambdas, are listed in the run, which cannot be rebuilt without them
            (`load(run, objects=...)`). Language models take examples as `dataset` and `eval_dataset`, reward functions
            as `rewards`, and a transformers model as `model` with its `tokenizer`; examples and models are saved as
            files in the folder `objects`, next to the run's folder.

    Raises:
        ValueError: a name is unknown or a value out of its range; nothing was written.
        RunError: the folder is in use or not writable.
        OSError: a required server does not respond; nothing was written.
        RuntimeError: this is one of several processes of torchrun without a group (`operant.scale.joined`).
        KeyboardInterrupt: Ctrl-C, after saving the state; after a second one the last checkpoint remains.
    """
    require_kinds(progress, init=init, bonus=bonus, interrupted=interrupted, report=report)
    entry, parameters = find(algorithm), {name: doors.named(value) for name, value in parameters.items()}
    task, parameters = given(entry, doors.named(task), doors.named(env), parameters, run)
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterator) else callbacks
    all_callbacks = callbacks_of(callbacks) + trackers_of(parameters.get("track", ()))
    chosen_settings: dict[str, Any] = _of_settings(parameters) | {"callbacks": named(callbacks)}
    if entry.package != "language":
        task, chosen_settings["env_kwargs"] = drawn(task, chosen_settings.get("env_kwargs", {}))
    chosen_settings["budget"] = entry.budget_for(str(task)) if budget is None else budget
    settings = Settings(algorithm=entry.name, task=task, seeds=seeds_of(seeds, seed), **chosen_settings)
    model = {} if init is None or entry.package != "language" else {"init": str(init)}
    check_names(entry, parameters)
    if config is None:
        config = configure(algorithm, task, preset=preset, **parameters, **model)
    elif preset is not None or parameters:
        raise ValueError(f"config is complete: leave out preset and parameters, got {', '.join(parameters) or preset}")
    learner_kind(entry, config)
    config = replace(config, **model) if model else config
    source = None if init is None or model else Path(init).resolve()
    with ExitStack() as stack:
        keeper = stack.enter_context(keeping())
        settings, config, inputs = pin(entry, *_with_bonuses(entry, settings, config, bonus), source)
        resolved = resolve(entry, settings, config)
        initial = (None, ()) if source is None else _load_source(source, entry)
        experiment = assemble(entry, settings, config, resolved)
        stopping = stack.enter_context(saving_first(interrupted))
        stack.enter_context(closing(experiment))
        _check_servers(experiment)
        if source is not None:
            begin_with(*initial, experiment.learner, settings.seeds, source)
        facts = resolved | _facts(experiment, config, source)
        own = {"inputs": inputs, "outside": None if entry in catalog.ALGORITHMS else entry}
        make = partial(Run.create, settings=settings, config=config, command=command, resolved=facts, **own)
        folder = _first_free(make, entry.name, task) if run is None else make(run)
        keeper.attach(folder.path)
        folder.note_callbacks(unnamed(callbacks))
        group().lead(str(folder.path), settings.budget, experiment.learner)
        if source is not None:
            folder.checkpoints.save(experiment.learner.state_dict(), experiment.learner.consumed)
        return _train(Trained(folder, experiment), progress, stopping, report, all_callbacks)


def _facts(experiment: Experiment, config: Any, source: Path | None) -> dict[str, Any]:
    """Return the resolved values to record: compilation, the initial run, and Python objects outside files."""
    facts: dict[str, Any] = {"compile": isinstance(experiment, Collecting) and experiment.compiled}
    facts |= {} if source is None else {"init": str(source)}
    held = doors.described([*experiment.settings.__dict__.values(), *config.__dict__.values()])
    return facts | ({"objects": held} if held else {})


def _with_bonuses(
    entry: catalog.Algorithm, settings: Settings, config: Any, bonus: str | Sequence[str]
) -> tuple[Settings, Any]:
    if not bonus:
        return settings, config
    if entry.package != "control":
        raise ValueError(f"{entry.name} takes no bonus, leave it out; deep control does, such as ppo and dqn")
    from operant.control.bonuses import with_bonuses  # noqa: PLC0415 - not for tables and language models

    return with_bonuses(settings, config, (bonus,) if isinstance(bonus, str) else bonus)


def _of_settings(parameters: dict[str, Any]) -> dict[str, Any]:
    """Pop the fields of `Settings` from `parameters` and return them."""
    found = {field.name: parameters.pop(field.name) for field in fields(Settings) if field.name in parameters}
    return found | {"track": tuple(found.get("track", ()))}


def _first_free(make: Callable[[Path], Run], algorithm: str, task: str) -> Run:
    """Create a run in the first free default folder; safe when several processes start runs concurrently."""
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
    report: Report | None = None,
    callbacks: Iterable[Callback | str] = (),
    track: Sequence[str] | None = None,
    command: Sequence[str] = tuple(sys.argv),
    remote_code: bool = False,
    accept_changes: bool = False,
    new_episodes: bool = False,
    objects: Mapping[str, Any] | None = None,
) -> Trained:
    """Resume an interrupted run exactly from its latest checkpoint, and train to the end of its budget.

    Args:
        run: folder of the run.
        budget: new budget per seed, saved with the run; schedules are rescaled to it. Not for language models.
            Default: the run's budget.
        progress: as for `train`.
        interrupted: as for `train`.
        report: as for `train`.
        callbacks: additional callbacks for this session.
        track: trackers for this session, such as `["tensorboard"]`; an empty list disables tracking. Default: the
            run's trackers.
        command: command line to record.
        remote_code: whether to allow Python code that comes with a language model, if the run needs it.
        accept_changes: whether to continue if the run's data, models, files with rewards or environments, or
            `config.toml` have changed; the run then records the new ones.
        new_episodes: whether environments start new episodes instead of continuing the saved ones, which is not exact;
            for environments that are not deterministic given their seed.
        objects: Python objects that are not defined in files, by their names in the run, which alone uses them.
            Default: those passed for this run before in this process.

    Raises:
        ValueError: an object is missing, or the run needs none of that name; the budget is not a positive integer, or
            a budget is given for a language model.
        RunError: there is no run, it has already used more than the budget, another process is training it, its
            model's code is not allowed, or its inputs or `config.toml` have changed.
        CheckpointError: all checkpoints are damaged.
        RestoreError: the environment is not deterministic, so its saved episodes cannot continue (see `new_episodes`).
        OSError: a required server does not respond.
        KeyboardInterrupt, RuntimeError: as for `train`.
    """
    require_kinds(progress, interrupted=interrupted, report=report)
    require_own_process()
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterator) else callbacks
    folder = Run.open(run, objects or {})
    with folder.lock(), keeping(folder.path):
        edited = require_unedited(folder, accept=accept_changes)
        if budget is not None:
            _require_budget(folder)
            folder.set_budget(budget)
        all_callbacks = recorded(folder, callbacks, accept_changes=accept_changes) + callbacks_of(callbacks)
        all_callbacks += trackers_of(folder.settings.track if track is None else track)
        experiment = reassemble(folder, remote_code, accept_changes)
        with saving_first(interrupted) as stopping, closing(experiment):
            _check_servers(experiment)
            group().lead(str(folder.path), folder.settings.budget, experiment.learner)
            if not resume_from(folder, experiment.learner, new_episodes=new_episodes):
                require_own_beginning(folder)
            if budget is not None:
                folder.keep_settings()
            if accept_changes:
                folder.keep_inputs()
            noted = {"new_episodes": True} if new_episodes else {}
            folder.add_session(command, experiment.learner.consumed, **edited, **noted)
            folder.note_callbacks(unnamed(callbacks))
            return _train(Trained(folder, experiment), progress, stopping, report, all_callbacks)


def load(
    run: str | Path,
    *,
    best: bool = False,
    at: int | None = None,
    remote_code: bool = False,
    accept_changes: bool = False,
    objects: Mapping[str, Any] | None = None,
) -> Trained:
    """Load a run from its latest checkpoint, or at an earlier update, for evaluation or inspection.

    Training environments of Gymnasium start new episodes; only `resume` continues the saved ones.

    Args:
        run: folder of the run.
        best: whether to load each seed's policy with the best evaluation during training instead of the latest one
            (`operant.runtime.weights.Best`).
        at: budget used at the requested update (0: before training). The state of the first update at or after it is
            recomputed, bit for bit, from the nearest earlier checkpoint (`operant.runtime.time_travel`). Default: the
            latest checkpoint.
        remote_code: as for `resume`.
        accept_changes: whether to continue if the run's inputs have changed.
        objects: as for `resume`.

    Raises:
        ValueError: an object is missing, or the run needs none of that name; the run has not reached `at`, or both
            `at` and `best` are given.
        RunError: there is no run, it has no checkpoint or no best policies, its model's code is not allowed, its
            inputs have changed, or the update cannot be recomputed.
        CheckpointError: all checkpoints are damaged.
    """
    folder = Run.open(run, objects or {})
    if at is not None and best:
        raise ValueError(f"best and at={at} name different policies: leave out one of them")
    checkpoint = folder.latest_checkpoint() if at is None else require_reached(folder, at)
    if best:
        require_best(folder)
    with ExitStack() as stack:
        experiment = reassemble(folder, remote_code, accept_changes)
        stack.callback(experiment.close)
        if checkpoint is None:
            arrival, consumed = TimeTravel(folder, experiment.learner).go(cast(int, at)), None
        else:
            try:
                state = load_checkpoint(checkpoint)
            except DamagedError:  # training in another process has replaced it meanwhile
                state = load_checkpoint(folder.latest_checkpoint())
            experiment.learner.load_state_dict(without_episodes(state))
            arrival, consumed = None, load_best_weights(folder, experiment) if best else None
        stack.pop_all()
        return Trained(folder, experiment, arrival=arrival, consumed=consumed)


def _load_source(path: Path, entry: catalog.Algorithm) -> tuple[Any, tuple[int, ...]]:
    """Load the learner and seeds of a run whose weights initialize another algorithm, and close its environments.

    Raises:
        ValueError: the algorithm cannot start from its weights.
    """
    run, best = opened(path)
    # If an environment has changed, training uses the new one; a warning reports the change.
    source = load(run.path, best=best, accept_changes=True)
    with closing(source):
        other, learner = source.run.entry, source.experiment.learner
        related = share_networks(entry, other)
        if entry.package == other.package and related and not isinstance(learner, HasWeights):
            raise ValueError(
                f"{entry.name} cannot start from {path}: {other.name} has no weights to copy; {NO_WEIGHTS}"
            )
        if entry.package != other.package or not related:
            raise ValueError(
                f"{entry.name} cannot start from the weights of {other.name} in {path}; init takes runs of deep "
                "control, on-policy methods those of each other, and off-policy methods those of the same file, or of "
                "the method that they extend, such as MBPO those of SAC"
            )
        return learner, source.run.settings.seeds


def _require_budget(folder: Run) -> None:
    """Check that a run's budget may change; language models keep theirs, at which their schedules end."""
    if folder.entry.package == "language":
        raise ValueError(
            f"{folder.settings.algorithm} cannot be resumed with another budget; continue from its model with "
            f"`operant train {shlex.quote(folder.settings.algorithm)} TASK --init {location(folder.path)}`"
        )


def _check_servers(experiment: Experiment) -> None:
    """Check that required servers respond, before anything is written."""
    if isinstance(experiment, Reachable):
        experiment.reach()


def _train(
    trained: Trained,
    progress: ProgressMode,
    interrupted: Callable[[], bool],
    report: Report | None,
    callbacks: Sequence[Callback],
) -> Trained:
    settings = trained.run.settings
    rollout = trained.experiment.rollout_steps if isinstance(trained.experiment, Collecting) else 0
    if rollout > settings.budget:
        logger.warning(
            "a rollout has %d steps per seed, but the budget is %d: each seed uses %d steps more than its budget; "
            "lower num_envs or num_steps to stay within it",
            rollout,
            settings.budget,
            rollout - settings.budget,
        )
    notes = trained.experiment.notes if isinstance(trained.experiment, Answering) else ()
    announce(progress, [seeds_in_words(settings.seeds), *notes])
    hints = hints_of(trained.run, kept=bool(best_weights_of(trained.run, trained.experiment)))
    outcome = run_training(
        trained.experiment.learner,
        trained.run,
        budget=settings.budget,
        evaluate=lambda _: _evaluate(trained, interrupted),
        evaluate_every=settings.evaluation_interval,
        evaluate_first=hints is not None,
        hints=hints,
        checkpoint_seconds=settings.checkpoint_seconds,
        interrupted=interrupted,
        report=report,
        callbacks=callbacks,
        progress=progress,
    )
    return replace(trained, outcome=outcome)


def _evaluate(trained: Trained, interrupted: Callable[[], bool]) -> Evaluation:
    """Evaluate the policies during training, and save their answers, if any."""
    evaluation = trained.experiment.evaluate(interrupted=interrupted)
    if isinstance(trained.experiment, Answering):
        keep_samples(trained.run, trained.experiment.learner.consumed, trained.experiment.samples)
        keep_ledgers(trained.run.path, trained.experiment.ledgers())
    for taught, best in best_weights_of(trained.run, trained.experiment):
        best.offer(taught, evaluation)
    return evaluation
