"""Construction of experiments in all packages: device, threads, learner."""

import importlib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from operant import catalog, doors
from operant.catalog import names, old_names
from operant.envs import own_files, without_episodes
from operant.envs.registry import from_object
from operant.nets import missing_tool, set_precision
from operant.runtime.configuration import require_own
from operant.runtime.experiment import Experiment
from operant.runtime.inputs import Input, pinned
from operant.runtime.learner import HasAgent, HasCriticKind, NetworkAgent
from operant.runtime.machine import cores, present, threads_sleep
from operant.runtime.run import Run
from operant.runtime.settings import Settings
from operant.runtime.shards import group
from operant.runtime.weights import Weights, load_weights

logger = logging.getLogger(__name__)

TRAINING = ("env", "seeds", "seed", "budget", "run", "init", "preset", "config", "bonus", "progress", "callbacks")
"""Arguments of `operant.train` other than the fields of the settings and of the algorithm's configuration."""

LANGUAGE = ("transformers", "tokenizers", "peft", "datasets")
"""Required packages of the extra `language`."""

_LAYOUT = (
    *("hidden_sizes", "share_features", "critic_ensemble_size", "n_critics", "rnn_hidden_size", "dueling", "scale_obs"),
)
"""Fields of network architecture and inputs."""


def find(algorithm: str | type) -> catalog.Algorithm:
    """Return the catalog entry of an algorithm; external files are read again.

    Raises:
        ValueError: there is no such algorithm.
    """
    doors.refresh()
    return catalog.find(algorithm)


def require_own_process() -> None:
    """Check that this process may train; one that imports a file for a reward function would start an endless chain.

    Raises:
        RuntimeError: this is such a process (`operant.language.sandbox`).
    """
    if os.environ.get("OPERANT_SANDBOX"):
        raise RuntimeError(
            "this file trains when imported, here for a reward function in it: put the training under "
            "`if __name__ == '__main__':`"
        )


def given(
    entry: catalog.Algorithm, task: Any, env: Any, parameters: dict[str, Any], run: str | Path | None
) -> tuple[str, dict[str, Any]]:
    """Return task and parameters with names and paths in place of Python objects.

    Args:
        entry: the algorithm.
        task: a task in any form (`operant.train`); None if `env` or a data set is given.
        env: another name of the parameter `task`.
        parameters: of `operant.train`.
        run: its folder; None: one in `runs`.

    Raises:
        ValueError: there is no task, two of them, or an object that cannot be one.
        RuntimeError: this process may not train (`require_own_process`).
    """
    require_own_process()
    if task is not None and env is not None:
        raise ValueError(f"there are two tasks, {task} and env={env}: leave out one of them")
    task = env if task is None else task
    if entry.package == "language":
        parameters = _with_own_names(parameters)
        task, parameters = package(entry).stored(
            task, parameters, (Path("runs") if run is None else Path(run).parent) / "objects"
        )
    elif task is not None and not isinstance(task, str):
        task, parameters["env_kwargs"] = from_object(task, parameters.get("env_kwargs", {}))
    if task is None:
        raise ValueError(f"operant.train({entry.name!r}) needs a task to train on; see `operant list`")
    return str(task), parameters


