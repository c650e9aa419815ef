import json
from pathlib import Path

import pytest
import torch

from operant import api
from operant.language.chat import find_chat_model
from operant.language.configs import ModelOptions
from operant.language.exporting import write_model
from operant.language.models import Reference, load
from operant.language.packing import Sample, pack
from operant.language.runs import (
    base_model,
    built_in,
    check_code,
    check_policy,
    load_trained,
    model_options,
    trained_state,
)
from operant.language.scoring import load_scorer
from operant.language.sft import SFTConfig
from operant.runtime.run import Run, RunError

BATCH = pack([Sample([1, 40, 41], [50, 51, 2]), Sample([1], [70, 71, 72, 2])])


def log_probs(model):
    with torch.no_grad():
        return model.log_probs(BATCH)[0]


@pytest.fixture
def train(model_folder, tmp_path):
    """Return a function that trains a small model for two steps."""

    def train(name, *, algorithm="sft", task="reverse", seeds=1, **values):
        values = {
            "model": model_folder,
            "train_examples": 20,
            "held_out": 5,
            "batch_size": 8,
            "learning_rate": 0.01,
        } | values
        if "init" in values:
            del values["model"]
        trained = api.train(algorithm, task, seeds=seeds, budget=16, run=tmp_path / name, progress="silent", **values)
        return trained, str(tmp_path / name)

    return train


def test_a_trained_model_comes_back(train):
    trained, folder = train("one")
    model = load_trained(ModelOptions(init=folder), seed=0)
    assert torch.equal(log_probs(model), log_probs(trained.experiment.members[0].learner.model))
    assert not model.fresh_adapter
    assert torch.equal(log_probs(load(ModelOptions(init=folder), seed=0)), log_probs(model))


def test_each_seed_has_its_own_and_a_stranger_the_first(train):
    trained, folder = train("two", seeds=[3, 4], lora_r=2, model="tiny")
    mine = [log_probs(member.learner.model) for member in trained.experiment.members]
    for seed, expected in ((3, mine[0]), (4, mine[1]), (9, mine[0])):
        torch.testing.assert_close(log_probs(load_trained(ModelOptions(init=folder), seed=seed)), expected)


def test_other_numbers(train):
    _, folder = train("one")
    model = load_trained(ModelOptions(init=folder, dtype="bfloat16", gradient_checkpointing=True), seed=0)
    assert model.dtype == torch.bfloat16
    assert model.network.is_activation_checkpointing
    exact = load_trained(ModelOptions(init=folder), seed=0)
    assert (log_probs(model) - log_probs(exact)).abs().max() < 0.2


def test_a_new_adapter_on_what_was_trained(train):
    _, folder = train("one")
    plain = load_trained(ModelOptions(init=folder), seed=0)
    model = load_trained(ModelOptions(init=folder, lora_r=2), seed=0)
    assert model.fresh_adapter
    assert all("lora_" in name for name in model.trained())
    torch.testing.assert_close(log_probs(model), log_probs(plain), atol=1e-5, rtol=0)


def test_an_adapter_is_trained_on_and_its_reference_is_a_copy(train):
    trained, folder = train("adapter", lora_r=2)
    model = load_trained(ModelOptions(init=folder), seed=0)
    expected = log_probs(trained.experiment.members[0].learner.model)
    assert all("lora_" in name for name in model.trained())
    torch.testing.assert_close(log_probs(model), expected, atol=1e-6, rtol=0)
    assert not model.fresh_adapter
    reference = Reference(model)
    torch.testing.assert_close(reference.log_probs(BATCH), expected, atol=1e-6, rtol=0)
    with model.network.disable_adapter(), torch.no_grad():
        assert (model.log_probs(BATCH)[0] - expected).abs().max() > 1e-3, "without the adapter it is another policy"


def test_a_new_adapter_makes_the_old_one_part_of_the_weights(train):
    trained, folder = train("adapter", lora_r=2)
    model = load_trained(ModelOptions(init=folder, lora_r=3), seed=0)
    expected = log_probs(trained.experiment.members[0].learner.model)
    torch.testing.assert_close(log_probs(model), expected, atol=1e-5, rtol=0)
    assert model.fresh_adapter
    assert {min(value.shape) for value in model.trained().values()} == {3}
    with model.network.disable_adapter():
        torch.testing.assert_close(log_probs(model), expected, atol=1e-5, rtol=0)


def test_runs_that_went_on_from_each_other(train):
    _, first = train("adapter", lora_r=2)
    trained, second = train("second", init=first)
    now = log_probs(trained.experiment.members[0].learner.model)
    torch.testing.assert_close(log_probs(load_trained(ModelOptions(init=second), seed=0)), now, atol=1e-6, rtol=0)
    third = load_trained(ModelOptions(init=second, lora_r=3), seed=0)
    torch.testing.assert_close(log_probs(third), now, atol=1e-5, rtol=0)
    assert {min(value.shape) for value in third.trained().values()} == {3}


