import math

import pytest
import torch

from operant.language.models import LanguageModel
from operant.language.packing import Sample
from operant.language.sft import SFT, SFTConfig

DATA = [
    Sample([1, 10 + i], [20 + i, *([30 + i] * (i % 3)), 2]) for i in range(12)
]  # lengths 2, 3 and 4, end of sequence included
HELD_OUT = [Sample([1, 50], [51, 2]), Sample([1, 52], [53, 54, 2])]


@pytest.fixture
def make(make_model):
    def make(*, seed=0, budget=240, data=DATA, held_out=HELD_OUT, dtype=None, **values):
        config = SFTConfig(**{"learning_rate": 1e-2, "batch_size": 4, "max_grad_norm": 10.0} | values)
        return SFT(config, make_model(dtype=dtype), data, held_out, seed=seed, budget=budget)

    return make


def alone(model, sample):
    """Compute negative log-probabilities of a completion by transformers."""
    ids = torch.tensor([[*sample.prompt, *sample.completion]])
    log_probs = model.network(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    return torch.stack([-log_probs[i - 1, ids[0, i]] for i in range(len(sample.prompt), ids.shape[1])])


def parameters(learner):
    return torch.cat([value.detach().flatten() for value in learner.model.trained().values()])


# Loss


@pytest.mark.parametrize("weights", ["token_mean", "sequence_mean"])
def test_the_loss_is_that_of_the_twin(make, weights):
    learner = make(loss_aggregation=weights)
    rows = [alone(learner.model, sample) for sample in DATA[:5]]
    expected = torch.cat(rows).mean() if weights == "token_mean" else torch.stack([r.mean() for r in rows]).mean()
    metrics = learner.update(DATA[:5])
    assert float(metrics["losses/nll"]) == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["num_tokens"] == sum(len(sample.completion) for sample in DATA[:5])


def test_the_gradient_is_that_of_the_twin(make):
    learner, twin = make(), make()
    norm = learner.update(DATA[:5])["losses/gradient_norm"]
    torch.cat([alone(twin.model, sample) for sample in DATA[:5]]).mean().backward()
    grads = [value.grad for value in twin.model.trained().values()]
    assert float(norm) == pytest.approx(float(torch.nn.utils.get_total_norm(grads)), rel=1e-4)


@pytest.mark.parametrize("weights", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("tokens", [1, 9, 16])
def test_micro_batches_change_nothing(make, weights, tokens):
    whole, divided = make(loss_aggregation=weights), make(loss_aggregation=weights, micro_batch_tokens=tokens)
    for _ in range(2):
        one, other = whole.iterate(), divided.iterate()
    assert float(one["losses/nll"]) == pytest.approx(float(other["losses/nll"]), rel=1e-5)
    assert float(one["entropy"]) == pytest.approx(float(other["entropy"]), rel=1e-5)
    torch.testing.assert_close(parameters(whole), parameters(divided), atol=2e-4, rtol=0)


def test_the_end_of_sequence_is_learned(make):
    learner = make(keep_best=False)
    before = [alone(learner.model, sample)[-1].item() for sample in DATA]
    for _ in range(20):
        learner.iterate()
    after = [alone(learner.model, sample)[-1].item() for sample in DATA]
    assert sum(after) < 0.2 * sum(before)


def test_masked_tokens_are_not_learned(make):
    masked = [sample._replace(mask=[i == 0 for i in range(len(sample.completion))]) for sample in DATA]
    learner = make(data=masked)
    metrics = learner.update(masked)
    expected = torch.stack([alone(make().model, sample)[0] for sample in DATA]).mean()
    assert float(metrics["losses/nll"]) == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["num_tokens"] == len(DATA)


# Training


def test_five_examples_are_learned_by_heart(make):
    learner = make(data=DATA[:5], batch_size=5, budget=500, keep_best=False)
    while learner.consumed < 500:
        metrics = learner.iterate()
    assert float(metrics["losses/nll"]) < 0.02
    for sample in DATA[:5]:
        ids = list(sample.prompt)
        for token in sample.completion:
            assert (
                int(learner.model.network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
                == token
            )
            ids.append(token)


def test_every_epoch_sees_each_demonstration_once(make, monkeypatch):
    learner, seen = make(budget=24, batch_size=5), []
    monkeypatch.setattr(learner, "update", lambda batch: seen.extend(batch) or {})
    while learner.consumed < 24:
        learner.iterate()
    assert all(seen[:12].count(sample) == 1 and seen[12:24].count(sample) == 1 for sample in DATA)
    assert seen[:12] != seen[12:24]


def test_a_batch_is_no_larger_than_the_data(make):
    learner = make(data=DATA[:3], batch_size=100, budget=3)
    learner.iterate()
    assert learner.consumed == 3


def test_the_best_weights_are_kept(make):
    # Held-out demonstrations that contradict the training set: further training increases their loss.
    against = [Sample(sample.prompt, [90, 2]) for sample in DATA]
    learner = make(held_out=against, budget=400, validations=20, learning_rate=3e-2)
    losses, states = [], []
    while learner.consumed < 400:
        metrics = learner.iterate()
        if not math.isnan(learner.validation) and (not losses or learner.validation != losses[-1]):
            losses.append(learner.validation)
            states.append(parameters(learner).clone())
    assert losses[-2] > min(losses)
    assert float(metrics["validation/loss"]) == min(losses) == losses[-1]
    torch.testing.assert_close(parameters(learner), states[losses.index(min(losses))])
    rows = learner.model.completion_log_probs(against, tokens=100)
    assert -float(torch.cat(rows).mean()) == pytest.approx(min(losses), rel=1e-5)


def test_without_keeping_the_best_nothing_is_validated(make):
    learner = make(keep_best=False, budget=40)
    while learner.consumed < 40:
        metrics = learner.iterate()
    assert math.isnan(metrics["validation/loss"])
    assert learner.best is None


def test_it_is_validated_as_often_as_asked(make, monkeypatch):
    learner, calls = make(budget=240, validations=6), []
    monkeypatch.setattr(learner, "validate", lambda: calls.append(learner.consumed))
    while learner.consumed < 240:
        learner.iterate()
    assert calls == [40, 80, 120, 160, 200, 240]


def test_a_gradient_that_is_not_finite_is_skipped(make):
    learner = make(keep_best=False)
    learner.iterate()
    before = parameters(learner).clone()
    handle = learner.model.network.get_input_embeddings().weight.register_hook(lambda grad: grad * math.nan)
    metrics = learner.iterate()
    assert (metrics["health/updates"], metrics["health/skipped_updates"]) == (1, 1)
    assert torch.equal(parameters(learner), before)
    handle.remove()
    assert learner.iterate()["health/skipped_updates"] == 0
    assert not torch.equal(parameters(learner), before)


# State


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_a_state_resumes_bit_for_bit(make, steps, dtype):
    one, two = make(dtype=dtype, lr_schedule="cosine"), make(dtype=dtype, lr_schedule="cosine")
    for _ in range(steps):
        one.iterate()
    two.load_state_dict(one.state_dict())
    for _ in range(6):
        mine, yours = one.iterate(), two.iterate()
    assert one.consumed == two.consumed
    assert torch.equal(parameters(one), parameters(two))
    assert mine["losses/nll"] == yours["losses/nll"]
    assert one.least == two.least


def test_after_loading_the_best_weights_training_continues_from_them(make):
    learner = make(dtype=torch.bfloat16, budget=40, learning_rate=1e-6)
    while learner.consumed < 40:
        learner.iterate()
    best = parameters(learner).clone()
    learner.iterate()
    torch.testing.assert_close(parameters(learner), best)


def test_the_seed_orders_the_demonstrations(make):
    one, twin, other = make(seed=0), make(seed=0), make(seed=1)
    for learner in (one, twin, other):
        learner.iterate()
    assert torch.equal(parameters(one), parameters(twin))
    assert not torch.equal(parameters(one), parameters(other))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"loss_aggregation": "constant"}, "loss_aggregation"),
        ({"validations": 0}, "validations"),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        SFTConfig(**values)


def test_the_model_is_shared(make):
    assert isinstance(make().model, LanguageModel)
