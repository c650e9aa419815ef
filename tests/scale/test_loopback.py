import json
import os
import socket
import subprocess
import sys

import pytest

from operant.scale.loopback import Loopback, loopback_only

LISTENERS = """
import json, os, time
from operant.scale import joined

LISTEN = "0A"
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}

def listening(pid):
    links = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    inodes = {os.readlink(link) for link in links if os.path.lexists(link)}
    found = []
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{table}").readlines()[1:]:
            words = line.split()
            if words[3] == LISTEN and f"socket:[{words[9]}]" in inodes:
                found.append(words[1].partition(":")[0])
    return found

with joined() as group:
    pids = [os.getppid(), os.getpid()] if group.rank == 0 else [os.getpid()]
    addresses = [listening(pid) for pid in pids]
    states = group.gather([{"addresses": addresses}], group.size)
    if group.rank == 0:
        everything = [each for state in states for each in state["addresses"]]
        print(json.dumps([everything, sorted({a for each in everything for a in each} - LOOPBACK)]), flush=True)
    else:
        group.receive()  # that the group ends
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/net")
def test_nothing_listens_outside_the_loopback_interface(tmp_path):
    """Other interfaces could be reached from the network; torchrun's rendezvous even unpickles what it receives."""
    (tmp_path / "listeners.py").write_text(LISTENERS)
    # The interface is one of a site's own settings for other programs.
    own = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "GLOO_SOCKET_IFNAME": "none"}
    code = "from operant.scale import launch; raise SystemExit(launch([], 2, module='listeners'))"
    launcher = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **own}, capture_output=True, text=True, timeout=200, check=True
    )
    everything, outside = json.loads(launcher.stdout)
    assert outside == []
    assert len(everything) == 3
    assert all(everything), "the launcher's store, and the connections of both processes"


def test_two_launchers_have_stores_of_their_own():
    first, second = (Loopback("run").next_rendezvous() for _ in range(2))
    ports = {info.bootstrap_store_info.master_port for info in (first, second)}
    assert len(ports) == 2
    assert {info.bootstrap_store_info.master_addr for info in (first, second)} == {"127.0.0.1"}
    first.store.set("key", "first")
    assert first.store.get("key") == b"first"
    assert not second.store.check(["key"])


@pytest.mark.skipif(not hasattr(socket, "if_nameindex") or os.name != "posix", reason="interfaces of POSIX")
def test_the_environment_is_restored(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    with loopback_only():
        assert os.environ["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
        assert os.environ["NCCL_SOCKET_IFNAME"] == f"={os.environ['GLOO_SOCKET_IFNAME']}"
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    assert "NCCL_SOCKET_IFNAME" not in os.environ
