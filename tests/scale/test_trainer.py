"""The four verbs in this process: losses against numbers worked by hand, steps against torch, exact states."""

import numpy as np
import pytest
import torch

from operant.language.configs import ModelOptions
from operant.language.engines.protocol import Sampling
from operant.language.models import load
from operant.scale.trainer import Adam, Datum, LocalTrainer, Sampler, connect, named, placed

TOKENS = [1, 21, 22, 15, 23, 33, 21, 25]


@pytest.fixture(scope="module")
def model():
    return load(ModelOptions(model="tiny"), seed=3)


@pytest.fixture
def trainer(tmp_path):
    with connect(model="tiny", seed=3, states=tmp_path / "states") as found:
        yield found


def datum(**columns):
    return Datum(TOKENS[:-1], TOKENS[1:], **columns)


def reference(model, tokens, targets):
    """Return the log-probabilities of targets, from the network of transformers."""
    logits = model.network(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(targets)[:, None]).squeeze(1)


def test_log_probs_are_those_of_any_targets(trainer):
    other = Datum([4, 9], [7, 7], weights=[1.0, 0.5])
    single = Datum([4], [9], weights=[2.0])
    found = trainer.forward([datum(weights=[1.0] * 7), other, single], "cross_entropy")
    expected = [reference(trainer.model, list(d.tokens), list(d.target_tokens)) for d in (datum(), other, single)]
    for mine, theirs in zip(found.logprobs, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
    total = -(expected[0].sum() + expected[1][0] + 0.5 * expected[1][1] + 2.0 * expected[2][0])
    assert found.loss == pytest.approx(total.item(), rel=1e-5)


def test_batches_and_prompts_may_be_arrays_and_iterators(trainer):
    expected = trainer.forward([datum(weights=[1.0] * 7)], "cross_entropy")
    for kind in (np.array, torch.tensor):
        given = Datum(*map(kind, datum()[:2]), weights=kind([1.0] * 7))
        found = trainer.forward((each for each in [given]), "cross_entropy")
        assert found.loss == expected.loss
        asked = 2, Sampling(max_tokens=3)
        assert trainer.sample([kind(TOKENS)], *asked, seed=1) == trainer.sample([TOKENS], *asked, seed=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": -1e-4}, "learning_rate must be finite and not negative, got -0.0001"),
        ({"weight_decay": float("nan")}, "weight_decay must be finite and not negative, got nan"),
        ({"learning_rate": "1e-4"}, "learning_rate must be finite and not negative, got '1e-4'"),
        ({"beta1": 1.0}, "beta1 and beta2 must be below 1 and eps above 0, got 1.0, 0.95 and 1e-12"),
        ({"eps": 0.0}, "eps above 0, got 0.9, 0.95 and 0.0"),
    ],
)
def test_hyperparameters_that_spoil_the_weights_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Adam(**options)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_losses_of_policies_are_sums_over_tokens(trainer, loss):
    new = trainer.forward([datum(weights=[0.0] * 7)], "cross_entropy").logprobs[0]
    log_ratios = torch.tensor([0.0, 0.5, -0.5, 0.1, 0.5, -0.5, 0.0])
    advantages = torch.tensor([1.0, 1.0, 1.0, -2.0, -1.0, -1.0, 0.0])
    found = trainer.forward(
        [datum(logprobs=(new - log_ratios).tolist(), advantages=advantages.tolist())],
        loss,
        {"clip_low_threshold": 0.9, "clip_high_threshold": 1.3} if loss != "importance_sampling" else None,
    ).loss
    total = 0.0
    for lp, log_ratio, advantage in zip(new.tolist(), log_ratios.exp().tolist(), advantages.tolist(), strict=True):
        ratio = log_ratio
        if loss == "importance_sampling":
            total -= ratio * advantage
        elif loss == "cispo":
            total -= min(max(ratio, 0.9), 1.3) * advantage * lp
        else:
            total -= min(ratio * advantage, min(max(ratio, 0.9), 1.3) * advantage)
    assert found == pytest.approx(total, rel=1e-4)


