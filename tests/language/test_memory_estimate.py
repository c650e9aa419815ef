import logging
import re
import subprocess
import sys

import pytest
import torch

from operant import api
from operant.language import memory_estimate
from operant.language.configs import LanguageConfig, ModelOptions, SamplingConfig
from operant.language.engines import NativeEngine, Sampling
from operant.language.memory_estimate import Memory, describe, estimate, report, require_memory_of_seeds
from operant.language.models import Reference, finish, load
from operant.language.optimizer import OptimizerStep
from operant.language.packing import Sample
from operant.language.rewards import combine
from operant.language.scoring import RewardModelFunction, Scorer, load_step_rewards
from operant.language.sft import SFT, SFTConfig

DATA = [Sample([1, 10], [20, 2])]


def learner(model):
    return SFT(SFTConfig(), model, DATA, DATA, seed=0, budget=10)


class WithReference:
    """Algorithm with a reference, a critic and a reward model."""

    __module__ = "operant.language.tests"

    def __init__(self, model, critic=None, rewards=None):
        self.model, self.reference = model, Reference(model)
        self.stepper = OptimizerStep(model.trained(), LanguageConfig())
        self.critic, self.rewards = critic, rewards


def count(model):
    return sum(value.numel() for value in model.network.parameters())


def test_parameters_gradients_and_moments_by_hand(make_model):
    model = make_model()
    found = estimate([learner(model)], tokens=100)
    assert found.weights == 4 * count(model)
    assert found.gradients == 4 * count(model)
    assert found.optimizer == 8 * count(model)
    assert found.cache == 0
    assert found.peak == sum(found)


def test_too_many_seeds_are_rejected_with_the_number_that_fits(make_model, monkeypatch):
    first, second = learner(make_model()), learner(make_model())
    one, two = estimate([first], tokens=1), estimate([first, second], tokens=1)
    assert (two.weights, two.optimizer) == (2 * one.weights, 2 * one.optimizer), "seeds share no memory"
    each = one.weights + one.optimizer
    monkeypatch.setattr("operant.runtime.available_memory.available", lambda device: 10 * each - one.weights)
    require_memory_of_seeds(first, range(10))
    with pytest.raises(
        ValueError, match=r"optimizer states of 11 seeds need at least .* train at most 10 seeds together"
    ):
        require_memory_of_seeds(first, range(11))


def test_tied_embeddings_count_once(make_model):
    model = make_model("llama-tied")
    assert estimate([learner(model)], tokens=1).weights == 4 * count(model)
    assert count(make_model()) - count(model) == 99 * 32


def test_16_bits_need_copies(make_model):
    model = make_model(dtype=torch.bfloat16)
    found = estimate([learner(model)], tokens=1)
    assert found.weights == 2 * count(model)
    assert found.gradients == 4 * count(model)
    assert found.optimizer == 12 * count(model)


def test_references_and_critics_are_weights_that_are_not_trained(make_model):
    model, critic = make_model(), make_model(seed=1)
    found = estimate([WithReference(model, critic)], tokens=1)
    assert found.weights == 3 * 4 * count(model)
    assert found.gradients == 4 * count(model)


def test_reward_models_behind_reward_functions_are_weights(make_model):
    model, scorers = make_model(), [Scorer(make_model(seed=seed)) for seed in (1, 2)]
    functions = [RewardModelFunction(scorer, process=False, separator="\n") for scorer in scorers]
    found = estimate([WithReference(model, rewards=combine([len, *functions]))], tokens=1)
    heads = 2 * (model.width + 1)
    assert found.weights == 4 * (4 * count(model) + heads)
    assert found.gradients == 4 * count(model), "reward models are not trained"


def test_the_model_of_step_rewards_counts_as_weights(make_model, tmp_path):
    small = {"budget": 4, "train_examples": 4, "held_out": 2, "batch_size": 4, "progress": "silent"}
    api.train("process-reward-model", "steps", run=tmp_path / "run", **small)
    model, scorer = make_model(), load(ModelOptions(init=str(tmp_path / "run")), seed=0)
    found = estimate([WithReference(model, rewards=load_step_rewards(str(tmp_path / "run")))], tokens=1)
    head = scorer.width + 1 + 2  # a weight for each number of the hidden state, a bias, and two for log-probabilities
    assert found.weights == 4 * (2 * count(model) + count(scorer) + head)


def test_an_adapter_is_all_that_is_trained(model_folder):
    model = load(ModelOptions(model=model_folder, lora_r=2), seed=0)
    adapter = sum(value.numel() for value in model.trained().values())
    found = estimate([WithReference(model)], tokens=1)
    assert found.weights == 4 * count(model), "its reference is no copy"
    assert found.gradients == 4 * adapter
    assert found.optimizer == 8 * adapter


def test_several_seeds_hold_several_models_and_train_one_at_a_time(make_model):
    one = estimate([learner(make_model())], tokens=50)
    two = estimate([learner(make_model()), learner(make_model(seed=1))], tokens=50)
    assert two.weights == 2 * one.weights
    assert two.optimizer == 2 * one.optimizer
    assert two.activations == one.activations


