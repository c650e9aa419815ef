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
def notices(tmp_path_factory):
    return tmp_path_factory.mktemp("notices") / "stderr"


@pytest.fixture(scope="module")
def address(tmp_path_factory, notices):
    """Serve a model in a separate process, as a user would."""
    command = [sys.executable, "-m", "operant", "serve", "--train", "tiny", "--port", "0"]
    with notices.open("w") as file:
        process = subprocess.Popen(
            [*command, "--states", str(tmp_path_factory.mktemp("states"))],
            stdout=subprocess.PIPE,
            stderr=file,
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


def test_the_name_of_the_model_is_printed_and_answered(address, notices):
    assert "serves the model 'tiny'" in notices.read_text()
    found = httpx.get(f"{address}/api/v1/get_server_capabilities", headers={"X-Api-Key": KEY}).json()
    assert [each["model_name"] for each in found["supported_models"]] == ["tiny"]


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


def test_requests_with_unsupported_options_are_errors(address):
    good = {"X-Api-Key": KEY}
    for path, field in (
        ("save_weights", {"ttl_seconds": 3600}),
        ("save_weights_for_sampler", {"ttl_seconds": 3600}),
        ("save_weights", {"user_metadata": {"a": "b"}}),
        ("asample", {"prompt_logprobs_last_n": 2}),
    ):
        answer = httpx.post(f"{address}/api/v1/{path}", json={"model_id": "none", **field}, headers=good)
        assert answer.status_code == 422
        assert f"{next(iter(field))} is not supported here, got" in answer.json()["error"]
    asked = {"prompt": {"chunks": [{"tokens": [1, 2]}]}, "sampling_params": {"max_tokens": 0}}
    answer = httpx.post(f"{address}/api/v1/asample", json=asked, headers=good)
    assert answer.status_code == 422
    assert "max_tokens must be at least 1, got 0" in answer.json()["error"]


def test_models_of_silent_sessions_are_released(monkeypatch):
    class Trained:
        trainers = ("a:train:0", "b:train:0")
        released = ()

        def submit(self, work, model):
            work(model)

        def forget(self, model):
            self.released = (*self.released, model)

    now, service = [0.0], Trained()
    monkeypatch.setattr(tinker_server.time, "monotonic", lambda: now[0])
    names = iter(("a", "b", "c"))
    monkeypatch.setattr(tinker_server.secrets, "token_hex", lambda _: next(names))
    api = tinker_server.Api(service, KEY)
    api._create_session({})
    api._create_session({})
    now[0] = tinker_server.SILENCE
    api._heartbeat({"session_id": "b"})
    now[0] += 1
    api._create_session({})
    assert service.released == ("a:train:0",)
    with pytest.raises(LookupError, match="there is no session 'a'; it has ended"):
        api._heartbeat({"session_id": "a"})


def test_the_number_of_sampling_sessions_is_bounded(monkeypatch):
    monkeypatch.setattr(tinker_server, "MOST_SAMPLERS", 2)
    api = tinker_server.Api(None, KEY)
    names = [api._new_sampler(None) for _ in range(3)]
    assert list(api._samplers) == names[1:]


def test_sampling_requests_are_parsed():
    assert read_sampling({})[0].max_tokens == read_sampling({"max_tokens": None}, 2000)[0].max_tokens == 1024
    assert read_sampling({}, 100)[0].max_tokens == 100
    assert read_sampling({"max_tokens": 200}, 100)[0].max_tokens == 200
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"max_tokens must be at least 1, got {wrong}"):
            read_sampling({"max_tokens": wrong})
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