def test_gradients_of_several_calls_add_up_and_micro_batches_change_nothing(tmp_path, monkeypatch):
    data = [datum(weights=[1.0] * 7), Datum([4, 9], [7, 7], weights=[1.0, 0.5])]
    found = []
    for calls, tokens in (([data], 100), ([[data[0]], [data[1]]], 100), ([data], 1)):
        monkeypatch.setattr("operant.scale.trainer.MICRO_BATCH_TOKENS", tokens)
        trainer = LocalTrainer(load(ModelOptions(model="tiny"), seed=3), tmp_path)
        for call in calls:
            trainer.forward_backward(call, "cross_entropy")
        found.append(torch.cat([value.grad.flatten() for value in trainer.model.trained().values()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-5)


def test_a_step_is_that_of_adamw(trainer):
    twin = load(ModelOptions(model="tiny"), seed=3)
    optimizer = torch.optim.AdamW(twin.trained().values(), lr=1e-2, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.1)
    for _ in range(2):
        trainer.forward_backward([datum(weights=[1.0] * 7)], "cross_entropy")
        report = trainer.optim_step(Adam(learning_rate=1e-2, weight_decay=0.1, grad_clip_norm=1.0))
        optimizer.zero_grad()
        (-reference(twin, TOKENS[:-1], TOKENS[1:]).sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.trained().values(), 1.0)
        optimizer.step()
    assert report["gradient_norm"] == pytest.approx(norm.item(), rel=1e-3)
    assert trainer.steps == 2
    for name, value in trainer.model.trained().items():
        # Adam divides by tiny moments if gradients are tiny, which amplifies rounding errors.
        assert (value - twin.trained()[name]).abs().mean() < 1e-4, name


def test_a_gradient_that_is_not_finite_changes_nothing(trainer):
    before = trainer.state_dict()["model"]
    before = {name: value.clone() for name, value in before.items()}
    trainer.forward_backward([datum(weights=[float("inf")] * 7)], "cross_entropy")
    assert trainer.optim_step(Adam())["skipped"] == 1.0
    assert all(torch.equal(before[name], value) for name, value in trainer.state_dict()["model"].items())
    with pytest.raises(ValueError, match="call forward_backward before optim_step"):
        trainer.optim_step(Adam())


def run(trainer, steps):
    for _ in range(steps):
        answers = trainer.sample([TOKENS[:3]], 2, Sampling(max_tokens=4))[0]
        data = [
            Datum(
                [*TOKENS[:3], *a.ids][:-1],
                [*TOKENS[1:3], *a.ids],
                logprobs=[0.0, 0.0, *a.log_probs],
                advantages=[0.0, 0.0, *[float(i)] * len(a.ids)],
            )
            for i, a in enumerate(answers)
        ]
        trainer.forward_backward(data, "importance_sampling")
        trainer.optim_step(Adam(learning_rate=1e-3))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_saved_state_continues_bit_for_bit(tmp_path, device):
    with connect(seed=5, states=tmp_path / "a", device=device) as first:
        run(first, 2)
        path = first.save_state("half")
        run(first, 2)
        expected = first.state_dict()
    with connect(seed=5, states=tmp_path / "b", device=device) as second:
        second.load_state(path)
        run(second, 2)
        found = second.state_dict()
    assert found["steps"] == expected["steps"] == 4
    for name, value in expected["model"].items():
        assert torch.equal(value, found["model"][name]), name
        assert torch.equal(expected["moments"][name]["exp_avg_sq"], found["moments"][name]["exp_avg_sq"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:99"}, "device 'cuda:99' is not on this machine"),
        ({"address": "http://127.0.0.1:1", "device": "cpu"}, "device is 'cpu', but the service has its own"),
    ],
)
def test_a_device_that_cannot_be_used_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        connect(**options)


def test_models_that_are_not_built_in_are_placed_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert placed(ModelOptions(model="tiny"), "auto") == "cpu"
    assert placed(ModelOptions(model="organization/model"), "auto") == "cuda"


def test_a_state_is_replaced_only_on_request(trainer):
    trainer.save_state("end")
    first = trainer.weights()
    run(trainer, 1)
    trainer.steps = 0  # also if the number of steps is the same
    path = trainer.save_state("end", overwrite=True)
    trained = trainer.weights()
    trainer.load_state(path)
    assert all(torch.equal(value, trainer.weights()[name]) for name, value in trained.items())
    assert any(not torch.equal(value, trained[name]) for name, value in first.items())


def test_weights_alone_start_a_new_optimizer(trainer):
    run(trainer, 1)
    path = trainer.save_state("one")
    trainer.load_state(path, optimizer=False)
    assert trainer.state_dict()["moments"] == {}


def test_a_sampler_keeps_its_weights(trainer):
    sampler = Sampler(trainer.model)
    old = trainer.weights()
    sampler.use(old)
    before = sampler.log_probs(TOKENS)
    run(trainer, 1)
    assert torch.equal(before, sampler.log_probs(TOKENS))
    sampler.use(trainer.weights())
    assert not torch.equal(before, sampler.log_probs(TOKENS))
    torch.testing.assert_close(before, reference(load(ModelOptions(model="tiny"), seed=3), TOKENS[:-1], TOKENS[1:]))
    assert sampler.log_probs([3]).shape == (0,)


@pytest.mark.parametrize(
    ("data", "loss", "config", "message"),
    [
        ([], "cross_entropy", None, "at least one datum"),
        ([datum()], "cross_entropy", None, "datum 0 has no weights, which cross_entropy needs"),
        ([datum(weights=[1.0])], "cross_entropy", None, "7 tokens but 1 weights"),
        ([Datum([], [], weights=[])], "cross_entropy", None, "datum 0 has no tokens"),
        ([datum()], "dro", None, "no loss 'dro'; there are cross_entropy, importance_sampling, ppo, cispo"),
        ([datum(weights=[1.0] * 7)], "cross_entropy", {"beta": 1.0}, "no setting 'beta'; it has none"),
        (
            [datum(logprobs=[0.0] * 7, advantages=[1.0] * 7)],
            "ppo",
            {"clip": 0.2},
            "no setting 'clip'; it has clip_low_threshold and clip_high_threshold",
        ),
    ],
)
def test_wrong_batches_are_named(trainer, data, loss, config, message):
    with pytest.raises(ValueError, match=message):
        trainer.forward_backward(data, loss, config)


def test_a_failed_pass_leaves_the_earlier_gradient(trainer, monkeypatch):
    """Fail in a later micro-batch, by an error of the loss."""
    monkeypatch.setattr("operant.scale.trainer.MICRO_BATCH_TOKENS", 1)
    good, wrong = [datum(weights=[1.0] * 7)], Datum([4], [9], weights=["x"])
    with pytest.raises((ValueError, TypeError)):
        trainer.forward_backward([*good, wrong], "cross_entropy")
    with pytest.raises(ValueError, match="there is no gradient"):
        trainer.optim_step(Adam())
    trainer.forward_backward(good, "cross_entropy")
    before = {name: value.grad.clone() for name, value in trainer.model.trained().items()}
    with pytest.raises((ValueError, TypeError)):
        trainer.forward_backward([*good, wrong], "cross_entropy")
    assert all(torch.equal(before[name], value.grad) for name, value in trainer.model.trained().items())


def test_sequences_up_to_the_context_are_accepted(trainer):
    size = trainer.model.context - 1
    assert trainer.forward([Datum([4] * size, [4] * size, weights=[1.0] * size)], "cross_entropy").loss > 0
    longer = Datum([4] * (size + 1), [4] * (size + 1), weights=[1.0] * (size + 1))
    with pytest.raises(ValueError, match=f"datum 0 has {size + 2} tokens with its last target, expected at most the"):
        trainer.forward([longer], "cross_entropy")


def test_prompts_fit_into_the_model(trainer):
    context = trainer.model.context
    with pytest.raises(ValueError, match="prompt 1 has the id 1000000, expected 0 to"):
        trainer.sample([[1], [1, 10**6]], 1, Sampling(2))
    with pytest.raises(ValueError, match=f"prompt 0 has {context - 1} tokens and its completion up to 2, expected at "):
        trainer.sample([[4] * (context - 1)], 1, Sampling(2))
    assert len(trainer.sample([[4] * (context - 1)], 1, Sampling(1))[0][0].ids) == 1


@pytest.mark.parametrize("prompts", [["7+8="], [1, 2]])
def test_prompts_are_lists_of_token_ids(trainer, prompts):
    with pytest.raises(ValueError, match=r"prompts must be lists of token ids, got .*: encode texts"):
        trainer.sample(prompts, 1, Sampling(2))
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        trainer.sample([[1]], 0, Sampling(2))


def test_a_model_object_is_no_name():
    with pytest.raises(ValueError, match="model is of type Linear, expected a folder or a name"):
        connect(model=torch.nn.Linear(1, 1))


def test_wrong_states_are_named(trainer, tmp_path):
    with pytest.raises(ValueError, match="has no saved state"):
        trainer.load_state(str(tmp_path / "nothing"))
    trainer.save_state("one")
    with pytest.raises(ValueError, match="already exists"):
        trainer.save_state("one")


def test_models_of_16_bits_are_rejected(tmp_path):
    model = load(ModelOptions(model="tiny", dtype="bfloat16"), seed=0)
    with pytest.raises(ValueError, match="load them with dtype='float32'"):
        LocalTrainer(model, tmp_path)


def test_an_adapter_of_a_model_in_bfloat16_is_trained(tmp_path):
    model = load(ModelOptions(model="tiny", dtype="bfloat16", lora_r=2), seed=0)
    trainer = LocalTrainer(model, tmp_path)
    before = trainer.forward_backward([datum(weights=[1.0] * 7)], "cross_entropy").loss
    trainer.optim_step(Adam(learning_rate=1e-2))
    assert trainer.forward([datum(weights=[1.0] * 7)], "cross_entropy").loss < before
    assert len(trainer.sample([TOKENS], 2, Sampling(3))[0]) == 2


def test_a_run_is_named_by_its_folder(tmp_path):
    from operant import api

    sizes = {"train_examples": 24, "held_out": 2}
    trained = api.train("sft", "arithmetic", seeds=1, budget=16, run=tmp_path / "run", progress="silent", **sizes)
    assert named(str(trained.run.path)).init == str(trained.run.path)
    assert named("tiny").model == "tiny"
    with connect(model=str(trained.run.path), lora_r=2, states=tmp_path / "states") as trainer:
        assert all("lora" in name for name in trainer.model.trained())
