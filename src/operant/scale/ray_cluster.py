"""Ray as the host of workers, started for one command or an existing cluster: `cluster` (extra: `scale`)."""

import importlib
import logging
import os
import re
import secrets
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from operant.hosts import within
from operant.runtime.machine import cores
from operant.runtime.signals import handlers_kept
from operant.scale import ray_janitor
from operant.scale.variables import environment_variables

LEAST = (2, 54)
"""Minimum version; earlier ones have no complete token authentication."""

OBJECT_STORE = 128 << 20
"""Shared memory in bytes of a started cluster, for large messages."""

STARTS = 3
"""Attempts to start a cluster: on a busy machine, the servers of Ray may miss its own time limit of 30 seconds."""

PROBE_SECONDS = 60.0
"""Time limit of a connection without a token."""

REJECTED = "AuthenticationError"
"""Name of the error of a cluster that requires a token."""

_ADDRESS = re.compile(r"(\[[\w:.]+\]|[\w.-]+):\d+")
_TOKEN = secrets.token_hex(32)
"""Token of the clusters that this process starts; Ray reads it once."""

_LOCAL: Mapping[str, str] = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": _TOKEN,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system, so that all servers use 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # workers see the same devices as this process
}
_PROBE = """
import sys
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray._raylet import GcsClient  # ray.init retries for minutes
address = sys.argv[1]
if address == "auto":
    address = canonicalize_bootstrap_address_or_die(address)
print(address, flush=True)
GcsClient(address=address)
"""


class RayReply:
    """See `operant.hosts.Reply`."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def done(self) -> bool:
        """See `operant.hosts.Reply`."""
        return not self._ray.is_initialized() or bool(self._ray.wait([self._reference], timeout=0)[0])

    def result(self, seconds: float | None = None) -> Any:
        """See `operant.hosts.Reply`."""
        errors = self._ray.exceptions
        if not self._ray.is_initialized():  # else Ray would start another cluster
            raise ConnectionError("the actor has ended with its cluster")
        try:
            return self._ray.get(self._reference, timeout=seconds)
        except errors.GetTimeoutError as error:
            raise TimeoutError(f"no reply within {seconds:g} seconds") from error
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayError as error:
            raise ConnectionError(f"an actor on Ray is lost: {str(error).splitlines()[0]}") from error


class RayActor:
    """See `operant.hosts.Actor`."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray, self._handle = ray, handle

    def call(self, method: str, *args: Any) -> RayReply:
        """See `operant.hosts.Actor`."""
        running = self._ray.is_initialized()
        return RayReply(self._ray, getattr(self._handle, method).remote(*args) if running else None)

    def kill(self) -> None:
        """See `operant.hosts.Actor`."""
        if self._ray.is_initialized():
            self._ray.kill(self._handle)


