"""A vLLM server of one's own for as long as it is needed: `serving`."""

import contextlib
import http.client
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from operant.language.engines import gate
from operant.language.engines.connection import KEY, ServerError
from operant.language.engines.handover import write
from operant.language.models import LanguageModel

PYTHON = "VLLM_PYTHON"
"""Environment variable that names the Python in which vLLM is installed."""
LOOPBACK = "127.0.0.1"
GATE = "operant_gate"
"""What the module that asks for a key is called inside the server."""
LAST_LINES = 20
"""Lines of the server's output that an error shows."""
_PATIENCE = 10.0
"""Seconds in which a server that is told to stop may do so by itself."""


@contextlib.contextmanager
def serving(
    model: LanguageModel | str | Path,
    *,
    python: str | None = None,
    options: Sequence[str] = (),
    port: int = 0,
    seconds: float = 600.0,
) -> Generator[str]:
    """Run a vLLM server on this machine until the block ends.

    It listens on the loopback address alone, takes new weights, and answers with the log-probabilities of what it
    really draws from. Other users of the machine can reach that address too, so every path of it asks for a key
    (`operant.language.engines.gate`): that of the environment variable `VLLM_API_KEY`, or a random one that is put
    there for as long as the block runs, where `VLLMEngine` and the processes started in it find it. Its output goes to
    a file, whose end is shown if it does not start.

    Args:
        model: what is served: a model (it is saved to a temporary folder first), a folder or a hub name.
        python: executable of the Python in which vLLM is installed. Default: the environment variable `VLLM_PYTHON`.
        options: more arguments of the server, such as `["--max-model-len", "4096"]`; they win over those set here. A
            model that is given as such is served in the numbers that it computes in.
        port: where it listens; 0: any port that is free.
        seconds: how long it may take to start.

    Yields:
        Its address, such as `http://127.0.0.1:40123`.

    Raises:
        ValueError: nothing says which Python to use, something else listens at the port, or the options hold a key.
        ServerError: the server ended while it started, or was not ready in time.
    """
    python = python or os.environ.get(PYTHON, "")
    if not python:
        raise ValueError(f"no Python with vLLM is named: set {PYTHON}=/path/to/bin/python, or give python=...")
    if any(option.split("=")[0] in ("--api-key", "--api_key") for option in options):
        raise ValueError(f"options hold --api-key, which other users can see; set {KEY} in the environment instead")
    with tempfile.TemporaryDirectory(prefix="operant-vllm-") as folder, _key():
        port, log = _free(port), Path(folder) / "server.log"
        if isinstance(model, LanguageModel):
            options = ["--dtype", str(model.dtype).removeprefix("torch."), *options]
            model, saved = Path(folder) / "model", model
            write(saved, model)
            saved.tokenizer.save_pretrained(model)
        shutil.copy(gate.__file__, Path(folder) / f"{GATE}.py")
        arguments = [*command(str(model), port), "--middleware", f"{GATE}.Gate", *options]
        process = _start([python, *arguments], log, Path(folder))
        try:
            _wait(process, port, log, time.monotonic() + seconds)
            yield f"http://{LOOPBACK}:{port}"
        finally:
            _stop(process)


def command(model: str, port: int) -> list[str]:
    """Return the arguments with which Python runs a server that `VLLMEngine` can use."""
    return [
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", model, "--host", LOOPBACK, "--port", str(port)),
        *("--logprobs-mode", "processed_logprobs"),
    ]


@contextlib.contextmanager
def _key() -> Generator[None]:
    """Put a random key into the environment, if there is none."""
    if os.environ.get(KEY):
        yield
        return
    os.environ[KEY] = secrets.token_urlsafe(32)
    try:
        yield
    finally:
        del os.environ[KEY]


def environment() -> dict[str, str]:
    """Return the variables that the server needs besides those of this process: weights may be exchanged."""
    return {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _free(port: int) -> int:
    """Return a port at which nothing listens: the one that is asked for, or any for 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ValueError(
                f"port {port} cannot be used ({error.strerror}); name another one, or 0 for any"
            ) from error
        return probe.getsockname()[1]


def _start(arguments: list[str], log: Path, modules: Path) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, so that the processes that it starts can be ended with it.

    Args:
        arguments: the program and what it is told.
        log: file for its output.
        modules: folder of Python modules that it can import.
    """
    paths = os.pathsep.join(filter(None, (str(modules), os.environ.get("PYTHONPATH"))))
    with log.open("wb") as output:
        try:
            return subprocess.Popen(  # noqa: S603 - no shell, and the caller names the program
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | environment() | {"PYTHONPATH": paths},
            )
        except OSError as error:
            raise ServerError(f"the server cannot be started with {arguments[0]}: {error}") from error


def _wait(process: subprocess.Popen[bytes], port: int, log: Path, deadline: float) -> None:
    while not _ready(port):
        if process.poll() is not None:
            raise ServerError(f"the vLLM server ended with exit code {process.returncode}:\n{_end_of(log)}")
        if time.monotonic() > deadline:
            raise ServerError(
                f"the vLLM server was not ready in time; give serving(..., seconds=...) more:\n{_end_of(log)}"
            )
        time.sleep(0.2)


def _ready(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/health", headers={"Authorization": f"Bearer {os.environ.get(KEY, '')}"})
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything in its group, kindly at first."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_PATIENCE)
