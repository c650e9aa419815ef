"""A real vLLM server, on the CPU: `make test-vllm` installs it and runs these tests."""

import json
import os
import re
import runpy
from pathlib import Path

import pytest
import torch

from operant import Callback, api
from operant.language.configs import ModelOptions
from operant.language.engines.connection import Connection, ServerError
from operant.language.engines.fleet import Fleet
from operant.language.engines.handover import send
from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Sampling
from operant.language.engines.server import PYTHON, serving
from operant.language.engines.vllm import VLLMEngine
from operant.language.models import LanguageModel, load
from operant.language.packing import Sample, pack
from operant.language.runs import load_trained

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PYTHON not in os.environ, reason="needs vLLM; run `make test-vllm`"),
]

OPTIONS = ["--max-model-len", "512", "--enforce-eager"]
PROMPTS = [[1, 20, 21], [1], [1, 40, 41, 42, 43, 44, 45], [1, 20, 21], [1, 9, 9, 9]]
LONG = [[1, *(3 + i % 96 for i in range(400))]]
"""A prompt of several blocks of the server's cache."""


@pytest.fixture(scope="module", autouse=True)
def surroundings():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        yield


def tiny(seed, scale=0.1, **options):
    """Return a model whose distributions are far from uniform, and which sometimes ends a sequence."""
    model = load(ModelOptions(model="tiny", **options), seed=seed)
    change(model, scale)
    return LanguageModel(
        model.network, model.tokenizer, stop=frozenset(range(2, 12)), fresh_adapter=model.fresh_adapter
    )


def change(model, scale):
    with torch.no_grad():
        for value in model.trained().values():
            value.add_(scale * torch.randn(value.shape, generator=torch.Generator().manual_seed(5)))


@pytest.fixture(scope="module")
def address():
    with serving(tiny(0), options=OPTIONS) as address:
        yield address


@pytest.fixture
def make_engine(address):
    engines = []

    def make(model):
        engines.append(VLLMEngine(address, model))
        engines[-1].connect()
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def ask(engine, prompts=PROMPTS, count=8, *, seed=0, **sampling):
    generator = torch.Generator().manual_seed(seed)
    return engine.generate(prompts, count, Sampling(**({"max_tokens": 24} | sampling)), generator=generator)


def flat(found):
    return [completion for completions in found for completion in completions]


def gap(model, found, prompts=PROMPTS, temperature=1.0):
    """Return the largest difference to the log-probabilities of a model."""
    samples = [Sample(prompt, c.ids) for prompt, completions in zip(prompts, found, strict=True) for c in completions]
    with torch.no_grad():
        expected, _ = model.log_probs(pack(samples), temperature=temperature)
    drawn = torch.tensor([value for completion in flat(found) for value in completion.log_probs])
    return float((drawn - expected).abs().max())


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_log_probs_are_those_of_the_trainer(make_engine, temperature):
    model = tiny(1)
    found = ask(make_engine(model), temperature=temperature)
    assert gap(model, found, temperature=temperature) < 1e-4
    for completion in flat(found):
        assert completion.truncated == (completion.ids[-1] not in model.stop)
        assert not model.stop & set(completion.ids[:-1])
        assert not completion.truncated or len(completion.ids) == 24
    assert {completion.truncated for completion in flat(found)} == {True, False}


def test_greedy_answers_are_those_of_the_native_engine(make_engine):
    model = tiny(1)
    found, native = ask(make_engine(model), count=1, temperature=0), ask(NativeEngine(model), count=1, temperature=0)
    assert [c.ids for c in flat(found)] == [c.ids for c in flat(native)]


def test_samples_depend_on_the_generator_only(make_engine):
    engine = make_engine(tiny(1))
    first, again, other = (ask(engine, seed=seed) for seed in (3, 3, 4))
    assert [c.ids for c in flat(first)] == [c.ids for c in flat(again)]
    assert [c.ids for c in flat(first)] != [c.ids for c in flat(other)]
    assert [c.ids for c in first[0]] != [c.ids for c in first[3]]  # the same prompt
    assert len({tuple(c.ids) for c in first[0]}) > 1


def test_frequencies_are_the_probabilities(make_engine):
    model, prompt = tiny(1), [1, 30]
    found = ask(make_engine(model), [prompt] * 20, 100, max_tokens=1)
    counts = torch.bincount(torch.tensor([c.ids[0] for c in flat(found)]), minlength=99)
    with torch.no_grad():
        packed = pack([Sample(prompt, [0])])
        probabilities = model.logits(model.read(packed)[packed.before]).softmax(-1)[0]
    chi_square = ((counts - 2000 * probabilities) ** 2 / (2000 * probabilities)).sum()
    assert chi_square < 98 + 5 * (2 * 98) ** 0.5  # 5 standard deviations above the mean