class RayHost:
    """A connection to Ray (see `operant.hosts.Host`).

    Args:
        ray: the connected package.
        cpus: CPUs that each actor reserves.

    Attributes:
        address: address of the cluster.
    """

    def __init__(self, ray: Any, *, cpus: int) -> None:
        self._ray, self._cpus = ray, cpus
        self.address: str = ray.get_runtime_context().gcs_address

    def actor(self, kind: type, *args: Any, threads: int = 1) -> RayActor:
        """See `operant.hosts.Host`. Actors are spread over the nodes; a lost one is not restarted by Ray."""
        options: dict[str, Any] = {"num_cpus": self._cpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        made = self._ray.remote(kind).options(max_concurrency=threads, **options)
        return RayActor(self._ray, made.remote(*args))

    @property
    def cpus(self) -> int:
        """Number of CPUs of the cluster."""
        return int(self._ray.cluster_resources().get("CPU", 0))


@contextmanager
def cluster(address: str = "", *, unauthenticated: bool = False) -> Generator[RayHost]:
    """Set Ray as the host of workers that are created in the block.

    Args:
        address: address of an existing cluster with this machine as a node, `HOST:PORT` or `auto`. Default: a
            cluster on this machine, started for the block: without dashboard, on the loopback interface, with a token,
            a namespace and a private temporary folder. It ends with the block, or with this process.
        unauthenticated: whether to allow a cluster beyond the loopback interface without token authentication.

    Raises:
        ModuleNotFoundError: Ray is not installed, or too old.
        ValueError: the address is malformed, or that of an unauthenticated cluster.
        ConnectionError: no cluster replies at the address, or none could be started.
        RuntimeError: this process uses Ray already, or has imported it with other settings.
    """
    if address not in ("", "auto") and not _ADDRESS.fullmatch(address):
        raise ValueError(
            f"expected HOST:PORT or auto as the address of a Ray cluster that has this node, got {address}"
        )
    with _joined(address, unauthenticated) if address else _own() as host, within(host):
        yield host


@contextmanager
def _own() -> Generator[RayHost]:
    """Start a cluster on this machine; stop it and clean up afterwards.

    Raises:
        ConnectionError: it could not be started.
    """
    with ExitStack() as stack:
        yield _first_started(stack)


def _first_started(stack: ExitStack) -> RayHost:
    """Return the cluster of the first successful attempt, which ends with `stack`."""
    for _ in range(STARTS - 1):
        with suppress(_StartError):
            return stack.enter_context(_started())
    return stack.enter_context(_started())


class _StartError(ConnectionError):
    """A cluster could not be started."""


@contextmanager
def _started() -> Generator[RayHost]:
    """Start a cluster on this machine, in one attempt; stop it and clean up afterwards."""
    with _folder() as folder, environment_variables({**_LOCAL, ray_janitor.MARK: str(folder), "RAY_ADDRESS": None}):
        ray = _package()
        if importlib.import_module("ray._private.ray_constants").ENABLE_RAY_CLUSTER:  # read at the import
            raise RuntimeError(
                "Ray would listen beyond the loopback interface: this process has imported it before its cluster is "
                "started; import it in the block of the cluster, or pass the address of an existing cluster"
            )
        own: dict[str, Any] = {"include_dashboard": False, "_temp_dir": str(folder / "ray")}
        own |= {"num_cpus": cores(), "object_store_memory": OBJECT_STORE, "_node_ip_address": "127.0.0.1"}
        with ExitStack() as stack:
            try:
                stack.enter_context(_connected(ray, own))
            except Exception as error:
                if type(error) not in (Exception, RuntimeError):
                    raise
                raise _StartError(f"Ray could not be started: {error}") from error
            host = RayHost(ray, cpus=0)  # there may be more workers than CPUs, as with processes
            if not _is_loopback(host.address):
                raise RuntimeError(f"Ray serves {host.address}, not the loopback interface alone")
            yield host


@contextmanager
def _joined(address: str, unauthenticated: bool) -> Generator[RayHost]:
    """Connect to an existing cluster."""
    ray = _package()
    if not unauthenticated and not _is_loopback(address):
        _require_authentication(address)
    try:
        with _connected(ray, {"address": address}):
            yield RayHost(ray, cpus=1)
    except ray.exceptions.AuthenticationError as error:
        raise ConnectionError(
            f"the Ray cluster at {address} needs a token: set RAY_AUTH_MODE=token, and the token in RAY_AUTH_TOKEN, or "
            "its file in RAY_AUTH_TOKEN_PATH"
        ) from error


@contextmanager
def _connected(ray: Any, options: Mapping[str, Any]) -> Generator[None]:
    """Connect this process to Ray in a separate namespace."""
    common = {"namespace": f"operant-{uuid.uuid4().hex}", "log_to_driver": False, "logging_level": logging.ERROR}
    with _silent():
        try:
            with handlers_kept("SIGTERM", "SIGINT"):
                ray.init(**options, **common)
            yield
        finally:
            with handlers_kept("SIGTERM", "SIGINT"):
                ray.shutdown()


def _package() -> Any:
    """Import Ray.

    Raises:
        ModuleNotFoundError: it is not installed, or too old.
        RuntimeError: this process is connected to it.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'Ray is not installed ({error.name}): pip install "operant[scale]"') from error
    if tuple(map(int, ray.__version__.split(".")[:2])) < LEAST:
        least = ".".join(map(str, LEAST))
        raise ModuleNotFoundError(
            f'Ray must have version {least} or later, got {ray.__version__}: pip install --upgrade "ray>={least}"'
        )
    if ray.is_initialized():
        raise RuntimeError("this process is already connected to Ray: call ray.shutdown() first")
    return ray


def _require_authentication(address: str) -> None:
    """Raise ValueError if a cluster beyond the loopback interface accepts connections without a token."""
    hidden = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-c", _PROBE, address]
    environment["RAY_AUTH_MODE"] = "disabled"
    try:
        probe = subprocess.run(  # noqa: S603 - our own interpreter and script
            command, env=environment, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectionError(f"no Ray cluster replied at {address} within {PROBE_SECONDS:g} seconds") from error
    found = probe.stdout.strip() or address
    if _is_loopback(found):
        return
    if probe.returncode == 0:
        raise ValueError(
            f"the Ray cluster at {found} allows any client to run code, without a token: start it with "
            "RAY_AUTH_MODE=token, or allow it with --ray-unauthenticated on a network that you trust"
        )
    if REJECTED not in probe.stderr:
        raise ConnectionError(f"no Ray cluster replied at {found}: {probe.stderr.strip().splitlines()[-1]}")


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


@contextmanager
def _folder() -> Generator[Path]:
    """Create a private folder, which is removed with the processes that use it, even if this process is killed."""
    folder = Path(tempfile.mkdtemp(prefix="operant-ray-"))
    command = [sys.executable, "-I", "-S", str(Path(ray_janitor.__file__).resolve()), str(folder)]
    janitor = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own interpreter and script
    try:
        yield folder
    finally:
        janitor.communicate()


@contextmanager
def _silent() -> Generator[None]:
    """Suppress Ray's messages about lost actors and nodes on standard output; workers report them."""
    worker: Any = importlib.import_module("ray._private.worker")
    printing = getattr(worker, "print_to_stdstream", None)
    worker.print_to_stdstream = lambda *_, **__: None  # pyright: ignore[reportUnknownLambdaType]
    try:
        yield
    finally:
        worker.print_to_stdstream = printing
