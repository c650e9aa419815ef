import copy
import json
import threading
import time

import pytest
import torch

from operant import api
from operant.language.configs import ModelOptions
from operant.language.engines import handover
from operant.language.engines.connection import ServerError
from operant.language.engines.fleet import Fleet
from operant.language.engines.protocol import Sampling
from operant.language.engines.vllm import VLLMEngine
from operant.language.models import LanguageModel, load

PROMPTS = [[1, 20 + i, 21, *range(30, 30 + i % 4)] for i in range(12)]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr("operant.language.engines.connection.PAUSE", 0.0)


@pytest.fixture
def model(make_model):
    return LanguageModel(make_model(seed=1).network, make_model().tokenizer, stop=frozenset(range(2, 12)))


@pytest.fixture
def servers(make_server, make_model):
    return [make_server(make_model(seed=seed)) for seed in (2, 3, 4)]


@pytest.fixture
def fleet(servers, model):
    found = Fleet([server.address for server in servers], model)
    yield found
    found.close()


def ask(engine, *, seed=0):
    return engine.generate(PROMPTS, 2, Sampling(12), generator=torch.Generator().manual_seed(seed))


def change(model, scale=0.1):
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))


def completed(server):
    """Return the prompts that a server completed: each request for two completions has one of `PROMPTS`."""
    return [body["prompt"] for body in server.bodies("/v1/completions") if body.get("n") == 2]


def down(server):
    server.answer = lambda path, body: None  # it closes the connection


def test_completions_are_those_of_one_server(fleet, make_server, make_model, model):
    alone = VLLMEngine(make_server(make_model(seed=5)).address, model)
    for _ in range(2):
        assert ask(fleet) == ask(alone)
        assert {answer.version for answers in ask(fleet) for answer in answers} == {fleet.version}
        change(model)
        fleet.update(model)
        alone.update(model)
    alone.close()


def test_a_resumed_count_of_updates_is_that_of_all_completions(fleet, model):
    fleet.version = 6
    fleet.update(model)  # no server has weights yet
    assert {answer.version for answers in ask(fleet) for answer in answers} == {7}


def test_what_is_sampled_while_the_model_learns_comes_from_the_weights_that_were_sent(fleet, servers, model):
    twin = copy.deepcopy(model)
    alone = VLLMEngine(servers[0].address, twin)
    expected = ask(alone)  # and the server has the weights of another engine
    for _ in range(2):
        fleet.send_weights()
        change(model)
        assert ask(fleet) == expected
        ask(alone)
        model.network.load_state_dict(twin.network.state_dict())
    alone.close()


def test_every_prompt_is_asked_once(fleet, servers):
    ask(fleet)
    assert sorted(prompt for server in servers for prompt in completed(server)) == sorted(PROMPTS)


def test_a_slow_server_takes_fewer_prompts(servers, model):
    slow, answer = servers[0], servers[0].answer

    def late(path, body):
        if body and body.get("n") == 2:
            time.sleep(0.5)
        return answer(path, body)

    slow.answer = late
    fleet = Fleet([server.address for server in servers], model, connections=1)
    ask(fleet)
    assert len(completed(slow)) < min(len(completed(server)) for server in servers[1:])
    fleet.close()


def test_prompts_of_a_server_that_fails_go_to_the_others(fleet, servers, model):
    expected = ask(fleet)
    lost, answer = threading.Event(), servers[1].answer

    def fails(path, body):
        if body and body.get("n") == 2:
            lost.set()
            return None
        return answer(path, body)

    servers[1].answer = fails
    with pytest.warns(
        RuntimeWarning, match="is skipped until the next update, its prompts go to 2 others: .*connection was closed"
    ) as said:
        assert ask(fleet) == expected
    assert lost.is_set()
    assert len(said) == 1
    assert [engine.address for engine in fleet.running] == [servers[0].address, servers[2].address]
    assert ask(fleet) == expected


