"""Construction of experiments for all packages: arguments, device, threads, learner."""

import importlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch

from operant import catalog, doors
from operant.catalog import names, old_names
from operant.envs import own_files, without_episodes, wrappers
from operant.envs.registry import MODEL_SUFFIXES, MODEL_TASK, from_object
from operant.nets import missing_tool, set_precision
from operant.runtime.configuration import require_own
from operant.runtime.edits import require_seeds
from operant.runtime.experiment import Experiment, env_of
from operant.runtime.idle import warn_of_idle, warn_of_idle_in, warn_of_idle_settings
from operant.runtime.inputs import Input, pinned
from operant.runtime.learner import HasAgent, HasCriticKind, HasWeights, NetworkAgent
from operant.runtime.machine import chosen_device, cores, present, threads_sleep
from operant.runtime.progress import require_mode
from operant.runtime.run import Run
from operant.runtime.run_paths import require_new
from operant.runtime.settings import Settings
from operant.runtime.shards import group, started
from operant.runtime.weights import Weights, load_weights

logger = logging.getLogger(__name__)

TRAINING = ("env", "seeds", "seed", "budget", "run", "init", "preset", "config", "bonus", "progress", "callbacks")
"""Arguments of `operant.train` other than the fields of the settings and of the algorithm's configuration."""

LANGUAGE = ("transformers", "tokenizers", "peft", "datasets")
"""Required packages of the extra `language`."""

NO_WEIGHTS = "give it `learned`, a dictionary of its weights by name (operant.runtime.learner.HasWeights)"
"""Fix for a learner whose weights cannot be copied."""

_LAYOUT = (
    *("hidden_sizes", "share_features", "critic_ensemble_size", "n_critics", "rnn_hidden_size", "dueling", "scale_obs"),
    *("deter", "stoch", "classes", "units", "blocks", "layers", "prior_layers", "head_layers"),
    *("latent_size", "joint_size", "action_embedding_size", "encoder_hidden_sizes", "critic_hidden_sizes"),
    *("model_hidden_sizes", "vae_hidden_sizes", "mixture_components"),
)
"""Fields that determine the architecture and the inputs of networks."""


def find(algorithm: str | type) -> catalog.Algorithm:
    """Return the catalog entry of an algorithm; files of external algorithms are read again.

    Raises:
        ValueError: there is no such algorithm.
    """
    doors.refresh()
    return catalog.find(algorithm)


def require_own_process() -> None:
    """Check that this process may train.

    A process that imports a file for the reward function in it must not train: training would start another one,
    without end. One of several processes that have not joined a group (`operant.scale.joined`) must not train either:
    each would train the whole run.

    Raises:
        RuntimeError: this process runs reward functions (`operant.language.sandbox`), or is one of several without a
            group.
    """
    if os.environ.get("OPERANT_SANDBOX"):
        raise RuntimeError(
            "this file starts training when it is imported, here for a reward function in it: put the training "
            "under `if __name__ == '__main__':`"
        )
    if started() and group().size == 1:
        raise RuntimeError(
            f"a launcher started this process as one of {os.environ['WORLD_SIZE']} (WORLD_SIZE), which have not joined "
            "a group, so each would train the whole run: use `torchrun ... -m -- operant train ...` to train one run "
            "together, start this script without the launcher, or unset WORLD_SIZE for independent runs"
        )


def require_kinds(progress: str, **arguments: Any) -> None:
    """Check types of arguments of `operant.train` and `operant.resume` that nothing else checks before work is done.

    Raises:
        ValueError: `progress` is unknown, `init` is no path, `bonus` neither a text nor a list, or `interrupted` or
            `report` no function.
    """
    require_mode(progress)
    kinds: dict[str, tuple[type, ...]] = {"init": (str, os.PathLike), "bonus": (str, type, Sequence)}
    for name, value in arguments.items():
        fits = isinstance(value, kinds[name]) if name in kinds else callable(value)
        if value is not None and not fits:
            expected = {"init": "the folder of a run", "bonus": "a name or a list of names"}.get(name, "a function")
            raise ValueError(f"{name} must be {expected}, got {value!r}")


