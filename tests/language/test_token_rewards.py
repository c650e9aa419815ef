"""Rewards and advantages of single tokens: numbers by hand, a brute-force twin, and invariances."""

import math

import pytest
import torch

from operant.language.token_rewards import outcome_metrics, shaped, token_advantages, token_rewards, whitened

LONG, SHORT = torch.tensor([0.1, -0.2, 0.4]), torch.tensor([0.5])


def test_the_score_is_paid_at_the_last_token_and_divergence_at_each():
    rewards = token_rewards([LONG, SHORT], torch.tensor([2.0, -1.0]), coefficient=0.5)
    torch.testing.assert_close(rewards[0], torch.tensor([-0.05, 0.1, 1.8]))
    torch.testing.assert_close(rewards[1], torch.tensor([-1.25]))
    torch.testing.assert_close(LONG, torch.tensor([0.1, -0.2, 0.4]), rtol=0, atol=0)  # not changed in place


def test_whitened_rewards_keep_their_mean():
    rewards = token_rewards([LONG, SHORT], torch.tensor([2.0, -1.0]), coefficient=0.5)
    whitened_rewards = torch.cat(token_rewards([LONG, SHORT], torch.tensor([2.0, -1.0]), coefficient=0.5, whiten=True))
    assert float(whitened_rewards.mean()) == pytest.approx(float(torch.cat(rewards).mean()))
    assert float(whitened_rewards.var()) == pytest.approx(1.0, rel=1e-4)


def test_advantages_of_two_answers_by_hand():
    # γ = 1, λ = 0.5; the first answer: δ = [0 + 2 - 1, 0 + 4 - 2, 3 - 4] = [1, 2, -1]
    rewards, values = (
        [torch.tensor([0.0, 0.0, 3.0]), torch.tensor([5.0])],
        [torch.tensor([1.0, 2.0, 4.0]), torch.ones(1)],
    )
    after, cut = torch.tensor([math.nan, math.nan]), torch.tensor([False, False])
    first, second = token_advantages(rewards, values, after, cut=cut, gamma=1.0, lam=0.5)
    torch.testing.assert_close(first, torch.tensor([1 + 0.5 * 1.5, 2 - 0.5, -1.0]))
    torch.testing.assert_close(second, torch.tensor([4.0]))


def test_only_an_answer_that_was_cut_is_worth_something_afterwards():
    rewards, values = [torch.tensor([0.0, 3.0])] * 2, [torch.tensor([1.0, 2.0])] * 2
    after, cut = torch.tensor([10.0, math.nan]), torch.tensor([True, False])
    first, second = token_advantages(rewards, values, after, cut=cut, gamma=0.5, lam=1.0)
    torch.testing.assert_close(first, torch.tensor([0 + 0.5 * (3 + 0.5 * 10) - 1, 3 + 0.5 * 10 - 2]))
    torch.testing.assert_close(second, torch.tensor([0.5 * 3 - 1, 3.0 - 2.0]))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.3), (1.0, 1.0), (0.7, 0.0)])
def test_advantages_are_sums_of_residuals(gamma, lam):
    generator = torch.Generator().manual_seed(0)
    lengths = [4, 1, 7, 2]
    rewards, values = ([torch.randn(n, generator=generator) for n in lengths] for _ in range(2))
    after, cut = torch.randn(4, generator=generator), torch.tensor([True, True, False, False])
    found = token_advantages(rewards, values, after, cut=cut, gamma=gamma, lam=lam)
    for i, n in enumerate(lengths):
        successors = [*values[i][1:].tolist(), float(after[i]) if cut[i] else 0.0]
        deltas = [float(rewards[i][t]) + gamma * successors[t] - float(values[i][t]) for t in range(n)]
        expected = [sum((gamma * lam) ** k * deltas[t + k] for k in range(n - t)) for t in range(n)]
        torch.testing.assert_close(found[i], torch.tensor(expected))


def test_an_answer_does_not_care_for_the_others_or_their_order():
    generator = torch.Generator().manual_seed(1)
    rewards, values = ([torch.randn(n, generator=generator) for n in (3, 9, 1)] for _ in range(2))
    after, cut = torch.randn(3, generator=generator), torch.tensor([True, False, True])
    together = token_advantages(rewards, values, after, cut=cut, gamma=0.9, lam=0.8)
    for i in (2, 0, 1):
        (alone,) = token_advantages([rewards[i]], [values[i]], after[[i]], cut=cut[[i]], gamma=0.9, lam=0.8)
        torch.testing.assert_close(alone, together[i])


def test_whitening_counts_tokens_and_survives_a_single_one():
    rows = whitened([torch.tensor([1.0, 2.0]), torch.tensor([6.0])])
    assert [len(row) for row in rows] == [2, 1]
    flat = torch.cat(rows)
    assert float(flat.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(flat.var()) == pytest.approx(1.0, rel=1e-4)
    assert whitened([torch.tensor([3.0])])[0].tolist() == [0.0]


def test_scores_are_bounded_and_answers_without_an_end_pay():
    scores, cut = torch.tensor([3.0, -9.0, 0.5]), torch.tensor([False, False, True])
    assert shaped(scores, cut, clip=None, missing_eos=None).tolist() == scores.tolist()
    assert shaped(scores, cut, clip=2.0, missing_eos=None).tolist() == [2.0, -2.0, 0.5]
    assert shaped(scores, cut, clip=2.0, missing_eos=-5.0).tolist() == [2.0, -2.0, -5.0]


def test_metrics_are_means_over_answers():
    logs = [torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-2.0])]
    metrics = outcome_metrics([LONG, SHORT], logs, torch.tensor([2.0, 0.0]), coefficient=0.5)
    found = {name: float(value) for name, value in metrics.items()}
    assert found == pytest.approx(
        {
            "objective/kl": (0.3 + 0.5) / 2,
            "objective/entropy": (6 + 2) / 2,
            "objective/non_score_reward": -0.2,
            "objective/rlhf_reward": 0.8,
            "objective/scores": 1.0,
        }
    )
