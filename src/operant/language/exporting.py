"""Trained models in Hugging Face's format: `write_model`, `write_reward_model`."""

import json
from pathlib import Path
from typing import Any

from operant.language.chat import converses, trained_model
from operant.language.classifiers import BIAS, save_classifier
from operant.language.huggingface import is_adapted, merged
from operant.language.models import BUILT_IN, LanguageModel
from operant.language.pretrained import PROVENANCE, fingerprint, is_adapter
from operant.language.runs import check_code, model_options
from operant.language.scoring import load_scorer
from operant.runtime.run import Run


def write_model(
    run: Run, folder: Path, *, seed: int, merge: bool = False, remote_code: bool = False, best: bool = False
) -> None:
    """Save a trained model in transformers' format, or its adapter in peft's.

    Args:
        run: the run.
        folder: output folder, new or empty.
        seed: seed of the model.
        merge: whether to merge an adapter into the weights and save the full model.
        remote_code: as for `trained_model`.
        best: as for `trained_model`.

    Raises:
        RunError: as for `trained_model`.
        ValueError: as for `trained_model`; or the base model of an adapter cannot be loaded separately.
        OSError: writing fails.
    """
    model = trained_model(run, seed, remote_code=remote_code, best=best)
    own = model_options(run)
    adapted = is_adapted(model.network)
    facts = _facts(run, seed, best=best)
    if adapted and not merge and (own.init or own.model in BUILT_IN or (own.lora_r and is_adapter(own.model))):
        raise ValueError(
            f"the adapter of {run.path} belongs to {own.init or own.model}, which is neither a folder nor a Hub model: "
            "write the full model with --merge"
        )
    if adapted and merge:
        model = _merged(model)
    elif adapted:
        facts["base_fingerprint"] = fingerprint(model.network)
        for adapter in model.network.peft_config.values():
            if Path(adapter.base_model_name_or_path).exists():
                adapter.base_model_name_or_path = str(Path(adapter.base_model_name_or_path).resolve())
    model.save(folder)
    _write_facts(folder, facts | {"in_turns": converses(run)})


def write_reward_model(run: Run, folder: Path, *, seed: int, remote_code: bool = False, best: bool = False) -> None:
    """Save a trained reward model as a sequence classifier of transformers with one label.

    An adapter is merged. The constant with which scores have mean 0 is written to `operant.json`.

    Args:
        run: run of `reward-model`.
        folder: output folder, new or empty.
        seed: seed of the model.
        remote_code: whether to allow Python code that comes with the model, if the run needs it.
        best: whether to use the weights with the highest evaluation score instead of the latest ones.

    Raises:
        RunError: the model's code is not allowed, or there are no best weights.
        ValueError: the run has no such seed or no checkpoint, scores steps, or has an architecture without classifier.
        OSError: writing fails.
    """
    seeds, config = run.settings.seeds, run.config(run.entry.config_class)
    if seed not in seeds:
        raise ValueError(f"{run.path} has no seed {seed}; it has {', '.join(map(str, seeds))}")
    if config.supervision == "process":
        raise ValueError(f"{run.path} scores steps, but a sequence classifier scores whole answers: use it as a run")
    check_code(config, run.path, allowed=remote_code)
    scorer = load_scorer(str(run.path / "best" if best else run.path), seed=seed, remote_code=remote_code).scorer
    save_classifier(_merged(scorer.model), scorer.head, folder)
    _write_facts(folder, _facts(run, seed, best=best) | {BIAS: float(scorer.head.bias)})


def _merged(model: LanguageModel) -> LanguageModel:
    """Return a model with its adapter, if any, merged into the weights."""
    return LanguageModel(merged(model.network), model.tokenizer, stop=model.stop)


def _facts(run: Run, seed: int, *, best: bool) -> dict[str, Any]:
    facts = {"run": run.path.name, "algorithm": run.settings.algorithm, "task": run.settings.task, "seed": seed}
    return facts | ({"best": True} if best else {})


def _write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write the provenance of a model."""
    (folder / PROVENANCE).write_text(json.dumps(facts, indent=1) + "\n")
