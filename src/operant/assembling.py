"""From names and choices to an experiment, whatever the chapter: its device, its threads, its learner."""

import importlib
import logging
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from operant import catalog
from operant.nets import missing_tool, set_precision
from operant.runtime.experiments import require_no_compiling, require_no_game, require_no_workers
from operant.runtime.inputs import Input
from operant.runtime.machine import cores, present
from operant.runtime.run import Run
from operant.runtime.settings import Settings

logger = logging.getLogger(__name__)

LANGUAGE = ("transformers", "tokenizers", "peft", "datasets")
"""Packages of the extra `language` that every run of a language model needs."""


def resolve(entry: catalog.Algorithm, settings: Settings, config: Any) -> dict[str, Any]:
    """Decide what the settings leave open: the smallest networks are fastest on one thread of the CPU."""
    if entry.chapter != "control":
        require_no_compiling(settings)
        require_no_game(settings)
        require_no_workers(settings)
    language = entry.chapter == "language"
    large = language and not chapter(entry).built_in(config)
    device = settings.device
    if device == "auto":
        device = "cuda" if large and torch.cuda.is_available() else "cpu"
    if not present(device):
        raise ValueError(f"device {device!r} is not on this machine; `operant doctor` lists those that are")
    available = cores()
    threads = settings.threads or (available if large else min(2, available) if language else 1)
    return {"device": device, "threads": threads, "precision": settings.precision}


def pin(entry: catalog.Algorithm, settings: Settings, config: Any, init: Path | None) -> tuple[Any, list[Input]]:
    """Return a configuration that means the same from any working folder, and the files and folders that it names.

    Args:
        entry: the algorithm.
        settings: the run's.
        config: the algorithm's own configuration.
        init: the run that one of deep control begins with, if any.

    Raises:
        OSError: one of them cannot be read.
    """
    if entry.chapter == "language":
        return chapter(entry).pin(settings, config)
    return config, [] if init is None else [Input.of("init", init, at_start=True)]


def assemble(entry: catalog.Algorithm, settings: Settings, config: Any, resolved: dict[str, Any]) -> Any:
    """Return the experiment of a run, and have this process compute as `resolved` says.

    Args:
        entry: its algorithm.
        settings: the run's.
        config: the algorithm's own configuration.
        resolved: what `resolve` decided.

    Raises:
        ValueError: the algorithm cannot do what is asked for, or not in this task.
    """
    torch.set_num_threads(resolved["threads"])
    set_precision(resolved["precision"], torch.device(resolved["device"]), stacked=entry.chapter == "control")
    torch.backends.cudnn.allow_tf32 = resolved["precision"] != "highest"  # of convolutions, which it does not reach
    return chapter(entry).assemble(entry, settings, config, device=resolved["device"])


def reassemble(folder: Run, remote_code: bool) -> Any:
    """Return the experiment of a run that was made before, as it was resolved then; what is missing now is warned of.

    Args:
        folder: the run.
        remote_code: whether Python code that came with a language model may run, if the run wants it.

    Raises:
        RunError: the run cannot be read, or wants to run code that is not allowed.
    """
    entry = catalog.find(folder.settings.algorithm)
    config = folder.config(getattr(importlib.import_module(entry.module), entry.config))
    if entry.chapter == "language":
        chapter(entry).check_code(config, folder.path, allowed=remote_code)
    resolved = folder.resolved()
    if not present(resolved["device"]):
        logger.warning(
            "%s was trained on %s, which is not here; it goes on on the cpu", folder.path, resolved["device"]
        )
        resolved["device"] = "cpu"
    compiled = resolved.get("compile", False)
    if compiled and (missing := missing_tool(torch.device(resolved["device"]))):
        logger.warning("%s was compiled, which needs %s; it goes on without", folder.path, missing)
        compiled = False
    settings = replace(folder.settings, compile="on" if compiled else "off")
    return assemble(entry, settings, config, resolved)


def chapter(entry: catalog.Algorithm) -> Any:
    """Return the package of an algorithm's chapter.

    Raises:
        ModuleNotFoundError: what it needs is not installed; the message says how to do so.
    """
    absent = [name for name in LANGUAGE if entry.chapter == "language" and find_spec(name) is None]
    if absent:
        raise ModuleNotFoundError(f'{entry.name} needs {", ".join(absent)}: pip install "operant[language]"')
    return importlib.import_module(f"operant.{entry.chapter}")