def given(
    entry: catalog.Algorithm, task: Any, env: Any, parameters: dict[str, Any], run: str | Path | None
) -> tuple[str, dict[str, Any]]:
    """Return task and parameters with Python objects replaced by names and paths.

    Args:
        entry: the algorithm.
        task: task in any form that `operant.train` accepts; None if `env` or a data set is given.
        env: another name of the parameter `task`.
        parameters: keyword arguments of `operant.train`.
        run: folder of the run; None: a new one in `runs`.

    Raises:
        ValueError: there is no task, there are two, or the object or file is not a task.
        OSError: the file of a model cannot be read.
        RunError: the folder of the run is not empty, or has an invalid name; nothing was loaded or written.
        RuntimeError: this process may not train (`require_own_process`).
    """
    require_own_process()
    if run is not None:
        require_new(run)
    if task is not None and env is not None:
        raise ValueError(f"there are two tasks, {task} and env={env}: leave out one of them")
    task = env if task is None else task
    objects = (Path("runs") if run is None else Path(run).parent) / "objects"
    if entry.package == "language":
        task, parameters = package(entry).stored(task, _with_own_names(parameters), objects)
    elif _is_model(task):
        from operant.mdp.environment import task_of  # noqa: PLC0415 - imports numba, which networks do not need

        task, parameters["env_kwargs"] = task_of(task, parameters.get("env_kwargs", {}), objects)
    elif task is not None and not isinstance(task, str):
        task, parameters["env_kwargs"] = from_object(task, parameters.get("env_kwargs", {}))
    if task is None:
        raise ValueError(f"operant.train({entry.name!r}) needs a task to train on; see `operant list`")
    return str(task), parameters


def _is_model(task: Any) -> bool:
    """Return whether a task is an `operant.mdp.MDP`, or a file with one."""
    if isinstance(task, str):
        return task.endswith(MODEL_SUFFIXES)
    return type(task).__module__ == "operant.mdp.model"  # without importing it, and numba with it


