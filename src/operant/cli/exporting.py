"""`operant export`."""

import errno
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from operant.cli.arguments import Opening, parse
from operant.cli.output import print_json, require_extra, say
from operant.runtime.files import beside, named_in_errors
from operant.runtime.run_paths import location

if TYPE_CHECKING:
    from operant.runtime.run import Run


@dataclass(frozen=True)
class ExportOptions(Opening):
    """Export the trained model or policy of a run for other programs.

    Language models are written in Hugging Face's format: safetensors, configuration and tokenizer; adapters separately,
    as in peft. `--model FOLDER` starts training from it. Reward models are written as sequence classifiers with one
    label, which `--reward-model FOLDER` and TRL read. Networks and tables are written as the greedy policy in
    safetensors with a Python module that needs only NumPy; tables also as CSV; networks also as ONNX or TorchScript.
    The actions of exported networks are compared with those of the policy.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""

    folder: tyro.conf.Positional[Path]
    """Output folder, new or empty."""

    format: Literal["safetensors", "onnx", "torchscript"] = "safetensors"
    """Format of network policies: safetensors with a NumPy module, for MLPs; or a graph, onnx (extra: onnx) or
    torchscript, for every network that can be exported as one."""

    seed: int | None = None
    """Seed of the model or policy. Default: the first one of the run."""

    best: tyro.conf.FlagCreatePairsOff[bool] = False
    """Export the weights with the best evaluation during training instead of the latest ones."""

    merge: tyro.conf.FlagCreatePairsOff[bool] = False
    """Merge the adapter into the weights of the language model, and write the full model."""


def export(arguments: list[str]) -> int:
    """Export a trained model or policy."""
    options = parse(ExportOptions, arguments, "export")
    from operant.runtime.run import Run

    run, folder = Run.open(options.run), options.folder.expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{options.folder} already exists and is not empty; choose another folder")
    seed = run.settings.seeds[0] if options.seed is None else options.seed
    empty = folder.is_dir()  # perhaps the working folder or a mount point, which cannot be replaced
    # An export that fails must not leave new parents of the folder.
    existing = folder if empty else next(parent for parent in folder.parents if parent.exists())
    part = beside(existing / folder.name)
    part.mkdir()
    try:
        _write(options, run, seed, part, folder)
        if empty:
            for file in part.iterdir():
                file.rename(folder / file.name)
            part.rmdir()
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    files = sorted(path.name for path in folder.iterdir())
    if options.json:
        print_json({"folder": str(folder), "seed": seed, "files": files})
    else:
        say(f"written: {', '.join(files)}")
        print(location(folder))
    return 0


def _write(options: ExportOptions, run: "Run", seed: int, part: Path, folder: Path) -> None:
    """Write a model or policy to a temporary folder; errors of the system name the folder for which it is meant."""
    from safetensors import SafetensorError

    write = _write_model if run.entry.package == "language" else _write_policy
    try:
        with named_in_errors(folder):
            write(options, run, seed, part)
    except SafetensorError as error:  # of saving, such as on a full disk; loading has errors of its own
        raise OSError(errno.EIO, str(error), str(folder)) from error


def _write_model(options: ExportOptions, run: "Run", seed: int, folder: Path) -> None:
    """Write a language model (extra: `language`)."""
    if options.format != "safetensors":
        raise ValueError(f"--format {options.format} is for network policies: leave it out for a language model")
    require_extra("language", "a language model", ["transformers", "tokenizers", "peft"])
    from transformers.utils.logging import disable_progress_bar

    from operant.language.exporting import write_model, write_reward_model
    from operant.language.inputs import MODEL

    disable_progress_bar()
    run.require_inputs(MODEL, accept=options.accept_changes)
    given: dict[str, Any] = {"seed": seed, "best": options.best, "remote_code": options.remote_code}
    if run.entry.family == "reward":
        write_reward_model(run, folder, **given)  # an adapter is always merged
    else:
        write_model(run, folder, merge=options.merge, **given)


def _write_policy(options: ExportOptions, run: "Run", seed: int, folder: Path) -> None:
    """Export a policy of a table or network."""
    from operant import api
    from operant.runtime.experiment import env_of
    from operant.runtime.exporting import first_members, require_bare, table_of, write_policy, write_table

    settings = run.settings
    if options.merge:
        raise ValueError("--merge is for adapters of language models: leave it out")
    if seed not in settings.seeds:
        raise ValueError(f"--seed is {seed}, but the seeds of {location(run.path)} are {list(settings.seeds)}")
    if options.format != "safetensors" and run.entry.package == "tabular":
        raise ValueError(f"--format {options.format} is for network policies: leave it out for a table")
    if options.format == "onnx":
        require_extra("onnx", "--format onnx", ["onnx", "onnxscript"])
    index = settings.seeds.index(seed)
    with closing(api.load(run.path, best=options.best, accept_changes=options.accept_changes)) as trained:
        learner = trained.experiment.learner
        if run.entry.package == "tabular":
            require_bare(env_of(trained.experiment))
            policy = learner.policy()[index]
            actions = policy.argmax(axis=1)
            write_policy(settings, seed, table_of(actions), folder)
            known = learner.learns_values and learner.learns_action_values
            values = learner.q[index] if known else None
            write_table(folder / "table.csv", actions, values, starts=first_members(settings))
            return

        def predict(observations: Any) -> Any:
            return trained.predict(observations, seed_index=index)[0]

        if options.format != "safetensors":
            from operant.control.exporting import module_of_policy
            from operant.runtime.graphs import write_graph

            policy = module_of_policy(trained.experiment, index)
            write_graph(settings, seed, policy, folder, form=options.format, predict=predict)
        else:
            from operant.control.exporting import network_of

            write_policy(settings, seed, network_of(trained.experiment, index), folder, predict=predict)
