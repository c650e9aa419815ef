"""Weights from the trainer to a vLLM server, by way of a folder that both see: `send`."""

import contextlib
import copy
import shutil
import time
from collections.abc import Generator
from pathlib import Path

from operant.language.engines.connection import Connection, ServerError
from operant.language.models import LanguageModel

CACHE_ATTEMPTS, CACHE_PAUSE = 20, 0.1
"""How often the server is asked to drop what it has computed with earlier weights, and seconds between."""

_MISSING = 404


def send(server: Connection, model: LanguageModel, folder: Path) -> None:
    """Give a server the weights that a model has now.

    Args:
        server: takes them.
        model: has them.
        folder: new; where they are written for as long as it takes. Nothing else is told of it, so it is whole when the
            server reads it.

    Raises:
        ServerError: it does not take them; the message says what it needs for that.
    """
    try:
        write(model, folder)
        server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
    except ServerError as error:
        raise _explained(error, folder) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _drop_cached(server)


def write(model: LanguageModel, folder: Path) -> None:
    """Write the weights of a model as transformers does; an adapter is added to those that it belongs to."""
    network = model.network
    if hasattr(network, "merge_and_unload"):
        network = copy.deepcopy(network).merge_and_unload()
    with _quietly():
        network.save_pretrained(folder, safe_serialization=True)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes for its owner alone, but the server may be another user's


def _drop_cached(server: Connection) -> None:
    """Drop the keys and values that the server has computed with earlier weights."""
    for _ in range(CACHE_ATTEMPTS):
        answer = server.post("/reset_prefix_cache")
        if not isinstance(answer, dict) or answer.get("success", True):
            return
        time.sleep(CACHE_PAUSE)
    raise ServerError(
        f"{server.address} keeps what it has computed with earlier weights, since others use it; give training a "
        "server of its own"
    )


@contextlib.contextmanager
def _quietly() -> Generator[None]:
    """Let transformers show no progress bar for a while."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _explained(error: ServerError, folder: Path) -> ServerError:
    """Return an error that says what a server needs to take weights."""
    if error.status == _MISSING:
        return ServerError(f"{error}; start the server with VLLM_SERVER_DEV_MODE=1, so that it takes weights", _MISSING)
    return ServerError(
        f"{error}; to take weights a server must see {folder}, serve a model of the same architecture as the one that "
        "is trained, and be new enough (0.32 works); it has to be started anew if it has read a part of them",
        error.status,
    )
