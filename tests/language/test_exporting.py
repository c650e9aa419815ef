"""Trained models in Hugging Face's format: language models, adapters and reward models."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import operant
from operant.language.chat import find_chat_model, trained_model
from operant.language.exporting import write_model, write_reward_model
from operant.language.scoring import load_scorer
from operant.language.tokenizer import encode_pair, encode_prompt

TINY = {"train_examples": 32, "held_out": 4, "batch_size": 16, "budget": 32, "evaluate_every": 32, "progress": "silent"}
PAIRS = (["mouse likes bear:", "cat likes dog:"], ["yes", "no"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speaking") / "run"
    return operant.train("sft", "arithmetic", seeds=(3, 4), run=folder, **TINY).run


def weights(model):
    return {name: value.detach() for name, value in model.network.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_written_model_is_one_of_transformers(run, tmp_path):
    write_model(run, tmp_path / "model", seed=4)
    own = trained_model(run, 4)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert same(weights(own), dict(theirs.named_parameters()))
    ids = torch.tensor([encode_prompt(own.tokenizer, "12+34=")])
    assert torch.equal(theirs(ids).logits, own.network(ids).logits)
    facts = json.loads((tmp_path / "model" / "operant.json").read_text())
    assert facts == {"run": "run", "algorithm": "sft", "task": "arithmetic", "seed": 4, "in_turns": False}
    speaker = find_chat_model(str(tmp_path / "model"))
    assert same(weights(speaker.model), weights(own))
    assert not speaker.in_turns, "it has a template, but was not trained with it"
    assert find_chat_model(str(tmp_path / "model"), in_turns=True).in_turns


def test_adapters(run, tmp_path):
    write_model(run, tmp_path / "base", seed=3)
    options = {**TINY, "lora_r": 2, "learning_rate": 0.1, "threads": 1}
    adapted = operant.train("sft", "arithmetic", model=str(tmp_path / "base"), run=tmp_path / "adapted", **options).run
    write_model(adapted, tmp_path / "adapter", seed=0)
    write_model(adapted, tmp_path / "whole", seed=0, merge=True)
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert "adapter_model.safetensors" in files
    assert "model.safetensors" not in files
    prompt = encode_prompt(trained_model(adapted, 0).tokenizer, "12+34=")
    ids = torch.tensor([prompt])
    wanted = trained_model(adapted, 0).network(ids).logits
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")(ids).logits
    assert (wanted - base).abs().max() > 0.01
    for name in ("adapter", "whole"):
        torch.testing.assert_close(find_chat_model(str(tmp_path / name)).model.network(ids).logits, wanted)
    again = operant.train("sft", "arithmetic", init=str(run.path), run=tmp_path / "more", **options).run
    with pytest.raises(ValueError, match="write the full model with --merge"):
        write_model(again, tmp_path / "nothing", seed=0)


@pytest.mark.parametrize("lora_r", [0, 2])
def test_a_written_reward_model_has_the_scores_of_the_run(run, tmp_path, lora_r):
    base = tmp_path / "base"
    write_model(run, base, seed=3)
    options = {**TINY, "model": str(base), "lora_r": lora_r, "learning_rate": 0.01, "seeds": (0, 1)}
    trained = operant.train("reward-model", "preference", run=tmp_path / "rewards", **options).run
    write_reward_model(trained, tmp_path / "model", seed=1)
    own = load_scorer(str(trained.path), seed=1)
    given = (*PAIRS, [[], []])
    scores = torch.tensor(own(*given))
    assert scores.abs().min() > 1e-3
    torch.testing.assert_close(torch.tensor(load_scorer(str(tmp_path / "model"))(*given)), scores, atol=1e-4, rtol=1e-4)
    facts = json.loads((tmp_path / "model" / "operant.json").read_text())
    bias = facts.pop("score_bias")
    assert facts == {"run": "rewards", "algorithm": "reward-model", "task": "preference", "seed": 1}
    assert bias == own.scorer.head.bias.item() != 0
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    for row, (prompt, answer) in enumerate(zip(*PAIRS, strict=True)):
        head, tail = encode_pair(own.scorer.model.tokenizer, prompt, answer, eos_ids={2})
        assert theirs(torch.tensor([head + tail])).logits.item() + bias == pytest.approx(scores[row].item(), abs=1e-4)
    write_reward_model(trained, tmp_path / "best", seed=1, best=True)
    best = load_scorer(str(trained.path / "best"), seed=1)
    assert load_scorer(str(tmp_path / "best"))(*given) == pytest.approx(best(*given), abs=1e-4)
    with pytest.raises(ValueError, match="rewards has no seed 7; it has 0, 1"):
        write_reward_model(trained, tmp_path / "none", seed=7)


def test_scores_of_steps_are_not_written(tmp_path):
    trained = operant.train("process-reward-model", "steps", run=tmp_path / "steps", **TINY).run
    with pytest.raises(ValueError, match="steps scores steps, but a sequence classifier scores whole answers"):
        write_reward_model(trained, tmp_path / "model", seed=0)
