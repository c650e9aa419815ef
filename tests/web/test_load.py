"""Many clients at the same time (row F27): the memory of the server is bounded, and it still responds."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from operant.web.live import MOST_STREAMS
from web.folders import make_run  # type: ignore[import-not-found]

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")

CLIENTS = 800
"""A thousandth of a megabyte each would not be noticed; `python benchmarks/web.py` opens 10 000."""
MOST_KILOBYTES = 90_000


@pytest.fixture
def server(tmp_path):
    """Serve a folder with one run."""
    make_run(tmp_path / "runs" / "one", [[0.1]], metrics=3)
    command = [
        sys.executable,
        "-m",
        "operant",
        "serve",
        "--no-browser",
        "--port",
        "0",
        "--runs",
        str(tmp_path / "runs"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    process.port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    yield process
    process.kill()
    process.communicate()


async def status(port, path):
    """Send a request, and return the status and the open connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    line = await asyncio.wait_for(reader.readline(), 60)
    return int(line.split()[1]), writer


def test_f27_streams_are_bounded_and_pages_still_answered(server):
    async def crowd():
        found = [await status(server.port, "/events?runs=one&file=metrics") for _ in range(CLIENTS)]
        lines = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8").splitlines()
        resident = int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))
        for code, writer in found:
            if code != 200:
                writer.close()
        await asyncio.sleep(0.5)
        page, last = await status(server.port, "/")
        for writer in (*(writer for _, writer in found), last):
            writer.close()
        return [code for code, _ in found], resident, page

    codes, resident, page = asyncio.run(crowd())
    assert codes.count(200) == MOST_STREAMS
    assert codes.count(503) == CLIENTS - MOST_STREAMS
    assert page == 200
    assert resident < MOST_KILOBYTES
