import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from operant.web.serving import Options, serve


def start(*arguments, cwd):
    command = [sys.executable, "-m", "operant", "serve", "--no-browser", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_stopped(tmp_path, number):
    server = start("--port", "0", cwd=tmp_path)
    try:
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=30) as response:  # noqa: S310 - of this machine
            assert b"operant" in response.read()
        server.send_signal(number)
        _, said = server.communicate(timeout=30)
    finally:
        server.kill()
    assert server.returncode == 0
    assert "stopped" in said
    assert "Traceback" not in said


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_server_is_light_and_ends_its_workers(tmp_path):
    server = start("--port", "0", cwd=tmp_path)
    try:
        address = server.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=30):  # noqa: S310
            pass
        headers = {"content-type": "application/json", "x-operant": "1"}
        asked = urllib.request.Request(f"{address}api/playground/presets", b"{}", headers)  # noqa: S310
        with urllib.request.urlopen(asked, timeout=120) as response:  # noqa: S310
            assert response.status == 200
        status = Path(f"/proc/{server.pid}/status")
        resident = [int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS")]
        children = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True, check=False).stdout
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    finally:
        server.kill()
    assert all(kilobytes < 100_000 for kilobytes in resident)
    for child in children.split():
        deadline = time.monotonic() + 5
        while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{child}").exists()


def test_a_server_whose_address_cannot_be_printed_releases_its_port(tmp_path):
    ports = []

    def announce(address):
        ports.append(int(address.split(":")[2].strip("/")))
        raise BrokenPipeError("closed")

    with pytest.raises(BrokenPipeError) as error:  # its traceback keeps the server's variables alive
        serve(Options(port=0, runs=tmp_path, browser=False), announce)
    socket.create_server(("127.0.0.1", ports[0])).close()
    del error


def test_a_port_that_is_in_use(tmp_path):
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(ValueError, match="is in use: choose another one with --port"):
        serve(Options(port=taken.getsockname()[1], runs=tmp_path, browser=False), lambda _: None)
