import copy
import json

import pytest
import torch

from operant import Callback, api
from operant.language.configs import ModelOptions
from operant.language.engines import handover
from operant.language.engines.connection import ServerError
from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Sampling
from operant.language.engines.vllm import VLLMEngine
from operant.language.models import LanguageModel, finish, load
from operant.language.packing import Sample, pack
from operant.runtime.encoding import digest
from operant.runtime.ledger import read_ledger

PROMPTS = [[1, 20, 21], [1], [1, 40, 41, 42, 43, 44, 45], [1, 20, 21], [1, 9, 9, 9]]


@pytest.fixture
def model(make_model):
    return LanguageModel(make_model(seed=1).network, make_model().tokenizer, stop=frozenset(range(2, 12)))


@pytest.fixture
def server(make_server, make_model):
    return make_server(make_model(seed=2))  # other weights


@pytest.fixture
def connect():
    """Return a function that makes engines which have sent their weights to the server."""
    engines = []

    def make(address, model, **options):
        engines.append(VLLMEngine(address, model, **options))
        engines[-1].connect()
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(connect, server, model):
    return connect(server.address, model)


def ask(engine, prompts=PROMPTS, count=2, *, seed=0, **sampling):
    generator = torch.Generator().manual_seed(seed)
    return engine.generate(prompts, count, Sampling(**({"max_tokens": 12} | sampling)), generator=generator)


def flat(found):
    return [completion for completions in found for completion in completions]


def assert_log_probs_are_those_of(model, found, prompts=PROMPTS, temperature=1.0):
    samples = [Sample(prompt, c.ids) for prompt, completions in zip(prompts, found, strict=True) for c in completions]
    with torch.no_grad():
        expected, _ = model.log_probs(pack(samples), temperature=temperature)
    drawn = torch.tensor([value for completion in flat(found) for value in completion.log_probs])
    torch.testing.assert_close(drawn, expected, atol=1e-5, rtol=1e-5)


def change(model, scale=0.1):
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_the_trainer(engine, model, temperature):
    found = ask(engine, temperature=temperature)
    assert [len(completions) for completions in found] == [2] * len(PROMPTS)
    assert_log_probs_are_those_of(model, found, temperature=temperature)


def test_completions_end_with_a_stop_token_or_at_the_limit(engine, model):
    found = flat(ask(engine, count=8))
    for completion in found:
        assert completion.truncated == (completion.ids[-1] not in model.stop)
        assert not model.stop & set(completion.ids[:-1])
        assert not completion.truncated or len(completion.ids) == 12
    assert {completion.truncated for completion in found} == {True, False}


def test_greedy_answers_are_those_of_the_native_engine(engine, model):
    found, native = ask(engine, count=1, temperature=0), ask(NativeEngine(model), count=1, temperature=0)
    assert [c.ids for c in flat(found)] == [c.ids for c in flat(native)]
    for ours, theirs in zip(flat(found), flat(native), strict=True):
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-5)


def test_samples_depend_on_the_generator_only(engine):
    first, again, other = ask(engine, seed=3), ask(engine, seed=3), ask(engine, seed=4)
    assert first == again
    assert first != other
    assert first[0] != first[3]  # the same prompt


def test_a_generator_moves_on(engine):
    generator = torch.Generator().manual_seed(0)
    sampling = Sampling(12)
    first, second = (engine.generate(PROMPTS, 2, sampling, generator=generator) for _ in range(2))
    assert first != second


def test_nothing_is_left_to_the_defaults_of_the_server(engine, server, model):
    ask(engine, temperature=0.5)
    body = server.bodies("/v1/completions")[-1]
    expected = {"temperature": 0.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    expected |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0, "max_tokens": 12, "n": 2}
    expected |= {"model": "served", "ignore_eos": True, "stop_token_ids": sorted(model.stop)}
    assert body | expected == body