def test_activations_grow_with_tokens_and_layers(make_model):
    def activations(tokens, **changes):
        return estimate([learner(make_model(**changes))], tokens=tokens).activations

    assert activations(200) == pytest.approx(2 * activations(100), rel=1e-6)
    assert activations(100, num_hidden_layers=8) > 2.5 * activations(100)
    saved = 2 * (2 * 32 + 4 * 8 + 2 * 2 * 8 + 4 * 48) * 4  # a lower bound: inputs of the matrices of two layers
    assert activations(100) > 100 * saved


def test_gradient_checkpointing_needs_less(make_network, characters):
    found = []
    for checkpointing in (False, True):
        network = make_network(num_hidden_layers=8)
        model = finish(network, characters, ModelOptions(gradient_checkpointing=checkpointing), seed=0)
        found.append(estimate([learner(model)], tokens=1000).activations)
    assert found[1] < 0.6 * found[0]


def test_the_head_keeps_few_logits_and_recomputes_many(make_model):
    model = make_model()
    few, many = (estimate([learner(model)], tokens=n).head for n in (100, 10**6))
    assert few == 4 * (100 * 99 + 3 * 100 * 99 + 100 * 32)
    assert many == 4 * (3 * 2**20 + 10**6 * 32)


def test_the_cache_is_what_the_engine_stores(make_model):
    model = make_model()
    found = estimate([learner(model)], tokens=1, cached=4 * 64)
    engine = NativeEngine(model)
    engine.generate([[1, 5]], 4, Sampling(max_tokens=3), generator=torch.Generator())
    assert found.cache == 4 * 64 * 2 * 2 * 2 * 8 * 4  # two layers, keys and values, two heads of 8, 4 bytes


def test_the_larger_of_training_and_sampling_counts():
    assert Memory(1, 2, 3, activations=10, head=5, cache=100).peak == 106
    assert Memory(1, 2, 3, activations=100, head=5, cache=10).peak == 111


def test_the_probe_leaves_no_trace(make_model):
    model = make_model()
    estimate([learner(model)], tokens=10)
    assert model.network.training
    assert all(value.grad is None for value in model.network.parameters())


def test_it_is_one_line(make_model):
    line = describe(report([learner(make_model())], LanguageConfig(), tokens=1000), tokens=1000)
    assert re.fullmatch(r"Peak memory about .*, at 1000 tokens per micro-batch: weights .*\.", line)
    assert "cache" not in line


@pytest.mark.parametrize(("mode", "lines"), [("plain", 1), ("silent", 0)])
def test_the_estimate_is_logged_before_training(model_folder, tmp_path, capsys, mode, lines):
    values = {"model": model_folder, "train_examples": 8, "held_out": 2, "batch_size": 4}
    api.train("sft", "reverse", budget=8, run=tmp_path / "run", progress=mode, **values)
    said = [line for line in capsys.readouterr().err.splitlines() if "Peak memory about" in line]
    assert len(said) == lines


@pytest.mark.parametrize(
    "case",
    [
        (0, {}, r"--micro-batch-tokens \(now 16384\), add --gradient-checkpointing"),
        (0, {"gradient_checkpointing": True}, r"--micro-batch-tokens \(now 16384\), or train an adapter"),
        (10**6, {}, r"--engine-batch-size \(now 256\)"),
    ],
)
def test_too_little_memory_causes_a_warning_with_a_fix(make_model, caplog, monkeypatch, case):
    cached, values, hint = case
    monkeypatch.setattr(memory_estimate, "available", lambda device: 10_000)
    with caplog.at_level(logging.WARNING, "operant.language.memory_estimate"):
        report([learner(make_model())], SamplingConfig(**values), tokens=1000, cached=cached)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(hint, record.getMessage()), record.getMessage()
    assert "9.77 KiB are free" in record.getMessage()


MEASURED = """
import sys, threading, time
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from operant.language.memory_estimate import estimate
from operant.language.models import finish
from operant.language.packing import Sample
from operant.language.sft import SFT, SFTConfig
from operant.language.tokenizer import character_tokenizer

torch.set_num_threads(1)

def network(width, layers, size):
    return AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=size, hidden_size=width, intermediate_size=width * 8 // 3, num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64)))

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

config = SFTConfig(batch_size=8, keep_best=False, gradient_checkpointing=sys.argv[1] == "True")
tokenizer = character_tokenizer()
samples = lambda length, size: [Sample([1], [(7 * i + j) % size for j in range(length)]) for i in range(8)]

def train(width, layers, size, length):
    model = finish(network(width, layers, size), tokenizer, config, seed=0)
    data = samples(length, size)
    learner = SFT(config, model, data, data, seed=0, budget=10**6)
    expected = estimate([learner], tokens=8 * (length + 1)).peak
    for _ in range(2):
        learner.iterate()
    return expected

train(16, 1, 100, 8)  # what PyTorch loads once
before = most = resident()
over = False
def watch():
    global most
    while not over:
        most = max(most, resident())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
expected = train(256, 6, 2000, 127)
over = True
thread.join()
print(expected / (most - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimate_is_near_what_is_measured(checkpointing):
    answer = subprocess.run(
        [sys.executable, "-c", MEASURED, str(checkpointing)], capture_output=True, text=True, check=True
    )
    assert 0.6 < float(answer.stdout.splitlines()[-1]) < 1.6
