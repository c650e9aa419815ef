"""A temporary vLLM server: `serving`."""

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
"""Environment variable with the path of a Python interpreter with vLLM."""
LOOPBACK = "127.0.0.1"
GATE = "operant_gate"
"""Name of the module with the key check inside the server."""
LAST_LINES = 20
"""Maximum number of lines of the server's output in an error."""
_PATIENCE = 10.0
"""Grace period in seconds before a server is killed."""


@contextlib.contextmanager
def serving(
    model: LanguageModel | str | Path,
    *,
    python: str | None = None,
    options: Sequence[str] = (),
    port: int = 0,
    seconds: float = 600.0,
) -> Generator[str]:
    """Run a vLLM server on this machine within a `with` block.

    It listens only on the loopback address, accepts new weights, and returns the log-probabilities of its actual
    sampling distribution. Other users of the machine can reach that address too, so every path requires a key
    (`operant.language.engines.gate`): that of the environment variable `VLLM_API_KEY`, or a random one, set there
    during the block, where `VLLMEngine` and child processes find it. Its output goes to a file, whose last lines are in
    the error if the server does not start.

    Args:
        model: model to serve: an object (saved to a temporary folder), a folder, or a name on the hub.
        python: path of a Python interpreter with vLLM. Default: the environment variable `VLLM_PYTHON`.
        options: further arguments of the server, such as `["--max-model-len", "4096"]`, which override the defaults. A
            model object is served in its dtype.
        port: port to listen on; 0: any free port.
        seconds: timeout of the start.

    Yields:
        URL of the server, such as `http://127.0.0.1:40123`.

    Raises:
        ValueError: no Python is configured, the port is in use, or the options contain a key.
        ServerError: the server ended during the start, or was not ready in time.
    """
    python = python or os.environ.get(PYTHON, "")
    if not python:
        raise ValueError(f"no Python with vLLM is configured: set {PYTHON}=/path/to/bin/python, or pass python=...")
    if any(option.split("=")[0] in ("--api-key", "--api_key") for option in options):
        raise ValueError(f"options contain --api-key, which other users can see; set {KEY} in the environment instead")
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
    """Return the arguments of the Python interpreter to start a server for `VLLMEngine`."""
    return [
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", model, "--host", LOOPBACK, "--port", str(port)),
        *("--logprobs-mode", "processed_logprobs"),
    ]


@contextlib.contextmanager
def _key() -> Generator[None]:
    """Set a random key in the environment, if there is none."""
    if os.environ.get(KEY):
        yield
        return
    os.environ[KEY] = secrets.token_urlsafe(32)
    try:
        yield
    finally:
        del os.environ[KEY]


def environment() -> dict[str, str]:
    """Return environment variables that enable weight updates in the server."""
    return {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _free(port: int) -> int:
    """Return a free port: the given one, or any if it is 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ValueError(
                f"port {port} cannot be used ({error.strerror}); choose another one, or 0 for any"
            ) from error
        return probe.getsockname()[1]


def _start(arguments: list[str], log: Path, modules: Path) -> subprocess.Popen[bytes]:
    """Start a process in a new process group, so that its child processes can be stopped with it.

    Args:
        arguments: the program and its arguments.
        log: file for the output.
        modules: folder to add to the Python path.
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
                f"the vLLM server was not ready in time; use a larger serving(..., seconds=...):\n{_end_of(log)}"
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
    """Terminate the process group, and kill it after a grace period."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_PATIENCE)
