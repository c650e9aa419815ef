"""Plans of optimizer steps, weights of tokens, and metrics."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.language.engines.protocol import Completion
from operant.language.examples import Prompt
from operant.language.grpo_batch import (
    ADVANTAGES,
    GRPOBatch,
    TokenStats,
    advantage_of,
    group_metrics,
    measured,
    plan,
    ratio_metrics,
)
from operant.language.packing import Sample
from operant.language.rewards import combine
from operant.language.rollouts import Answers, Rollout, compute_rewards


def batch_of(lengths, counts=None):
    samples = [Sample([1, 5], [3] * n) for n in lengths]
    rows = [torch.zeros(n) for n in lengths]
    counts = [True] * len(lengths) if counts is None else counts
    return GRPOBatch(samples, rows, rows, torch.tensor(counts), torch.zeros(len(counts)), [0] * len(counts))


def planned(batch, *, group, steps, tokens=1000, seed=0):
    return plan(batch, group=group, steps=steps, tokens=tokens, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=50, deadline=None)
@given(prompts=st.integers(1, 20), group=st.integers(2, 4), count=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_plan_has_every_answer_once_and_parts_no_group(prompts, group, count, seed):
    count = min(count, prompts)
    found = planned(batch_of([2] * prompts * group), group=group, steps=count, tokens=7, seed=seed)
    steps = [[i for part in step.parts for i in part] for step in found]
    assert sorted(i for step in steps for i in step) == list(range(prompts * group))
    owners = [{i // group for i in step} for step in steps]
    assert sum(map(len, owners)) == prompts
    assert max(map(len, owners)) - min(map(len, owners)) <= 1
    assert len(steps) == count
    assert [step.answers for step in found] == list(map(len, steps))
    assert all(len(part) <= 2 for step in found for part in step.parts)  # 2 + 2 + 2 tokens, and not 8


def test_answers_that_do_not_count_are_in_no_step():
    found = planned(batch_of([2] * 6, [True, False, True, True, False, False]), group=2, steps=3)
    assert sorted(i for step in found for part in step.parts for i in part) == [0, 2, 3]
    assert [step.answers for step in found] == [2, 2]  # including the one that does not count
    assert planned(batch_of([2] * 4, [False] * 4), group=2, steps=2) == []


def test_plans_are_random():
    orders = {str(planned(batch_of([1] * 12), group=2, steps=6, seed=seed)) for seed in range(8)}
    assert len(orders) > 4


def seen(rho, advantages, *, before=0.0, behavior=0.0, trust=1.0):
    ratios = torch.tensor(rho).log()
    full = [torch.full_like(ratios, x) for x in (before, behavior, trust)]
    more = [torch.full_like(ratios, x) for x in (0.5, 0.1, 1.0, 0.0, 0.0)]
    return TokenStats(*full, torch.tensor(advantages), ratios, *more)


def test_measures_are_means_over_tokens_not_over_micro_batches():
    parts = [seen([0.5, 0.5, 1.0], [-1.0, 1.0, 1.0], behavior=0.3), seen([2.0], [1.0], behavior=0.1)]
    steps = [
        ({"losses/policy": torch.tensor(1.0), "health/skipped_updates": 1.0}, parts),
        ({"losses/policy": torch.tensor(3.0), "health/skipped_updates": 1.0}, [seen([2.0] * 4, [-1.0] * 4)]),
    ]
    found = {name: float(value) for name, value in measured(steps, clip_low=0.2, clip_high=0.2).items()}
    assert found["losses/policy"] == 2.0
    assert found["health/skipped_updates"] == 2.0
    assert found["clip_ratio/low_mean"] == pytest.approx(1 / 8)
    assert found["clip_ratio/high_mean"] == pytest.approx(1 / 8)
    assert found["clip_ratio/region_mean"] == pytest.approx(2 / 8)
    assert found["sampling/sampling_logp_difference/mean"] == pytest.approx((3 * 0.3 + 0.1) / 8)
    assert found["sampling/sampling_logp_difference/max"] == pytest.approx(0.3)
    assert (found["entropy"], found["kl"]) == (pytest.approx(0.5), pytest.approx(0.1))


def test_nothing_is_measured_in_no_step():
    assert measured([], clip_low=0.2, clip_high=0.2) == {}


def test_metrics_of_sampled_answers():
    completions = [Completion([3] * n, [0.0] * n, cut) for n, cut in ((1, False), (3, False), (4, True), (4, True))]
    answers = Answers([Prompt([1], {"prompt": ""})] * 4, completions, [""] * 4)
    table = combine([lambda completion_ids, **_: [float(len(ids)) for ids in completion_ids]])
    found = group_metrics(Rollout(answers, compute_rewards(table, answers), 2), lambda _: torch.tensor([True, False]))
    assert found["reward"] == 3.0
    assert found["frac_reward_zero_std"] == 0.5
    assert found["num_tokens"] == 12.0
    assert found["completions/mean_terminated_length"] == 2.0
    assert found["completions/clipped_ratio"] == 0.5


MEDIAN = """
def median(rewards):
    return rewards - rewards.median(1, keepdim=True).values