def _with_own_names(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with TRL's names translated to ours, and a single reward function as a list.

    Raises:
        ValueError: one is given under both names.
    """
    found = dict(parameters)
    for theirs, ours in {"reward_funcs": "rewards", "train_dataset": "dataset"}.items():
        if theirs in found and ours in found:
            raise ValueError(f"{theirs} is another name of {ours}: leave out one of them")
        if theirs in found:
            found[ours] = found.pop(theirs)
    if isinstance(found.get("rewards"), str):
        found["rewards"] = [found["rewards"]]
    return found


def resolve(entry: catalog.Algorithm, settings: Settings, config: Any) -> dict[str, Any]:
    """Choose the open settings: the smallest networks are fastest on one CPU thread."""
    require_own(settings, entry.package)
    language = entry.package == "language"
    large = language and not package(entry).built_in(config)
    device = settings.device
    if device == "auto":
        device = "cuda" if large and torch.cuda.is_available() else "cpu"
    if not present(device):
        raise ValueError(f"device {device!r} is not on this machine; `operant doctor` lists those that are")
    parts = group().size if group().sharded else settings.shards  # on the number of processes no bit may depend else
    available = max(1, cores() // parts)
    few = min(2, available) if language and threads_sleep() and parts == 1 else 1
    threads = settings.threads or (available if large else few)
    return {"device": device, "threads": threads, "precision": settings.precision}


def pin(
    entry: catalog.Algorithm, settings: Settings, config: Any, init: Path | None
) -> tuple[Settings, Any, list[Input]]:
    """Return settings and configuration that are valid in any working folder, and their inputs.

    Args:
        entry: the algorithm.
        settings: the run's.
        config: the algorithm's own configuration.
        init: the initial run of deep control, if any.

    Raises:
        OSError: an input is unreadable.
    """
    settings, found = pinned(settings)
    if entry.package == "language":
        config, own = package(entry).pin(settings, config)
    else:
        config, own = pinned(config)
        known = {given.path for given in found}
        own = [*(Input.of("environment", file) for file in own_files(settings.task) if file not in known), *own]
    start = [] if init is None or not init.exists() else [Input.of("init", init, at_start=True)]
    return settings, config, [*found, *own, *start]


def assemble(entry: catalog.Algorithm, settings: Settings, config: Any, resolved: dict[str, Any]) -> Experiment:
    """Return the experiment of a run, and configure this process by `resolved`.

    Args:
        entry: its algorithm.
        settings: the run's.
        config: the algorithm's own configuration.
        resolved: the result of `resolve`.

    Raises:
        ValueError: the algorithm does not support the settings, or not with this task.
    """
    if group().sharded and entry.package != "language":
        raise ValueError(f"--shard divides a language model, but {entry.name} has none: leave it out")
    torch.set_num_threads(resolved["threads"])
    set_precision(resolved["precision"], torch.device(resolved["device"]), stacked=entry.package == "control")
    torch.backends.cudnn.allow_tf32 = resolved["precision"] != "highest"  # of convolutions, which it does not affect
    return package(entry).assemble(entry, settings, config, device=resolved["device"])


def reassemble(folder: Run, remote_code: bool, accept_changes: bool = False) -> Experiment:
    """Return the experiment of an existing run, as it was resolved then; warn about missing devices and tools.

    Args:
        folder: the run.
        remote_code: whether a language model's own Python code may run, if the run needs it.
        accept_changes: whether to continue if inputs of the run have changed.

    Raises:
        RunError: the run is unreadable, its model's code is not allowed, or its inputs have changed.
    """
    folder.require_inputs(accept=accept_changes)  # before any changed code runs
    entry = find(folder.settings.algorithm)
    config = folder.config(entry.config_class)
    if entry.package == "language":
        package(entry).check_code(config, folder.path, allowed=remote_code)
    resolved = folder.resolved()
    if not present(resolved["device"]):
        logger.warning(
            "%s was trained on %s, which is not available; it continues on the cpu", folder.path, resolved["device"]
        )
        resolved["device"] = "cpu"
    compiled = resolved.get("compile", False)
    if compiled and (missing := missing_tool(torch.device(resolved["device"]))):
        logger.warning("%s was compiled, which needs %s; it continues without compilation", folder.path, missing)
        compiled = False
    settings = replace(folder.settings, compile="on" if compiled else "off")
    return assemble(entry, settings, config, resolved)


def begin_with(teacher: Any, learner: Any, path: Path) -> None:
    """Copy the weights of another run's learner: by seed if both have the same seeds, else by index.

    Args:
        teacher: the source.
        learner: the target.
        path: of that run, for messages.

    Raises:
        ValueError: it does not fit.
    """
    learned: Weights = teacher.learned
    if set(teacher.seeds) == set(learner.seeds):
        places = [teacher.seeds.index(seed) for seed in learner.seeds]
        learned = {name: tensor[places] for name, tensor in learned.items()}
    try:
        _compare(_meaning(teacher), _meaning(learner))
        load_weights(learner, learned)
        _compare(_layout(teacher), _layout(learner))
    except ValueError as error:
        raise ValueError(
            f"the weights of {path} do not fit: {error}. Use the same networks and normalization in both runs, "
            "and as many seeds"
        ) from error
    # The next observations use these normalization statistics.
    learner.load_state_dict(without_episodes(learner.state_dict()))


def _compare(there: dict[str, Any], here: dict[str, Any]) -> None:
    for what in [what for what in there if what in here and there[what] != here[what]]:
        raise ValueError(f"{what}: {there[what]} there, {here[what]} here")


def _agent(learner: object) -> NetworkAgent | None:
    """Return the acting networks of a learner; None without any."""
    agent = learner.agent if isinstance(learner, HasAgent) else None
    return agent if isinstance(agent, NetworkAgent) else None


def _meaning(learner: Any) -> dict[str, Any]:
    """Return properties of networks beyond shapes: their nonlinearity, and the logits of each choice."""
    agent = _agent(learner)
    return {"activation": learner.config.activation, "choices": [] if agent is None else list(agent.head.choices)}


def _layout(learner: Any) -> dict[str, Any]:
    """Return properties that networks with equal parameters can differ in, and the critic's target."""
    traits = {name: getattr(learner.config, name) for name in _LAYOUT if hasattr(learner.config, name)}
    traits |= {f"parameters of the {name}": layout for name, layout in _modules(learner).items()}
    agent = _agent(learner)
    if agent is not None:
        traits["networks of a seed"] = agent.networks.shape.networks
        predicted = learner.critic_kind if isinstance(learner, HasCriticKind) else "V"
        if predicted != "none":  # what nothing has trained fits anything
            traits["predictions of the critic"] = predicted
    return traits


def _modules(learner: Any) -> dict[str, Any]:
    """Return names and shapes of the parameters of networks from outside, by what these are."""
    bound = getattr(learner, "online", None) or getattr(getattr(learner, "agent", None), "networks", None)
    shapes = getattr(learner, "shapes", {}) if bound is None else {"network": bound.shape}
    return {name: getattr(shape.mlp, "layout", "our own layers") for name, shape in shapes.items()}


def package(entry: catalog.Algorithm) -> Any:
    """Return the implementing package of an algorithm.

    Raises:
        ModuleNotFoundError: a requirement is missing; the message says how to install it.
    """
    absent = [name for name in LANGUAGE if entry.package == "language" and find_spec(name) is None]
    if absent:
        raise ModuleNotFoundError(f'{entry.name} needs {", ".join(absent)}: pip install "operant[language]"')
    return importlib.import_module(f"operant.{entry.package}")


def check_names(entry: catalog.Algorithm, given: Iterable[str]) -> None:
    """Check the names of keyword arguments of `operant.train`; old ones are accepted.

    Raises:
        ValueError: neither the settings nor the algorithm's configuration have such a field; the message names the
            nearest one.
    """
    package(entry)  # its extra may not be installed
    kind = entry.config_class
    known = {*TRAINING, *(field.name for part in (Settings, kind) for field in fields(part))}
    old = old_names.names(kind)
    for name in given:
        if name not in known and name not in old:
            raise ValueError(f"{entry.name}.{name}: there is no such key{names.hint(name, known, entry)}")
