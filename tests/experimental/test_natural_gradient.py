"""The natural gradient of a language model: the Fisher matrix by brute force, the trust region, the line search."""

import pytest
import torch

from operant import ops
from operant.experimental.natural_gradient import Part, Region, natural_step
from operant.language import models
from operant.language.configs import ModelOptions
from operant.language.packing import Sample, pack

SAMPLES = [Sample([1, 3, 4], [5, 3, 2]), Sample([1, 3, 4], [3]), Sample([1, 5], [4, 2])]
TINY = {
    "vocab_size": 6,
    "hidden_size": 4,
    "intermediate_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 4,
}


def parts_of(model, samples=SAMPLES, *, temperature=1.0, each=False):
    chunks = [[sample] for sample in samples] if each else [samples]
    total = sum(len(sample.completion) for sample in samples)
    parts = []
    for chunk in chunks:
        packed = pack(chunk)
        with torch.no_grad():
            old, _ = model.log_probs(packed, temperature=temperature)
        advantages = torch.cos(2.0 * packed.targets)
        parts.append(Part(packed, torch.full_like(old, 1 / total), old, advantages))
    return parts


def flat(model):
    return torch.cat([value.detach().flatten() for value in model.trained().values()])


def logits_of(model, temperature=1.0):
    packed = pack(SAMPLES)
    return model.logits(model.read(packed).index_select(0, packed.before)) / temperature


def jacobian(model, temperature):
    """Return the derivative `[m, V, D]` of all logits, with one backward pass each."""
    logits, values = logits_of(model, temperature), list(model.trained().values())
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(z, values, retain_graph=True, materialize_grads=True)])
        for z in logits.flatten()
    ]
    return torch.stack(rows).view(*logits.shape, -1), logits.detach().softmax(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_step_is_that_of_the_dense_fisher_matrix(make_model, temperature):
    model = make_model(dtype=torch.float64, **TINY)
    derivative, p = jacobian(model, temperature)
    covariance = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    damping, delta, size = 0.1, 1e-4, derivative.shape[-1]
    fisher = torch.einsum("mvd,mvw,mwe->de", derivative, covariance.double(), derivative) / len(p)
    fisher += damping * torch.eye(size, dtype=torch.float64)
    parts = parts_of(model, temperature=temperature)
    new, _ = model.log_probs(parts[0].batch, temperature=temperature)
    loss = (parts[0].weights * ops.surrogate(new, parts[0].old, parts[0].advantages)).sum()
    values = list(model.trained().values())
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, values, materialize_grads=True)])
    direction = torch.linalg.solve(fisher, -gradient)
    expected = direction * (2 * delta / (direction @ fisher @ direction)).sqrt()
    before = flat(model)
    found = natural_step(model, parts, Region(delta, damping, temperature, iterations=60))
    assert float(found["policy/step_scale"]) == 1.0
    torch.testing.assert_close(flat(model) - before, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("delta", [1e-4, 0.01, 0.5])
def test_a_step_improves_the_surrogate_and_stays_within_the_region(make_model, delta):
    model = make_model()
    old = logits_of(model).detach()
    parts = parts_of(model)
    found = {name: float(value) for name, value in natural_step(model, parts, Region(delta)).items()}
    moved = float(ops.categorical_kl(old, logits_of(model).detach()).mean())
    assert found["policy/approxkl_avg"] == pytest.approx(moved, rel=1e-3)
    assert 0 < moved <= delta
    assert found["losses/improvement"] > 0
    new, _ = model.log_probs(parts[0].batch)
    loss = (parts[0].weights * ops.surrogate(new, parts[0].old, parts[0].advantages)).sum().item()
    assert found["losses/policy"] - loss == pytest.approx(found["losses/improvement"], rel=1e-3)


def test_micro_batches_make_the_same_step(make_model):
    steps = []
    for each in (False, True):
        model = make_model(dtype=torch.float64)
        before = flat(model)
        natural_step(model, parts_of(model, each=each), Region(0.01))
        steps.append(flat(model) - before)
    whole, split = steps
    assert float((whole - split).norm() / whole.norm()) < 1e-2  # logits have 32 bits, and conjugate gradients amplify


def test_first_derivatives_that_are_kept_change_nothing(make_model):
    steps = []
    for kept in (0, 16_384):
        model = make_model()
        natural_step(model, parts_of(model, each=True), Region(0.01, kept=kept))
        steps.append(flat(model))
    assert torch.equal(*steps)


def test_without_a_gradient_nothing_moves(make_model):
    model = make_model()
    before = flat(model)
    parts = [part._replace(advantages=torch.zeros_like(part.old)) for part in parts_of(model)]
    found = natural_step(model, parts, Region(0.01))
    assert torch.equal(flat(model), before)
    assert float(found["policy/step_scale"]) == 0.0


def test_numbers_that_are_not_finite_leave_the_policy_alone(make_model):
    model = make_model()
    before = flat(model)
    parts = [part._replace(advantages=torch.full_like(part.old, torch.nan)) for part in parts_of(model)]
    found = natural_step(model, parts, Region(0.01))
    assert torch.equal(flat(model), before)
    assert float(found["policy/approxkl_avg"]) == 0.0


def test_an_adapter_is_moved_alone(make_network, characters):
    model = models.finish(make_network(), characters, ModelOptions(lora_r=2), seed=0)
    fixed = {n: v.clone() for n, v in model.network.named_parameters() if not v.requires_grad}
    found = natural_step(model, parts_of(model), Region(0.01))
    assert float(found["losses/improvement"]) > 0
    assert all(torch.equal(value, fixed[n]) for n, value in model.network.named_parameters() if n in fixed)


def test_sixteen_bits_are_rejected(make_model):
    model = make_model(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"needs --dtype float32, got torch\.bfloat16"):
        natural_step(model, parts_of(model), Region(0.01))
