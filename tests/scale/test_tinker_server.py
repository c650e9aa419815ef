"""The Tinker API, called by its official SDK over a real socket."""

import gzip
import os
import subprocess
import sys

import httpx2 as httpx
import pytest

pytest.importorskip("tinker")
pytest.importorskip("uvicorn")

from operant.language.engines.protocol import Sampling
from operant.scale import tinker_server
from operant.scale.tinker_server import read_sampling, unzipped

KEY = "tml-of-the-tests"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Serve a model in a separate process, as a user would."""
    command = [sys.executable, "-m", "operant", "serve", "--train", "tiny", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--states", str(tmp_path_factory.mktemp("states"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TINKER_API_KEY": KEY},
    )
    yield process.stdout.readline().strip()
    process.terminate()
    with process.stdout:
        assert process.wait(timeout=60) == 0


def test_programs_run_with_nothing_but_the_address_changed(address):
    """Run training, samples and states of the four verbs, and a loop that uses only the SDK."""
    environment = {**os.environ, "TINKER_API_KEY": KEY, "TINKER_TELEMETRY": "0"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.scale.tinker_clients", address]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]


def test_requests_without_the_key_are_turned_away(address):
    for key in ({}, {"X-Api-Key": "tml-other"}):
        assert httpx.get(f"{address}/api/v1/healthz", headers=key).status_code == 401
        assert httpx.post(f"{address}/api/v1/create_session", json={}, headers=key).status_code == 401
    good = {"X-Api-Key": KEY}
    assert httpx.get(f"{address}/api/v1/healthz", headers=good).json() == {"status": "ok"}
    assert httpx.post(f"{address}/api/v1/get_info", json={"model_id": "none"}, headers=good).status_code == 404
    assert httpx.post(f"{address}/api/v1/optim_step", json={}, headers=good).status_code == 422
    assert httpx.post(f"{address}/api/v1/forward_backward", content=b"\xff\xff", headers=good).status_code == 422
    zipped = {**good, "Content-Encoding": "gzip"}
    assert httpx.post(f"{address}/api/v1/get_info", content=b"no", headers=zipped).status_code == 422
    path = {"optimizer": True, "session_id": "x", "model_seq_id": 0, "path": "tinker://../../etc/weights/x"}
    assert httpx.post(f"{address}/api/v1/load_weights", json=path, headers=good).status_code == 404
    path["session_id"] = httpx.post(f"{address}/api/v1/create_session", json={}, headers=good).json()["session_id"]
    promise = httpx.post(f"{address}/api/v1/load_weights", json=path, headers=good).json()
    answer = httpx.post(f"{address}/api/v1/retrieve_future", json=promise, headers=good).json()
    assert "is not an address of saved weights" in answer["error"]


def test_sampling_requests_are_parsed():
    assert read_sampling({"max_tokens": 5, "top_k": -1, "stop": "x", "seed": 0}) == (Sampling(5), ["x"], 0)
    with pytest.raises(ValueError, match="leave stop out"):
        read_sampling({"stop": []})
    with pytest.raises(ValueError, match="temperature"):
        read_sampling({"temperature": -1})


def test_compressed_bodies_are_read_up_to_the_limit(monkeypatch):
    monkeypatch.setattr(tinker_server, "MOST_BYTES", 1000)
    body = gzip.compress(bytes(1000))
    assert unzipped(body) == bytes(1000)
    for wrong, message in {gzip.compress(bytes(1001)): "at most 1000", body[:-9]: "incomplete", b"no": "gzip"}.items():
        with pytest.raises(ValueError, match=message):
            unzipped(wrong)
