"""The Tinker API, called by its official SDK over a real socket."""

import json
import math
import os
import subprocess
import sys
import threading

import httpx2 as httpx
import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("uvicorn")

from starlette.testclient import TestClient
from tinker.proto import tinker_public_pb2 as messages

from operant.language.configs import ModelOptions
from operant.scale import tinker_server
from operant.scale.service import Service, UnknownError
from operant.scale.trainer import Adam, Datum, connect

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
    assert "serves the model 'tiny' on cpu" in notices.read_text()
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


def test_requests_that_are_sent_again_count_once(address):
    """The SDK sends a request again, with the same key, if the answer was lost."""

    def post(path, *, fetch=True, **content):
        head = {"X-Api-Key": KEY, "X-Idempotency-Key": f"of-{path}"}
        first, again = (httpx.post(f"{address}/api/v1/{path}", headers=head, **content).json() for _ in range(2))
        assert first == again
        url, own = f"{address}/api/v1/retrieve_future", {"X-Api-Key": KEY}
        return httpx.post(url, json=first, headers=own, timeout=60).content if fetch else first

    session = post("create_session", json={}, fetch=False)["session_id"]
    given = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 2}}
    model = json.loads(post("create_model", json=given))["model_id"]
    batch = messages.ForwardBackwardRequest(model_id=model, seq_id=1, loss_fn="cross_entropy")
    datum = batch.data.add()
    datum.model_input.add().encoded_text.tokens = np.array([1, 5], dtype=np.int32).tobytes()
    for name, kind, numbers in (
        ("target_tokens", messages.DTYPE_INT64, np.array([5, 6])),
        ("weights", messages.DTYPE_FLOAT32, np.ones(2, dtype=np.float32)),
    ):
        datum.loss_fn_inputs[name].CopyFrom(messages.Tensor(dense=numbers.tobytes(), dtype=kind, shape=[2]))
    post("forward_backward", content=batch.SerializeToString())
    report = json.loads(post("optim_step", json={"model_id": model, "adam_params": {"learning_rate": 0.1}}))
    with connect(model="tiny", lora_r=2) as local:
        local.forward_backward([Datum([1, 5], [5, 6], weights=[1.0, 1.0])], "cross_entropy")
        assert report["metrics"]["gradient_norm"] == pytest.approx(local.optim_step(Adam())["gradient_norm"], rel=1e-6)


def test_the_number_of_kept_answers_is_bounded(service, monkeypatch):
    monkeypatch.setattr(tinker_server, "MOST_ANSWERS", 1)
    client = TestClient(tinker_server.make_app(service, KEY), headers={"X-Api-Key": KEY})
    answers = [
        client.post("/api/v1/create_session", json={}, headers={"X-Idempotency-Key": key}).json() for key in "aba"
    ]
    assert len({answer["session_id"] for answer in answers}) == 3


@pytest.fixture
def service(tmp_path):
    found = Service(ModelOptions(model="tiny"), tmp_path / "states")
    yield found
    found.close()


def test_a_computation_that_times_out_is_an_error(service):
    def work():
        raise TimeoutError("the reward model does not respond")

    client = TestClient(tinker_server.make_app(service, KEY), headers={"X-Api-Key": KEY})
    request = {"request_id": service.submit(work)}
    answer = client.post("/api/v1/retrieve_future", json=request).json()
    assert answer == {"error": "TimeoutError: the reward model does not respond", "category": "server"}


def test_an_unfinished_computation_is_to_be_asked_for_again(service, monkeypatch):
    monkeypatch.setattr(tinker_server, "WAIT", 0.01)
    ready = threading.Event()
    client = TestClient(tinker_server.make_app(service, KEY), headers={"X-Api-Key": KEY})
    request = {"request_id": service.submit(lambda: {"ready": ready.wait(20)})}
    assert client.post("/api/v1/retrieve_future", json=request).json()["type"] == "try_again"
    ready.set()
    service.result(request["request_id"]).result()
    for _ in range(2):
        assert client.post("/api/v1/retrieve_future", json=request).json() == {"ready": True}