def test_a_server_that_is_back_gets_the_weights_of_the_next_update(fleet, servers, model):
    expected, answer = ask(fleet), servers[1].answer
    down(servers[1])
    with pytest.warns(RuntimeWarning, match="is skipped until the next update"):
        assert ask(fleet) == expected
    with pytest.warns(RuntimeWarning, match="is skipped until the next update"):
        fleet.update(model)  # it is tried again, and is still down
    servers[1].answer = answer
    change(servers[1].model)  # restarted, with other weights
    change(model)
    fleet.update(model)
    assert len(fleet.running) == 3
    assert {engine.version for engine in fleet.engines} == {fleet.version} == {2}
    before = len(completed(servers[1]))
    ask(fleet)
    assert len(completed(servers[1])) > before


def test_a_sampler_with_other_weights_ends_it(fleet, servers, model):
    ask(fleet)
    servers[2].deaf = True
    change(model, 0.05)
    with pytest.raises(ValueError, match="off the trainer's after update 1"):
        fleet.update(model)


def test_no_server_is_left(fleet, servers):
    expected, answers = ask(fleet), [server.answer for server in servers]
    for server in servers:
        down(server)
    with (
        pytest.warns(RuntimeWarning, match="is skipped until the next update"),
        pytest.raises(ServerError, match="connection was closed"),
    ):
        ask(fleet)
    for server, answer in zip(servers, answers, strict=True):
        server.answer = answer
    assert ask(fleet) == expected


def test_weights_are_written_once(fleet, servers, model, monkeypatch):
    written, write = [], handover.write
    monkeypatch.setattr(handover, "write", lambda model, folder: (written.append(folder), write(model, folder)))
    ask(fleet)
    fleet.update(model)
    assert len(written) == 2
    folders = [{body["kwargs"]["weights_path"] for body in server.bodies("/collective_rpc")} for server in servers]
    assert folders == [set(map(str, written))] * 3
    assert not any(folder.exists() for folder in written)


def test_the_weights_are_those_of_the_last_update(fleet, model):
    before = copy.deepcopy(model)
    found = ask(fleet)
    change(model)
    assert ask(fleet) == found
    fleet.update(before)
    assert ask(fleet) == [[answer._replace(version=1) for answer in answers] for answers in found]


def test_all_servers_have_to_be_there_at_the_start(fleet, servers):
    fleet.reach()
    down(servers[2])
    with pytest.raises(ServerError, match=servers[2].address):
        fleet.reach()


def test_bad_arguments(fleet, servers, model):
    assert fleet.generate([], 2, Sampling(12), generator=torch.Generator()) == []
    with pytest.raises(ValueError, match="every prompt must have at least one token"):
        fleet.generate([[]], 2, Sampling(12), generator=torch.Generator())
    with pytest.raises(ValueError, match="addresses must be one or more different URLs"):
        Fleet([servers[0].address, servers[0].address + "/"], model)
    with pytest.raises(ValueError, match="addresses must be one or more different URLs, got none"):
        Fleet([], model)


def test_a_run_divides_its_prompts_and_is_the_same(make_server, tmp_path):
    sizes = {"model": "tiny", "train_examples": 24, "held_out": 2, "prompts_per_batch": 4, "num_generations": 4}
    rewards = []
    for name, seeds in (("one", [9]), ("two", [7, 8])):
        servers = [make_server(load(ModelOptions(model="tiny"), seed=seed)) for seed in seeds]
        for server in servers:
            server.cards[0]["max_model_len"] = None
        engine = ",".join(server.address for server in servers)
        api.train("grpo", "arithmetic", budget=12, run=tmp_path / name, progress="silent", engine=engine, **sizes)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        rewards.append([line["completions/mean_length"] for line in found if "completions/mean_length" in line])
        assert all(any(body.get("n") == 4 for body in server.bodies("/v1/completions")) for server in servers)
    assert len(rewards[0]) == 3
    assert rewards[0] == rewards[1]