def test_the_model_is_the_first_that_is_no_adapter(connect, server, model):
    server.cards.insert(0, {"id": "adapter", "parent": "served"})
    connect(server.address, model)
    assert server.bodies("/v1/completions")[-1]["model"] == "served"


def test_weights_are_sent_to_the_server(engine, server, model):
    change(model)
    engine.update(model)
    assert engine.version == 1
    found = ask(engine)
    assert {completion.version for completion in flat(found)} == {1}
    assert_log_probs_are_those_of(model, found)
    paths = [path for path, _ in server.requests]
    last = len(paths) - 1 - paths[::-1].index("/collective_rpc")
    assert paths[last + 1] == "/reset_prefix_cache"  # without any computation in between


def test_the_weights_are_those_of_the_last_update(engine, model):
    before = copy.deepcopy(model.network)
    change(model)
    found = ask(engine)
    assert_log_probs_are_those_of(LanguageModel(before, model.tokenizer, stop=model.stop), found)


def test_an_adapter_is_added_to_the_weights(connect, make_model, make_server):
    base = make_model(seed=1)
    model = finish(base.network, base.tokenizer, ModelOptions(lora_r=2), seed=0)
    for value in model.trained().values():
        value.data += 0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    engine = connect(make_server(make_model(seed=2)).address, model)
    assert_log_probs_are_those_of(model, ask(engine))
    assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())


def test_numbers_of_16_bits(connect, make_model, make_server):
    model = make_model(seed=1, dtype=torch.bfloat16)
    engine = connect(make_server(make_model(seed=2)).address, model)
    found = ask(engine)
    samples = [Sample(prompt, c.ids) for prompt, answers in zip(PROMPTS, found, strict=True) for c in answers]
    with torch.no_grad():
        expected, _ = model.log_probs(pack(samples))
    drawn = torch.tensor([value for completion in flat(found) for value in completion.log_probs])
    assert (drawn - expected).abs().mean() < 0.1


def test_a_server_that_keeps_its_weights_is_found_out(engine, server, model):
    server.deaf = True
    change(model, 0.05)
    with pytest.raises(ValueError, match=r"off the trainer's after update 1.*--dtype float32.*earlier weights"):
        engine.update(model)


def test_weights_of_another_process_are_found_out(engine, server):
    change(server.model, 0.05)
    with pytest.raises(ValueError, match="got others from another process"):
        ask(engine)


def test_learners_share_a_server(connect, engine, server, model, make_model):
    other = make_model(seed=3)
    second = connect(server.address, other)
    for _ in range(2):
        assert_log_probs_are_those_of(model, ask(engine))
        assert_log_probs_are_those_of(other, ask(second))


def test_weights_are_not_read_while_the_model_learns(connect, engine, server, model, make_model):
    twin, other = copy.deepcopy(model), connect(server.address, make_model(seed=3))
    for holder in (other, engine):
        ask(holder)
        engine.send_weights()  # which sends them only if the server has those of another engine
        change(model)
        assert_log_probs_are_those_of(twin, ask(engine))
        model.network.load_state_dict(twin.network.state_dict())
    engine.close()
    engine.send_weights()  # connects
    change(model)
    assert_log_probs_are_those_of(twin, ask(engine))


def test_log_probs_of_the_model_itself(connect, server, model):
    server.processed = False
    engine = connect(server.address, model)
    assert_log_probs_are_those_of(model, ask(engine, top_k=5, top_p=0.9))  # those before truncation
    assert_log_probs_are_those_of(model, ask(engine, temperature=0))
    with pytest.raises(ValueError, match=r"at temperature 1, but those at 0\.5 are needed.*processed_logprobs"):
        ask(engine, temperature=0.5)


@pytest.mark.parametrize("cut", [{"top_k": 5}, {"top_p": 0.9}])
def test_log_probs_after_truncation_are_rejected(engine, cut):
    with pytest.raises(ValueError, match=r"after the cut by top_k and top_p.*raw_logprobs"):
        ask(engine, **cut)
    ask(engine, temperature=0, **cut)  # greedy: nothing is truncated