@pytest.mark.parametrize("count", [0, 4097])
def test_the_number_of_samples_of_a_request_is_bounded(service, count):
    client = TestClient(tinker_server.make_app(service, KEY), headers={"X-Api-Key": KEY})
    body = {"prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": 1}, "num_samples": count}
    answer = client.post("/api/v1/asample", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"] == f"ValueError: num_samples must be from 1 to 4096, got {count}"


def test_a_server_that_fails_closes_its_service(service):
    def announce(_):
        raise BrokenPipeError("closed")

    with pytest.raises(BrokenPipeError):
        tinker_server.serve(service, host="127.0.0.1", port=0, key=KEY, announce=announce)
    with pytest.raises(RuntimeError, match="shutdown"):
        service.submit(int)


def new_model(api, session):
    given = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 2}}
    return api._create_model(given)["model_id"]


def test_models_of_silent_sessions_are_released(service):
    """Release also the model that the queue has not created yet, after a heartbeat or the start of another session."""
    api, opened = tinker_server.Api(service, KEY), threading.Event()
    service.submit(opened.wait)
    silent, other = (api._create_session({})["session_id"] for _ in range(2))
    kept = [new_model(api, session) for session in (silent, other)][1]
    api._sessions[silent] -= tinker_server.SILENCE + 1
    api._heartbeat({"session_id": other})
    opened.set()
    service.result(service.submit(int)).result()
    assert list(service.models) == [kept]
    with pytest.raises(LookupError, match=f"there is no session '{silent}'; it has ended"):
        api._heartbeat({"session_id": silent})
    api._sessions[other] -= tinker_server.SILENCE + 1
    api._create_session({})
    service.result(service.submit(int)).result()
    assert not service.models


def test_a_state_that_cannot_be_loaded_creates_no_model(service):
    api = tinker_server.Api(service, KEY)
    session = api._create_session({})["session_id"]
    model = new_model(api, session)
    service.result(service.submit(service.publish, model, "first")).result()
    path = f"tinker://{model}/sampler_weights/first"
    asked = {"session_id": session, "model_seq_id": 1, "path": path, "optimizer": False}
    with pytest.raises(ValueError, match="is not an address of saved weights"):
        service.result(api._load(asked)["request_id"]).result()
    assert list(service.models) == [model]


@pytest.mark.parametrize("verb", ["_create_model", "_load", "_create_sampler", "_sample"])
def test_other_bases_and_optimizers_are_errors(service, verb):
    api = tinker_server.Api(service, KEY)
    given = {"session_id": api._create_session({})["session_id"], "model_seq_id": 0, "path": "x", "optimizer": False}
    with pytest.raises(ValueError, match="'other' is not served here; 'tiny' is"):
        getattr(api, verb)({**given, "base_model": "other"})
    with pytest.raises(ValueError, match="there is no optimizer 'dimuon' here; adamw is"):
        getattr(api, verb)({**given, "base_model": "tiny", "optimizer_config": {"type": "dimuon"}})


@pytest.mark.parametrize("wrong", [{"lora_config": [1]}, {"model_seq_id": math.inf}])
def test_fields_of_wrong_types_are_errors_of_the_client(service, wrong):
    client = TestClient(tinker_server.make_app(service, KEY), headers={"X-Api-Key": KEY})
    session = client.post("/api/v1/create_session", json={}).json()["session_id"]
    body = json.dumps({"session_id": session, "model_seq_id": 0, "base_model": "tiny", **wrong})
    assert client.post("/api/v1/create_model", content=body).status_code == 422


def test_layers_that_would_be_trained_nevertheless_are_errors(service):
    api = tinker_server.Api(service, KEY)
    session = api._create_session({})["session_id"]
    given = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"train_mlp": False}}
    with pytest.raises(ValueError, match="train_mlp=False is not supported here: an adapter has all linear layers"):
        api._create_model(given)


def test_metadata_of_sessions_and_models_are_accepted(service):
    """Programs label what they create; nothing is computed from it."""
    api, metadata = tinker_server.Api(service, KEY), {"user_metadata": {"experiment": "one"}}
    session = api._create_session(metadata)["session_id"]
    asked = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 2}, **metadata}
    assert service.result(api._create_model(asked)["request_id"]).result()["type"] == "create_model"


def test_the_number_of_sampling_sessions_is_bounded(monkeypatch):
    monkeypatch.setattr(tinker_server, "MOST_SAMPLERS", 2)
    api = tinker_server.Api(None, KEY)
    first, second = (api._new_sampler(None) for _ in range(2))
    api._sampler(first)
    third = api._new_sampler(None)
    assert list(api._samplers) == [first, third]
    with pytest.raises(UnknownError, match="keeps the last 2 that were used; create a new sampling client"):
        api._sampler(second)
