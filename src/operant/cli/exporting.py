"""`operant export` (extra: `language`)."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import tyro

from operant.cli.arguments import Opening, parse
from operant.cli.output import location, print_json, require_extra, say
from operant.runtime.files import beside


@dataclass(frozen=True)
class ExportOptions(Opening):
    """Write a trained language model in Hugging Face's format: safetensors, configuration and tokenizer.

    An adapter is written by itself, as peft does. `--model FOLDER` goes on from it.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""

    folder: tyro.conf.Positional[Path]
    """Where to write; a new folder, or an empty one."""

    seed: int | None = None
    """Which seed's model. Default: the first one of the run."""

    best: tyro.conf.FlagCreatePairsOff[bool] = False
    """Write the weights that did best in the evaluations while they were trained, not the latest ones."""

    merge: tyro.conf.FlagCreatePairsOff[bool] = False
    """Add an adapter to the weights that it belongs to, and write the whole model."""


def export(arguments: list[str]) -> int:
    """Write a trained language model."""
    options = parse(ExportOptions, arguments, "export")
    from operant.runtime.run import Run

    run, folder = Run.open(options.run), options.folder.expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{options.folder} exists already and is not an empty folder; name another one")
    require_extra("language", "a language model", ["transformers", "tokenizers", "peft"])
    from transformers.utils.logging import disable_progress_bar

    from operant.language.chat import write_model
    from operant.language.inputs import MODEL

    disable_progress_bar()
    seed = run.settings.seeds[0] if options.seed is None else options.seed
    run.require_inputs(MODEL, accept=options.accept_changes)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = beside(folder)
    part.mkdir()
    try:
        chosen = {"seed": seed, "merge": options.merge, "best": options.best}
        write_model(run, part, **chosen, remote_code=options.remote_code)
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