def test_numbers_other_than_log_probs_are_rejected(connect, server, model, tmp_path):
    def logits(answer):
        answer["choices"][0]["logprobs"]["token_logprobs"] = [3.5]

    server.faults = [logits]
    with pytest.raises(ValueError, match=r"returned 3.5 as .* --logprobs-mode processed_logprobs"):
        connect(server.address, model, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("with_log_prob", [True, False])
def test_a_stop_token_that_is_left_out_is_added(engine, server, model, with_log_prob):
    def without(answer):
        for choice in answer["choices"]:
            if choice["finish_reason"] == "stop":
                choice["token_ids"].pop()
                if not with_log_prob:
                    choice["logprobs"]["token_logprobs"].pop()

    expected = ask(engine, temperature=0.7)
    server.faults = [without] * len(PROMPTS)
    found = ask(engine, temperature=0.7)
    assert [c.ids for c in flat(found)] == [c.ids for c in flat(expected)]
    assert not all(c.truncated for c in flat(found))
    assert_log_probs_are_those_of(model, found, temperature=0.7)


def falsify(**changes):
    def apply(answer):
        answer["choices"][0] |= changes

    return apply


FALSE = {
    "a stop of its own": (falsify(finish_reason="stop", stop_reason=50, token_ids=[50]), "--generation-config vllm"),
    "given up": (falsify(finish_reason="abort", token_ids=[50]), "'abort'"),
    "no ids": (falsify(token_ids=None), "newer vLLM"),
    "no log-probabilities": (falsify(logprobs=None), "newer vLLM"),
    "too few": (
        falsify(token_ids=[50] * 12, finish_reason="length", logprobs={"token_logprobs": [0.0]}),
        "1 .* for 12",
    ),
    "one completion": (lambda answer: answer["choices"].pop() and None, "returned 1 completions, expected 2"),
    "no completions": (lambda answer: {"choice": []}, "returned no completions"),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_answer_is_an_error(engine, server, name):
    fault, message = FALSE[name]
    server.faults = [fault] * len(PROMPTS)
    with pytest.raises(ServerError, match=message):
        ask(engine)


def test_a_token_that_the_model_does_not_have(engine, server):
    changes = {"token_ids": [99], "finish_reason": "length", "logprobs": {"token_logprobs": [-1.0]}}
    server.faults = [falsify(**changes)] * len(PROMPTS)
    with pytest.raises(ValueError, match="sampled token 99, but the vocabulary has size 99"):
        ask(engine)


def test_no_log_probs_of_prompts(engine, server, monkeypatch):
    monkeypatch.setattr(server, "choices", lambda prompt, body: [{"prompt_logprobs": None}])
    with pytest.raises(ServerError, match="no log-probabilities of prompts"):
        ask(engine)


def test_a_request_is_made_again(engine, server, monkeypatch):
    monkeypatch.setattr("operant.language.engines.connection.PAUSE", 0.0)
    expected = ask(engine)
    server.faults = [(503, {"error": "busy"}), (500, {"error": "oops"})]
    assert ask(engine) == expected


def test_too_long_sequences_are_rejected_before_anything_is_drawn(engine, server):
    before = len(server.bodies("/v1/completions"))
    with pytest.raises(
        ValueError, match=r"prompt of 7 tokens and a completion of 58 are more than the 64.*max-model-len"
    ):
        ask(engine, max_tokens=58)
    assert len(server.bodies("/v1/completions")) == before + 1  # the requests of the checks


def test_a_server_without_a_limit(connect, server, model):
    del server.cards[0]["max_model_len"]
    engine = connect(server.address, model)
    assert len(ask(engine, [[1]], max_tokens=70)) == 1


def test_a_server_that_takes_no_weights(connect, server, model, tmp_path):
    server.takes_weights = False
    with pytest.raises(ServerError, match="start the server with VLLM_SERVER_DEV_MODE=1"):
        connect(server.address, model, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_another_architecture(connect, make_server, make_model, model, monkeypatch):
    monkeypatch.setattr("operant.language.engines.connection.PAUSE", 0.0)
    server = make_server(make_model("gpt2"))
    with pytest.raises(ServerError, match="trained architecture"):
        connect(server.address, model)


def test_a_cache_in_use_is_dropped_later(engine, server, model, monkeypatch):
    monkeypatch.setattr(handover, "CACHE_PAUSE", 0.0)
    server.busy = 3
    engine.update(model)
    server.busy = 1000
    with pytest.raises(ServerError, match="use a separate server"):
        engine.update(model)


def test_no_server(connect, listen, model):
    address = listen(lambda path, body, headers: (404, {"detail": "Not Found"}))
    with pytest.raises(ServerError, match="Not Found Start one with `VLLM_SERVER_DEV_MODE=1 vllm serve"):
        connect(address, model)


@pytest.mark.parametrize("models", [{"data": []}, {"data": [{"parent": None}]}, {}, [], None])
def test_a_server_of_something_else(connect, listen, model, models):
    address = listen(lambda path, body, headers: (200, models))
    with pytest.raises(ServerError, match="does not list a model: is it a vLLM server"):
        connect(address, model)


def test_weights_are_written_where_it_is_asked_for(connect, server, model, tmp_path):
    engine = connect(server.address, model, folder=tmp_path)
    (body,) = server.bodies("/collective_rpc")
    assert body["kwargs"]["weights_path"].startswith(str(tmp_path))
    assert [list(path.iterdir()) for path in tmp_path.iterdir()] == [[]]  # removed after reading
    engine.close()
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_the_server_is_reached_when_it_is_needed(server, model):
    engine = VLLMEngine(server.address, model)
    change(model)
    engine.update(model)
    assert engine.version == 1
    assert server.requests == []
    assert_log_probs_are_those_of(model, ask(engine))
    engine.close()


def test_bad_arguments(engine, server, model):
    assert ask(engine, []) == []
    with pytest.raises(ValueError, match="every prompt must have at least one token"):
        ask(engine, [[1], []])
    with pytest.raises(ValueError, match="every prompt must have at least one token"):
        ask(engine, count=0)
    with pytest.raises(ValueError, match="connections must be at least 1, got 0"):
        VLLMEngine(server.address, model, connections=0)


def test_whether_a_server_is_there_is_found_out_without_weights(server, model):
    engine = VLLMEngine(server.address, model)
    engine.reach()
    assert server.requests == [("/v1/models", None)]
    server.cards = []
    with pytest.raises(ServerError, match="does not list a model: is it a vLLM server"):
        engine.reach()


@pytest.mark.parametrize("algorithm", ["grpo", "rlhf"])
def test_a_run_that_samples_ahead_resumes_in_the_same_bytes(algorithm, make_server, tmp_path):
    class Stop(Callback):
        def should_stop(self, consumed):
            return consumed == 8

    sizes = {"model": "tiny", "train_examples": 24, "held_out": 2, "prompts_per_batch": 4, "num_generations": 4}
    digests = []
    for name, callbacks in (("whole", ()), ("parts", (Stop(),))):
        server = make_server(load(ModelOptions(model="tiny"), seed=9))
        server.cards[0]["max_model_len"] = None
        options = sizes | {"engine": server.address, "max_staleness": 1, "callbacks": callbacks, "progress": "silent"}
        trained = api.train(algorithm, "arithmetic", budget=16, run=tmp_path / name, **options)
        if callbacks:
            trained = api.resume(tmp_path / name, progress="silent")
        digests.append(digest(trained.experiment.learner.state_dict()))
        last = read_ledger(tmp_path / name, 16, 0)
        assert {answer["version"] for answer in last.answers} == {2}, "sampled while the third batch was learned from"
    records = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [r["sampling/staleness"] for r in records if "sampling/staleness" in r] == [[0.0], [1.0], [1.0], [1.0]]
    assert digests[0] == digests[1]
