"""Models that runs have trained: `load_trained`, `base_model`, `check_code`."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from operant.language import models
from operant.language.best import best_state
from operant.language.configs import ModelOptions
from operant.runtime.checkpoints import load as load_checkpoint
from operant.runtime.run import Run, RunError
from operant.runtime.weights import opened
from operant.state import State


def load_trained(options: ModelOptions, *, seed: int, device: torch.device | str = "cpu") -> "models.LanguageModel":
    """Return the model of a run, with what `options` want of it: other numbers, another adapter.

    An adapter of that run is trained on, unless the options want a new one: then it becomes part of the weights.

    Args:
        options: `init` names the run, or `RUN/best` its best weights; `remote_code` allows code that came with it.
        seed: which seed of the run, if it has several; one that it does not have takes the first.
        device: where the model goes.

    Raises:
        RunError: there is no run, or it wants to run code that is not allowed.
        ValueError: it has not trained a language model, has no checkpoint yet, or its base model was replaced.
    """
    own, state = trained_state(options.init, "model", seed=seed)
    check_code(own, options.init, allowed=options.remote_code)
    seeds = opened(options.init)[0].settings.seeds
    model = models.load(replace(own, gradient_checkpointing=False), seed=seeds[_place(seed, seeds)], device=device)
    try:
        model.load_state_dict(state)
    except ValueError as error:
        what = own.init or own.model
        raise ValueError(
            f"{options.init} has trained another network than {what} is now: {error}; put back the {what} that it "
            "began with, or name another run"
        ) from error
    network = model.network
    if options.lora_r and hasattr(network, "merge_and_unload"):
        network = network.merge_and_unload()
    return models.finish(network.to(models.DTYPES[options.dtype]), model.tokenizer, options, seed=seed)


def base_model(model: str, init: str = "") -> str:
    """Return the name of the model that training began with, through all the runs that went on from each other.

    Args:
        model: as in `ModelOptions`; it counts where there is no `init`.
        init: folder of a run, as in `ModelOptions`.

    Raises:
        RunError: there is no run.
        ValueError: it has not trained a language model.
    """
    while init:
        own = model_options(opened(init)[0])
        model, init = own.model, own.init
    return model


def check_policy(init: str) -> None:
    """Raise if a run to start from has trained no policy.

    Args:
        init: folder of the run; empty: none.

    Raises:
        RunError: there is no run.
        ValueError: it has trained a reward model.
    """
    if not init:
        return
    entry = Run.open(init).entry
    if entry.family == "reward":
        raise ValueError(
            f"--init {init} is a run of {entry.name}, which has trained a reward model, but a policy is to be trained: "
            "name a run of sft, dpo, rlhf or grpo there, and this one with --reward-model"
        )


def built_in(config: Any) -> bool:
    """Tell whether a configuration is of a small model that is built here; one of no language model at all is, too."""
    return not isinstance(config, ModelOptions) or base_model(config.model, config.init) in models.BUILT_IN


def check_code(config: Any, run: str | Path, *, allowed: bool) -> None:
    """Refuse to run the code of a model because a run says so: whoever opens the run has to say so too.

    Args:
        config: of the run.
        run: its folder.
        allowed: whether whoever opens it has said so.

    Raises:
        RunError: the run wants it, and it is not allowed.
    """
    if config.remote_code and not allowed:
        raise RunError(
            f"{run} wants to run Python code that comes with its model {config.model}, which can do anything: if you "
            "trust both, say --remote-code (in Python remote_code=True)"
        )


def model_options(run: Run) -> ModelOptions:
    """Return which model a run has trained, and how.

    Raises:
        ValueError: it has not trained a language model.
    """
    entry = run.entry
    if entry.package != "language":
        raise ValueError(f"{run.path} is a run of {entry.name}, which trains no language model; name another run")
    config = run.config(entry.config_class)
    return ModelOptions(**{field.name: getattr(config, field.name) for field in fields(ModelOptions)})


def trained_state(folder: str, part: str, *, seed: int) -> tuple[ModelOptions, State]:
    """Return the model options of a run and a part of the latest state of one of its seeds.

    Args:
        folder: of the run; `RUN/best` for the state that scored highest in its evaluations.
        part: its name in the learner's state.
        seed: which seed; one that the run does not have takes the first.

    Raises:
        RunError: there is no run, or it has kept no best weights.
        ValueError: its learner has no such part, or it has no checkpoint yet.
    """
    run, best = opened(folder)
    entry = run.entry
    own = model_options(run)
    place = _place(seed, run.settings.seeds)
    if best:
        state = best_state(run, place)
    else:
        found = run.checkpoints.latest()
        if found is None:
            raise ValueError(f"{folder} has no checkpoint yet; train it with `operant resume {folder}`")
        state = load_checkpoint(found[0])["learners"][place]
    if part not in state:
        raise ValueError(f"{folder} is a run of {entry.name}, which has no {part}; name another run")
    return own, state[part]


def _place(seed: int, seeds: Sequence[int]) -> int:
    """Return where a seed stands among those of a run; the first place for one that the run does not have."""
    return seeds.index(seed) if seed in seeds else 0