def mean(rewards):
    return rewards.mean(1)


def array(rewards):
    return rewards.numpy()


def two(rewards, eps):
    return rewards


def divided(rewards):
    return (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)
"""


@pytest.fixture
def median(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MEDIAN)
    return f"{path}:median"


def test_custom_advantages_are_a_function_of_rewards(median):
    advantages = advantage_of(median, 3)
    rewards, valid = torch.tensor([[0.0, 1.0, 5.0], [2.0, 2.0, 3.0]]), torch.ones(2, 3, dtype=torch.bool)
    assert advantages(rewards, valid, 0.0).tolist() == [[-1.0, 0.0, 4.0], [0.0, 0.0, 1.0]]
    assert advantage_of("mean", 3) is ADVANTAGES["mean"]


def test_answers_without_a_reward_are_not_shown_to_it(median):
    advantages = advantage_of(median, 3)
    rewards = torch.tensor([[0.0, 1.0, 5.0], [2.0, 0.0, 3.0], [7.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    valid = torch.tensor([[True] * 3, [True, False, True], [True, False, False], [False] * 3])
    found = advantages(rewards, valid, 0.0)
    assert found.tolist() == [[-1.0, 0.0, 4.0], [0.0, 0.0, 1.0], [0.0] * 3, [0.0] * 3]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mean", r"mean must return a tensor of shape \(2, 4\) of finite numbers; given the rewards .* it returned"),
        ("array", r"array must return a tensor of shape \(2, 4\) .* returned \[\[.*\]\], a ndarray"),
        (
            "two",
            r"advantage .*mine\.py:two cannot be called: missing a required argument: 'eps'; expected a function of",
        ),
        ("divided", r"divided must return a tensor of shape \(2, 4\) of finite numbers; .* returned .*nan"),
        ("none", r"mine\.py has no 'none', expected a function of rewards \[P, G\]"),
    ],
)
def test_a_function_that_makes_no_advantages_is_rejected_before_any_answer(median, name, said):
    with pytest.raises(ValueError, match=said):
        advantage_of(median.replace(":median", f":{name}"), 4)


def test_ratios_of_tokens_are_measured_against_the_clip_range():
    new, old = torch.log(torch.tensor([1.5, 1.1, 0.5])), torch.zeros(3)
    found = ratio_metrics(new, old, torch.tensor([1.0, 1.0, -1.0]), (0.2, 0.3))
    assert found["val/ratio"].tolist() == pytest.approx([1.5, 1.1, 0.5])
    assert found["policy/clipfrac_avg"].tolist() == [1.0, 0.0, 1.0]
    assert found["policy/approxkl_avg"].tolist() == pytest.approx([r - 1 - math.log(r) for r in (1.5, 1.1, 0.5)])