def test_new_weights_answer_and_nothing_remains_of_the_old(make_engine):
    model = tiny(1)
    engine = make_engine(model)
    before = ask(engine, LONG)
    assert gap(model, before, LONG) < 1e-4
    change(model, 0.05)
    assert gap(model, before, LONG) > 0.1
    engine.update(model)
    assert gap(model, ask(engine, LONG), LONG) < 1e-4


def test_learners_share_a_server(make_engine):
    models = [tiny(1), tiny(2)]
    engines = [make_engine(model) for model in models]
    for _ in range(2):
        assert all(gap(model, ask(engine)) < 1e-4 for model, engine in zip(models, engines, strict=True))


def test_weights_of_another_process_are_found_out(make_engine, address, tmp_path):
    engine = make_engine(tiny(1))
    send(Connection(address), tiny(2), tmp_path / "new")
    with pytest.raises(ValueError, match="got others from another process"):
        ask(engine)


def test_an_adapter_is_sent_with_the_weights(make_engine):
    model = tiny(1, lora_r=4)
    assert gap(model, ask(make_engine(model))) < 1e-4


def test_a_server_with_log_probs_of_the_model_itself_that_is_then_given_another_model():
    model = tiny(1)
    with serving(model, options=[*OPTIONS, "--logprobs-mode", "raw_logprobs"]) as address:
        engine = VLLMEngine(address, model)
        assert gap(model, ask(engine, top_k=20, top_p=0.9)) < 1e-4
        with pytest.raises(ValueError, match="start it with --logprobs-mode processed_logprobs"):
            ask(engine, temperature=0.5)
        engine.close()
        with pytest.raises(ServerError, match="serve a model of the trained architecture"):
            VLLMEngine(address, load(ModelOptions(model="small"), seed=0)).connect()


def test_a_server_that_takes_no_weights(monkeypatch):
    monkeypatch.setattr("operant.language.engines.server.environment", dict)
    with serving(tiny(0), options=OPTIONS) as address, pytest.raises(ServerError, match="VLLM_SERVER_DEV_MODE=1"):
        VLLMEngine(address, tiny(0)).connect()


def test_training_goes_through_the_server(address, tmp_path):
    api.train("sft", "arithmetic", budget=8000, train_examples=800, run=tmp_path / "sft", progress="silent")
    trained = api.train(
        "grpo",
        "arithmetic",
        seeds=2,
        budget=160,
        run=tmp_path / "grpo",
        init=str(tmp_path / "sft"),
        engine=address,
        progress="silent",
    )
    records = [json.loads(line) for line in (trained.run.path / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if "reward" in record]
    assert len(records) >= 3
    rewards = torch.tensor([record["reward"] for record in records])
    assert (rewards.sum(0) > 0).all()  # to change the weights
    for record in records:
        assert max(record["sampling/sampling_logp_difference/mean"]) < 1e-4
        assert max(record["sampling/sampling_logp_difference/max"]) < 1e-2
        assert record["health/skipped_updates"] == [0, 0]


def test_weights_that_are_not_the_trainers_end_a_run_within_one_update(address, tmp_path):
    """Another process gives the server the initial weights again, after two updates."""
    api.train("sft", "arithmetic", budget=4000, train_examples=400, run=tmp_path / "sft", progress="silent")
    start, batches = load_trained(ModelOptions(init=str(tmp_path / "sft")), seed=0), []

    class Injection(Callback):
        def should_stop(self, consumed):
            batches.append(consumed)
            if len(batches) == 3:
                send(Connection(address), start, tmp_path / "stale")
            return False

    common = {"init": str(tmp_path / "sft"), "engine": address, "callbacks": [Injection()], "progress": "silent"}
    with pytest.raises(ValueError, match=r"nats off the trainer's after update 2 .*got others from another process"):
        api.train("grpo", "arithmetic", budget=800, run=tmp_path / "grpo", **common, learning_rate=1e-3)
    assert len(batches) == 3


def test_several_servers_and_one_that_is_lost(address):
    model, fleet = tiny(1), None
    with serving(tiny(0), options=OPTIONS) as second:
        fleet = Fleet([address, second], model, connections=2)
        assert gap(model, ask(fleet)) < 1e-4
        change(model, 0.05)
        fleet.update(model)
        found = ask(fleet)
        assert gap(model, found) < 1e-4
        assert [c.ids for c in flat(ask(fleet))] == [c.ids for c in flat(found)]
    with pytest.warns(RuntimeWarning, match="skipped until the next update, its prompts go to 1 others"):
        assert gap(model, ask(fleet)) < 1e-4
    fleet.close()


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "engines.md"
    (example,) = re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("example.py").write_text(example)
    names = runpy.run_path("example.py")
    assert names["trained"].outcome is not None