def test_the_initial_model_of_a_run_is_found(train, model_folder):
    _, first = train("first")
    _, second = train("second", init=first)
    assert base_model("anything", second) == model_folder
    assert base_model("tiny") == "tiny"
    assert model_options(Run.open(second)) == ModelOptions(init=first)
    assert built_in(ModelOptions())
    assert not built_in(ModelOptions(init=second))
    assert built_in(object()), "it is not a language model"


def test_parts_of_a_state(train):
    _, folder = train("one")
    own, state = trained_state(folder, "optimizer", seed=0)
    assert own.lora_r == 0
    assert state["steps"] == 2
    with pytest.raises(ValueError, match="is a run of sft, which has no head"):
        trained_state(folder, "head", seed=0)


def test_other_runs_than_those_of_language_models_are_rejected(tmp_path):
    with pytest.raises(RunError):
        load_trained(ModelOptions(init=str(tmp_path / "nowhere")), seed=0)
    folder = tmp_path / "tabular"
    api.train("q-learning", "CliffWalking-v1", budget=200, run=folder, progress="silent")
    with pytest.raises(ValueError, match="is a run of q-learning, which trains no language model"):
        load_trained(ModelOptions(init=str(folder)), seed=0)
    with pytest.raises(ValueError, match="which trains no language model"):
        base_model("", str(folder))


# Remote code of a model


@pytest.fixture
def disguised(train, model_folder, tmp_path, monkeypatch):
    """Return a run whose files enable remote code of its model, and the file that this code would write."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))

    def disguise(**values):
        _, run = train("run", **values)
        trace, model, config = tmp_path / "trace", Path(model_folder), Path(run) / "config.toml"
        (model / "theirs.py").write_text(
            f"from transformers import LlamaForCausalLM\nopen({str(trace)!r}, 'a').close()\n"
            "class Theirs(LlamaForCausalLM):\n    pass\n"
        )
        facts = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(facts | {"auto_map": {"AutoModelForCausalLM": "theirs.Theirs"}}))
        text = config.read_text()
        assert "remote_code = false" in text
        config.write_text(text.replace("remote_code = false", "remote_code = true"))
        return run, trace

    return disguise


def test_a_run_cannot_enable_remote_code_for_its_reader(disguised, tmp_path):
    run, trace = disguised()
    ways = [
        lambda **given: api.load(run, accept_changes=True, **given),
        lambda **given: api.resume(run, progress="silent", accept_changes=True, **given),
        lambda **given: load(ModelOptions(init=run, **given), seed=0),
        lambda **given: find_chat_model(run, **given),
        lambda **given: write_model(Run.open(run), tmp_path / "written", seed=0, **given),
    ]
    for way in ways:
        with pytest.raises(RunError, match=r"run needs the Python code .*: if you trust both, pass --remote-code"):
            way()
    assert not trace.exists()
    for way in ways:
        way(remote_code=True)
    assert trace.exists()


def test_neither_can_the_run_of_a_reward_model(disguised):
    run, trace = disguised(algorithm="reward-model", task="preference")
    with pytest.raises(RunError, match="run needs the Python code"):
        load_scorer(run)
    assert not trace.exists()
    load_scorer(run, remote_code=True)
    assert trace.exists()


def test_remote_code_needs_permission():
    check_code(SFTConfig(), "run", allowed=False)
    check_code(SFTConfig(model="org/theirs", remote_code=True), "run", allowed=True)
    with pytest.raises(RunError, match="needs the Python code of its model org/theirs"):
        check_code(SFTConfig(model="org/theirs", remote_code=True), "run", allowed=False)


# Combinations that raise errors


def test_a_reward_model_is_no_policy_to_start_from(reward_run):
    for algorithm in ("sft", "grpo", "dpo", "rlhf"):
        with pytest.raises(ValueError, match=r"a run of reward-model, .*but a policy is needed: .*--reward-model"):
            api.train(
                algorithm, "preference", init=reward_run, budget=8, progress="silent", train_examples=20, held_out=4
            )


@pytest.fixture
def reward_run(train):
    return train("reward", algorithm="reward-model", task="preference")[1]


def test_a_reward_model_may_start_from_a_reward_model(train, reward_run):
    check_policy("")
    trained, _ = train("more", algorithm="reward-model", task="preference", init=reward_run)
    assert trained.experiment.members[0].learner.model.trained()


def test_a_run_whose_base_model_was_replaced_is_rejected(train, make_network, model_folder):
    _, folder = train("one")
    make_network(hidden_size=64).save_pretrained(model_folder)
    with pytest.raises(ValueError, match=r"one trained another network than .*model is now: .*use another run"):
        load_trained(ModelOptions(init=folder), seed=0)
