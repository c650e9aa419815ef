"""Rendezvous of the processes of one machine that only this machine can reach: `Loopback`, `loopback_only`.

The rendezvous of torchrun (`c10d`) listens on all interfaces, without authentication, and unpickles values: any host
that reaches its port can run code. This one listens on 127.0.0.1, and its values are never unpickled.
"""

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from operant.scale.variables import environment_variables

HOST = "127.0.0.1"
BACKEND = "operant-loopback"
"""Name of the rendezvous for `LaunchConfig.rdzv_backend`."""

_INTERFACES = "lo", "lo0"
"""Names of the loopback interface: on Linux, and on macOS and BSD."""
_Store, _PrefixStore = cast(Any, dist).TCPStore, cast(Any, dist).PrefixStore  # their types are not exported


class Loopback(RendezvousHandler):
    """Rendezvous of a single launcher, with a key-value store on the loopback address for its processes.

    Args:
        run_id: id of the run, a prefix of the launcher's own keys.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        listener = socket.create_server((HOST, 0))
        self._port = listener.getsockname()[1]
        self._store = _Store(
            HOST, self._port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def get_backend(self) -> str:
        """Return the name of the rendezvous."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether the processes use the launcher's store, so that they open none themselves."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the store, and its address for the processes."""
        store = _PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(HOST, self._port))

    def is_closed(self) -> bool:
        """Return False: no other launcher can join."""
        return False

    def set_closed(self) -> None:
        """Do nothing: no other launcher can join."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no other launcher can join."""
        return 0

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self._run_id

    def shutdown(self) -> bool:
        """Return True: the store closes when the launcher no longer refers to it."""
        return True


def _loopback(parameters: RendezvousParameters) -> Loopback:
    return Loopback(parameters.run_id)


rendezvous_handler_registry.register(BACKEND, _loopback)


@contextmanager
def loopback_only() -> Generator[None]:
    """Make processes started within the block exchange their data through the loopback interface.

    Otherwise gloo listens on the address that the host name resolves to, and NCCL on any interface. Windows has no name
    for the interface: there gloo keeps the address of the host name.
    """
    names = [name for _, name in socket.if_nameindex() if name in _INTERFACES] if os.name == "posix" else []
    with environment_variables({"GLOO_SOCKET_IFNAME": names[0], "NCCL_SOCKET_IFNAME": f"={names[0]}"} if names else {}):
        yield
