"""Trained models of runs: `load_trained`, `base_model`, `check_code`."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from operant.language import models
from operant.language.best import best_state
from operant.language.configs import ModelOptions
from operant.language.huggingface import merged
from operant.runtime.checkpoints import load as load_checkpoint
from operant.runtime.run import Run, RunError
from operant.runtime.weights import opened
from operant.state import State


def load_trained(options: ModelOptions, *, seed: int, device: torch.device | str = "cpu") -> "models.LanguageModel":
    """Load the trained model of a run, with the precision and adapter of `options`.

    Training continues on the run's adapter. If the options define a new one, the run's adapter is merged into the
    weights.

    Args:
        options: options, of which `init` is the run, or `RUN/best` for its best weights, and `remote_code` allows the
            model's code.
        seed: seed of the run; if the run lacks it, its first seed is used.
        device: device of the model.

    Raises:
        RunError: there is no run, or its model's code is not allowed.
        ValueError: the run trained no language model, has no checkpoint, or its base model has changed.
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
            f"{options.init} trained another network than {what} is now: {error}. Restore the original {what}, "
            "or use another run"
        ) from error
    network = merged(model.network) if options.lora_r else model.network
    return models.finish(network.to(models.DTYPES[options.dtype]), model.tokenizer, options, seed=seed)


def base_model(model: str, init: str = "") -> str:
    """Return the name of the base model, following the chain of initial runs.

    Args:
        model: as in `ModelOptions`; used if `init` is empty.
        init: folder of a run, as in `ModelOptions`.

    Raises:
        RunError: there is no run.
        ValueError: a run trained no language model.
    """
    while init:
        own = model_options(opened(init)[0])
        model, init = own.model, own.init
    return model


def check_policy(init: str) -> None:
    """Check that an initial run trained a policy.

    Args:
        init: folder of the run, or `RUN/best`; empty: none.

    Raises:
        RunError: there is no run.
        ValueError: the run trained a reward model.
    """
    if not init:
        return
    entry = opened(init)[0].entry
    if entry.family == "reward":
        raise ValueError(
            f"--init {init} is a run of {entry.name}, which trains a reward model, but a policy is needed: pass a run "
            "of sft, dpo, rlhf or grpo, and this one as --reward-model"
        )


def built_in(config: Any) -> bool:
    """Return whether a configuration has a built-in model; True if it has no language model."""
    return not isinstance(config, ModelOptions) or base_model(config.model, config.init) in models.BUILT_IN


def check_code(config: Any, run: str | Path, *, allowed: bool) -> None:
    """Check that Python code that comes with a run's model is allowed, if the run needs it.

    Args:
        config: configuration of the run.
        run: folder of the run.
        allowed: whether the code is allowed.

    Raises:
        RunError: the run needs the code, and it is not allowed.
    """
    if config.remote_code and not allowed:
        raise RunError(
            f"{run} needs the Python code of its model {config.model}, which is not restricted: if you "
            "trust both, pass --remote-code (in Python remote_code=True)"
        )


def model_options(run: Run) -> ModelOptions:
    """Return the model options of a run.

    Raises:
        ValueError: the run trained no language model.
    """
    entry = run.entry
    if entry.package != "language":
        raise ValueError(f"{run.path} is a run of {entry.name}, which trains no language model: use another run")
    config = run.config(entry.config_class)
    return ModelOptions(**{field.name: getattr(config, field.name) for field in fields(ModelOptions)})


def trained_state(folder: str, part: str, *, seed: int) -> tuple[ModelOptions, State]:
    """Return the model options of a run, and a part of the latest state of one of its seeds.

    Args:
        folder: folder of the run; `RUN/best` for the state with the highest evaluation score.
        part: name of the part in the learner's state.
        seed: seed of the run; if the run lacks it, its first seed is used.

    Raises:
        RunError: there is no run, or it has no best weights or no checkpoint.
        ValueError: its learner has no such part.
    """
    run, best = opened(folder)
    entry = run.entry
    own = model_options(run)
    place = _place(seed, run.settings.seeds)
    state = best_state(run, place) if best else load_checkpoint(run.latest_checkpoint())["learners"][place]
    if part not in state:
        raise ValueError(f"{folder} is a run of {entry.name}, which has no {part}: use another run")
    return own, state[part]


def _place(seed: int, seeds: Sequence[int]) -> int:
    """Return the index of a seed in a run; 0 if the run lacks it."""
    return seeds.index(seed) if seed in seeds else 0
