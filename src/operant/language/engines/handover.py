"""Transfer of weights from the trainer to vLLM servers, through a shared folder: `send`."""

import contextlib
import copy
import shutil
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

from operant.language.engines.connection import Connection, ServerError
from operant.language.huggingface import is_adapted, merged
from operant.language.models import LanguageModel

CACHE_ATTEMPTS, CACHE_PAUSE = 20, 0.1
"""Attempts to reset the server's prefix cache, and delay between them in seconds."""

_MISSING = 404


def folder_of_weights(parent: str | Path | None) -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder for weights, from which a server that runs as another user can read by path.

    Args:
        parent: folder of the folder. None: the folder of temporary files.
    """
    folder = tempfile.TemporaryDirectory(prefix="operant-weights-", dir=parent)
    Path(folder.name).chmod(0o711)  # it cannot be listed, and its name is random
    return folder


@contextlib.contextmanager
def written(model: LanguageModel, folder: Path) -> Generator[Path]:
    """Write the current weights of a model to a temporary folder for the duration of the block."""
    try:
        write(model, folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def send(server: Connection, model: LanguageModel, folder: Path) -> None:
    """Send the current weights of a model to one server.

    Args:
        server: connection to the server.
        model: model with the weights.
        folder: new temporary folder for the weights. The server reads it only when it is complete.

    Raises:
        ServerError: the server does not accept the weights; the message explains what it needs.
    """
    with written(model, folder):
        load(server, folder)


def load(server: Connection, folder: Path) -> None:
    """Make a server load its weights from a complete folder.

    Args:
        server: connection to the server.
        folder: folder returned by `written`; the server must see it under the same path.

    Raises:
        ServerError: the server does not accept the weights; the message explains what it needs.
    """
    try:
        server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
    except ServerError as error:
        raise _explained(error, folder) from error
    _drop_cached(server)


def write(model: LanguageModel, folder: Path) -> None:
    """Write the weights of a model in the format of transformers; adapters are merged into the base model."""
    network = model.network
    if is_adapted(network):
        network = merged(copy.deepcopy(network))
    with _quietly():
        network.save_pretrained(folder, safe_serialization=True)
    # safetensors makes files private to their owner, but the server may run as another user.
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)


def _drop_cached(server: Connection) -> None:
    """Reset the server's prefix cache of earlier weights."""
    for _ in range(CACHE_ATTEMPTS):
        answer = server.post("/reset_prefix_cache")
        if not isinstance(answer, dict) or cast(dict[str, Any], answer).get("success", True):
            return
        time.sleep(CACHE_PAUSE)
    raise ServerError(
        f"{server.address} cannot reset its cache of earlier weights, since it has other users: use a separate server"
    )


@contextlib.contextmanager
def _quietly() -> Generator[None]:
    """Disable transformers' progress bars temporarily."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _explained(error: ServerError, folder: Path) -> ServerError:
    """Add the server's requirements for receiving weights to an error."""
    if error.status == _MISSING:
        return ServerError(f"{error}; start the server with VLLM_SERVER_DEV_MODE=1 to enable weight updates", _MISSING)
    return ServerError(
        f"{error}; the server must see the folder {folder}, serve a model of the trained architecture, and have a "
        "recent version (0.32 works); restart it if it has loaded only some of the weights",
        error.status,
    )
