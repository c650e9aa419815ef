"""Preference losses: known values, brute-force twins, invariances, and the optimum that DPO is derived from."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.ops.preference import bradley_terry, dpo, plackett_luce

SCORES = st.floats(-8, 8, allow_subnormal=False)


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_bradley_terry_known_values() -> None:
    loss = bradley_terry(f64(1, 0, 3), f64(0, 0, 1))
    torch.testing.assert_close(loss, f64(0.31326168751822286, math.log(2), 0.12692801104297263))
    torch.testing.assert_close(bradley_terry(f64(3), f64(1), margin=2.0), f64(math.log(2)))
    torch.testing.assert_close(
        bradley_terry(f64(3, 3), f64(1, 1), margin=f64(2, 1)), f64(math.log(2), 0.31326168751822286)
    )


def test_bradley_terry_is_stable_far_from_zero() -> None:
    chosen = torch.tensor([1e4, -1e4], requires_grad=True)
    loss = bradley_terry(chosen, torch.zeros(2))
    loss.sum().backward()
    assert loss.tolist() == [0.0, 1e4]
    assert chosen.grad is not None
    assert chosen.grad.tolist() == [0.0, -1.0]


@settings(deadline=None, max_examples=40)
@given(SCORES, SCORES, st.floats(-3, 3))
def test_bradley_terry_sees_differences_alone(chosen: float, rejected: float, shift: float) -> None:
    here = bradley_terry(f64(chosen), f64(rejected))
    torch.testing.assert_close(here, f64(math.log1p(math.exp(rejected - chosen))))
    torch.testing.assert_close(bradley_terry(f64(chosen + shift), f64(rejected + shift)), here)
    # The two outcomes of a comparison have total probability 1.
    total = (-here).exp() + (-bradley_terry(f64(rejected), f64(chosen))).exp()
    torch.testing.assert_close(total, f64(1))


@settings(deadline=None, max_examples=40)
@given(SCORES, SCORES)
def test_plackett_luce_of_two_is_bradley_terry(first: float, second: float) -> None:
    loss = plackett_luce(f64(first, second), torch.tensor([1, 0]))
    torch.testing.assert_close(loss, bradley_terry(f64(second)[0], f64(first)[0]))


@settings(deadline=None, max_examples=20)
@given(st.lists(SCORES, min_size=1, max_size=4))
def test_plackett_luce_against_its_definition(scores: list[float]) -> None:
    total = 0.0
    for ranking in itertools.permutations(range(len(scores))):
        likelihood = 1.0
        for place, index in enumerate(ranking):
            likelihood *= math.exp(scores[index]) / sum(math.exp(scores[j]) for j in ranking[place:])
        loss = plackett_luce(f64(*scores), torch.tensor(ranking))
        torch.testing.assert_close((-loss).exp(), torch.tensor(likelihood, dtype=torch.float64))
        total += likelihood
    assert total == pytest.approx(1)


def test_plackett_luce_of_equals_is_log_factorial() -> None:
    rankings = torch.tensor([[[0, 1, 2, 3], [3, 1, 0, 2]]])
    loss = plackett_luce(torch.zeros(1, 2, 4), rankings)
    torch.testing.assert_close(loss, torch.full((1, 2), math.log(24)))


@pytest.mark.parametrize("ranking", [[[0, 1, 2], [0, 0, 2]], [[0, 1, 3], [0, 1, 2]], [[-1, 0, 1], [0, 1, 2]]])
def test_plackett_luce_rejects_invalid_permutations(ranking: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"every index 0 \.\. 2 exactly once"):
        plackett_luce(torch.zeros(2, 3), torch.tensor(ranking))


@pytest.mark.parametrize("kind", ["sigmoid", "ipo", "hinge"])
def test_gradcheck(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    assert torch.autograd.gradcheck(lambda *x: dpo(*x, beta=0.3, kind=kind), values)
    assert torch.autograd.gradcheck(lambda a, b: bradley_terry(a, b, margin=0.5), values[:2])
    assert torch.autograd.gradcheck(lambda a: plackett_luce(a, torch.tensor([2, 0, 1])), values[:1])


@pytest.mark.parametrize(
    ("kind", "at_reference", "moved"),
    # moved: log-ratios of +2 and -1, so h = 3, with beta = 0.1.
    [
        ("sigmoid", math.log(2), math.log1p(math.exp(-0.3))),
        ("ipo", 25.0, 4.0),
        ("hinge", 1.0, 0.7),
    ],
)
def test_dpo_known_values(kind: str, at_reference: float, moved: float) -> None:
    chosen, rejected = torch.tensor([-31.4, -400.1]), torch.tensor([-27.2, -3.3])
    same = dpo(chosen, rejected, chosen, rejected, beta=0.1, kind=kind)
    torch.testing.assert_close(same, torch.full((2,), at_reference))
    loss = dpo(f64(-8), f64(-6), f64(-10), f64(-5), beta=0.1, kind=kind)
    torch.testing.assert_close(loss, f64(moved))


def test_hinge_is_content_beyond_its_margin() -> None:
    h = f64(9.5, 10, 20).requires_grad_()
    zero = torch.zeros_like(h)
    loss = dpo(h, zero, zero, zero, beta=0.1, kind="hinge")
    torch.testing.assert_close(loss, f64(0.05, 0, 0))
    loss.sum().backward()
    torch.testing.assert_close(h.grad, f64(-0.1, 0, 0))


@settings(deadline=None, max_examples=40)
@given(st.lists(SCORES, min_size=4, max_size=4), st.floats(0.05, 2))
def test_dpo_is_bradley_terry_of_the_implicit_reward_and_has_its_gradient(logs: list[float], beta: float) -> None:
    chosen, rejected = f64(logs[0]).requires_grad_(), f64(logs[1]).requires_grad_()
    loss = dpo(chosen, rejected, f64(logs[2]), f64(logs[3]), beta=beta)
    score_chosen, score_rejected = beta * (logs[0] - logs[2]), beta * (logs[1] - logs[3])
    torch.testing.assert_close(loss, bradley_terry(f64(score_chosen), f64(score_rejected)))
    gradient_chosen, gradient_rejected = torch.autograd.grad(loss.sum(), [chosen, rejected])
    weight = -beta / (1 + math.exp(score_chosen - score_rejected))
    torch.testing.assert_close(gradient_chosen, f64(weight))
    torch.testing.assert_close(gradient_rejected, f64(-weight))


@settings(deadline=None, max_examples=30)
@given(st.lists(SCORES, min_size=4, max_size=4), st.floats(0, 0.49))
def test_label_smoothing_expects_flipped_labels(logs: list[float], rate: float) -> None:
    chosen, rejected, ref_chosen, ref_rejected = (f64(x) for x in logs)
    straight = dpo(chosen, rejected, ref_chosen, ref_rejected, beta=0.5)
    flipped = dpo(rejected, chosen, ref_rejected, ref_chosen, beta=0.5)
    smoothed = dpo(chosen, rejected, ref_chosen, ref_rejected, beta=0.5, label_smoothing=rate)
    torch.testing.assert_close(smoothed, (1 - rate) * straight + rate * flipped)


def test_label_smoothing_keeps_the_optimum_finite() -> None:
    # The smoothed loss is minimal where σ(βh) is the rate of right labels.
    h = f64(math.log(0.9 / 0.1) / 0.2).requires_grad_()
    zero = f64(0)
    dpo(h, zero, zero, zero, beta=0.2, label_smoothing=0.1).sum().backward()
    torch.testing.assert_close(h.grad, zero)


def test_dpo_keeps_leading_dimensions_and_order() -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(4, 2, 3, generator=generator)
    loss = dpo(*values, beta=0.1)
    assert loss.shape == (2, 3)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(dpo(*values.flip(1), beta=0.1), loss.flip(0))
    torch.testing.assert_close(dpo(*values[:, 1, 2], beta=0.1), loss[1, 2])


def minimize(loss_of: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """Return log-probabilities that minimize a loss over all distributions of `size` answers."""
    logits = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(logits.log_softmax(-1))
        loss.backward()
        return loss

    optimizer.step(closure)
    return logits.detach().log_softmax(-1)


def test_dpo_optimum_is_the_regularized_optimum() -> None:
    # Preferences of a Bradley-Terry rater over every pair of five answers, in expectation, with no reward model.
    reward, beta = f64(1.0, -0.5, 0.3, 2.0, 0.0), 0.7
    ref = f64(0.1, 0.4, 0.2, 0.05, 0.25).log()
    winner, loser = torch.tensor(list(itertools.permutations(range(5), 2))).unbind(-1)
    probability = (reward[winner] - reward[loser]).sigmoid()

    def expected_loss(policy: Tensor) -> Tensor:
        return (probability * dpo(policy[winner], policy[loser], ref[winner], ref[loser], beta=beta)).sum()

    policy = minimize(expected_loss, 5)
    log_z = (ref + reward / beta).logsumexp(-1)
    torch.testing.assert_close(policy, ref + reward / beta - log_z, rtol=0, atol=1e-6)
    # and that is the maximum of E[r] - β KL(π‖ref), whose value is β log Z.
    direct = minimize(lambda log_probs: (log_probs.exp() * (beta * (log_probs - ref) - reward)).sum(), 5)
    torch.testing.assert_close(direct, policy, rtol=0, atol=1e-6)
    value = (policy.exp() * (reward - beta * (policy - ref))).sum()
    torch.testing.assert_close(value, beta * log_z)


def test_ipo_stays_finite_where_preferences_are_certain() -> None:
    # One answer always wins: DPO would push its log-ratio to infinity, IPO stops at h = 1/(2β).
    ref = f64(0.5, 0.5).log()
    policy = minimize(lambda p: dpo(p[0], p[1], ref[0], ref[1], beta=0.25, kind="ipo"), 2)
    torch.testing.assert_close(policy[0] - policy[1], torch.tensor(2.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": 0.0}, "beta must be above 0, got 0.0"),
        ({"beta": float("nan")}, "beta must be above 0, got nan"),
        ({"beta": 0.1, "kind": "simpo"}, "got 'simpo'"),
        ({"beta": 0.1, "label_smoothing": 0.5}, r"\[0, 0.5\), got 0.5"),
        ({"beta": 0.1, "label_smoothing": 0.1, "kind": "ipo"}, "label_smoothing=0.1 requires kind='sigmoid'"),
    ],
)
def test_dpo_rejects_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dpo(*torch.zeros(4, 2), **arguments)