def _with_own_names(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with TRL's names replaced by operant's, and a single reward function as a list.

    Raises:
        ValueError: a parameter is given under both names.
    """
    renamed = dict(parameters)
    for theirs, ours in {"reward_funcs": "rewards", "train_dataset": "dataset"}.items():
        if theirs in renamed and ours in renamed:
            raise ValueError(f"{theirs} is another name of {ours}: leave out one of them")
        if theirs in renamed:
            renamed[ours] = renamed.pop(theirs)
    if isinstance(renamed.get("rewards"), str):
        renamed["rewards"] = [renamed["rewards"]]
    if isinstance(rewards := renamed.get("rewards"), list | tuple):  # also objects with __call__
        renamed["rewards"] = [doors.hold(one) if callable(one) else one for one in cast(list[Any], rewards)]
    return renamed


def resolve(entry: catalog.Algorithm, settings: Settings, config: Any) -> dict[str, Any]:
    """Return device, threads and precision of a new run, with automatic settings resolved.

    Small networks are fastest on one CPU thread. Hyperparameters and settings without an effect cause warnings.
    """
    require_own(settings, entry.package)
    warn_of_idle(entry, settings.task, config)
    warn_of_idle_settings(settings)
    language = entry.package == "language"
    large = language and not package(entry).built_in(config)
    device = chosen_device(settings.device, large=large)
    # Without sharding, results must not depend on the number of processes.
    num_processes = group().size if group().sharded else settings.shards
    available = max(1, cores() // num_processes)
    small_model_threads = min(2, available) if language and threads_sleep() and num_processes == 1 else 1
    threads = settings.threads or (available if large else small_model_threads)
    return {"device": device, "threads": threads, "precision": settings.precision}


def pin(
    entry: catalog.Algorithm, settings: Settings, config: Any, init: Path | None
) -> tuple[Settings, Any, list[Input]]:
    """Return settings and configuration with absolute paths, and the input files of the run.

    Args:
        entry: the algorithm.
        settings: settings of the run.
        config: configuration of the algorithm.
        init: initial run for deep control, if any.

    Raises:
        OSError: an input is unreadable.
    """
    settings, inputs = pinned(settings)
    if entry.package == "language":
        config, config_inputs = package(entry).pin(settings, config)
    else:
        config, config_inputs = pinned(config)
        known = {given.path for given in inputs}
        model = [Path(settings.env_kwargs["file"])] if settings.task == MODEL_TASK else []
        config_inputs = [
            *(Input.of("environment", file) for file in own_files(settings.task) if file not in known),
            *(Input.of("model", file) for file in model),
            *config_inputs,
        ]
    start = [] if init is None or not init.exists() else [Input.of("init", init, at_start=True)]
    return settings, config, [*inputs, *config_inputs, *start]


def assemble(entry: catalog.Algorithm, settings: Settings, config: Any, resolved: dict[str, Any]) -> Experiment:
    """Construct the experiment of a new run, and set this process's threads and precision.

    The wrappers of its environments check the configuration. Hyperparameters without an effect on the actions cause
    warnings.

    Args:
        entry: the algorithm.
        settings: settings of the run.
        config: configuration of the algorithm.
        resolved: result of `resolve`.

    Raises:
        ValueError: the algorithm does not support the settings or the task, or a wrapper not the configuration.
    """
    experiment = _assemble(entry, settings, config, resolved)
    try:
        env = env_of(experiment)
        for wrapper in () if env is None else wrappers(env):
            wrapper.check_config(config)
        if env is not None:
            warn_of_idle_in(entry, settings.task, config, env)
    except BaseException:
        experiment.close()
        raise
    return experiment


def _assemble(entry: catalog.Algorithm, settings: Settings, config: Any, resolved: dict[str, Any]) -> Experiment:
    if group().sharded and entry.package != "language":
        raise ValueError(f"--fsdp divides a language model among processes, but {entry.name} trains none: leave it out")
    torch.set_num_threads(resolved["threads"])
    set_precision(resolved["precision"], torch.device(resolved["device"]), stacked=entry.package == "control")
    torch.backends.cudnn.allow_tf32 = resolved["precision"] != "highest"  # set_precision does not affect convolutions
    return package(entry).assemble(entry, settings, config, device=resolved["device"])


def reassemble(folder: Run, remote_code: bool, accept_changes: bool = False) -> Experiment:
    """Construct the experiment of an existing run with its recorded device, threads and precision.

    A missing device or compiler causes a warning.

    Args:
        folder: the run.
        remote_code: whether to allow Python code that comes with a language model, if the run needs it.
        accept_changes: whether to continue if the run's inputs have changed.

    Raises:
        RunError: the run is unreadable, its model's code is not allowed, its inputs have changed, or it has other seeds
            than it was trained with.
    """
    require_seeds(folder)
    folder.require_inputs(accept=accept_changes)  # before any changed code runs
    entry = find(folder.settings.algorithm)
    config = folder.config(entry.config_class)
    if entry.package == "language":
        package(entry).check_code(config, folder.path, allowed=remote_code)
    resolved = folder.resolved()
    if not present(resolved["device"]):
        logger.warning(
            "%s was trained on %s, which is not available; it continues on the CPU", folder.path, resolved["device"]
        )
        resolved["device"] = "cpu"
    compiled = resolved.get("compile", False)
    if compiled and (missing := missing_tool(torch.device(resolved["device"]))):
        logger.warning("%s was compiled, which needs %s; it continues without compilation", folder.path, missing)
        compiled = False
    settings = replace(folder.settings, compile="on" if compiled else "off")
    return _assemble(entry, settings, config, resolved)


def share_networks(entry: catalog.Algorithm, other: catalog.Algorithm) -> bool:
    """Return whether one of two algorithms can start from the weights of the other."""
    if entry.on_policy and other.on_policy:
        return True
    first, second = (catalog.find(algorithm.root) for algorithm in (entry, other))
    if first.module == second.module:
        return True
    kinds = first.learner_class, second.learner_class
    return issubclass(kinds[0], kinds[1]) or issubclass(kinds[1], kinds[0])


def begin_with(source: Any, before: Sequence[int], learner: Any, now: Sequence[int], path: Path) -> None:
    """Copy the weights of another run's learner: by seed if both have the same seeds, else by index.

    Args:
        source: learner of the other run.
        before: seeds of the other run.
        learner: learner to initialize.
        now: its seeds.
        path: folder of the other run, for messages.

    Raises:
        ValueError: the networks or the number of seeds differ, or the learner has no weights to initialize.
    """
    if not isinstance(cast(object, learner), HasWeights):
        raise ValueError(f"{type(learner).__name__} cannot start from the weights of {path}: {NO_WEIGHTS}")
    weights: Weights = source.learned
    if set(before) == set(now):
        indices = [before.index(seed) for seed in now]
        weights = {name: tensor[indices] for name, tensor in weights.items()}
    try:
        _compare(_semantics(source), _semantics(learner))
        load_weights(learner, weights)
        _compare(_layout(source), _layout(learner))
    except ValueError as error:
        raise ValueError(
            f"the weights of {path} do not fit: {error}. Use the same networks, normalization and number of seeds "
            "in both runs"
        ) from error
    # Normalize the next observations with the copied statistics.
    learner.load_state_dict(without_episodes(learner.state_dict()))


def _compare(source: dict[str, Any], target: dict[str, Any]) -> None:
    for name in [name for name in source if name in target and source[name] != target[name]]:
        raise ValueError(f"{name} is {source[name]} in that run, but {target[name]} in this one")


def _agent(learner: object) -> NetworkAgent | None:
    """Return the networks that act for a learner; None if it has none."""
    agent = learner.agent if isinstance(learner, HasAgent) else None
    return agent if isinstance(agent, NetworkAgent) else None


def _semantics(learner: Any) -> dict[str, Any]:
    """Return the activations, and the number of logits of each discrete action component."""
    agent = _agent(learner)
    config: Any = getattr(learner, "config", None)
    activations = {name: getattr(config, name) for name in ("activation", "model_activation") if hasattr(config, name)}
    return {**activations, "choices": [] if agent is None else list(agent.head.choices)}


def _layout(learner: Any) -> dict[str, Any]:
    """Return properties in which networks with equal parameters can differ, and the critic's target."""
    config = getattr(learner, "config", None)
    traits = {name: getattr(config, name) for name in _LAYOUT if hasattr(config, name)}
    traits |= {f"layout of the {name}": layout for name, layout in _modules(learner).items()}
    agent = _agent(learner)
    if agent is not None:
        traits["number of networks per seed"] = agent.networks.shape.networks
        predicted = learner.critic_kind if isinstance(learner, HasCriticKind) else "V"
        if predicted != "none":  # an untrained critic is compatible with every target
            traits["critic prediction"] = predicted
    return traits


def _modules(learner: Any) -> dict[str, Any]:
    """Return names and shapes of the parameters of external networks, by the role of each network."""
    bound = getattr(learner, "online", None) or getattr(getattr(learner, "agent", None), "networks", None)
    shapes = getattr(learner, "shapes", {}) if bound is None else {"network": bound.shape}
    return {name: getattr(shape.mlp, "layout", "built-in layers") for name, shape in shapes.items()}


def package(entry: catalog.Algorithm) -> Any:
    """Import the package that implements an algorithm.

    Raises:
        ModuleNotFoundError: a requirement is missing; the message gives the command that installs it.
    """
    missing_packages = [name for name in LANGUAGE if entry.package == "language" and find_spec(name) is None]
    if missing_packages:
        raise ModuleNotFoundError(f'{entry.name} needs {", ".join(missing_packages)}: pip install "operant[language]"')
    return importlib.import_module(f"operant.{entry.package}")


def check_names(entry: catalog.Algorithm, given: Iterable[str]) -> None:
    """Check the names of keyword arguments of `operant.train`; old names are accepted.

    Raises:
        ValueError: neither the settings nor the algorithm's configuration have such a field; the message suggests the
            most similar one.
    """
    package(entry)  # report a missing extra first
    kind = entry.config_class
    known = {*TRAINING, *(field.name for part in (Settings, kind) for field in fields(part))}
    old = old_names.names(kind)
    for name in given:
        if name not in known and name not in old:
            raise ValueError(f"{entry.name}.{name}: there is no such key{names.hint(name, known, entry)}")
