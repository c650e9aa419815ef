"""What all bonuses share: checks of novelties, warnings, and the division by the deviation of returns."""

import pytest
import torch

from explore.bonus_envs import dive, sea
from operant.control import PPOConfig
from operant.control.dqn import DQNConfig
from operant.explore import Bonus, Counts


def test_a_bonus_without_novelty_is_an_error():
    class Nothing(Bonus):
        pass

    class Together(Bonus):
        def novelties(self, steps):
            return torch.ones(len(steps), *self.shape)

    with pytest.raises(TypeError, match="Nothing must define novelty"):
        sea(Nothing)
    env = sea(Together)
    assert env.step(torch.ones(2, dtype=torch.int64)).extras["intrinsic"].tolist() == [1, 1]
    with pytest.raises(TypeError, match="Together defines novelties of several steps"):
        env.novelty(torch.ones(2, 1, 9), torch.ones(2, dtype=torch.int64), torch.ones(2, 1, dtype=torch.bool))


def paying(novelty):
    """Return the first bonuses `[B]` of a class with this method."""
    kind = type("Own", (Bonus,), {"novelty": lambda self, seen, actions, valid: novelty(seen)})
    return sea(kind, rows=2).step(torch.ones(4, dtype=torch.int64)).extras["intrinsic"]


@pytest.mark.parametrize(
    ("novelty", "found"),
    [
        (lambda seen: 1.0, "got 1.0"),
        (lambda seen: seen[..., 1].double(), r"got torch.float64 \[2, 2\]"),
        (lambda seen: seen[..., 1].flatten(), r"got torch.float32 \[4\]"),
    ],
)
def test_novelties_of_another_type_or_shape_are_errors(novelty, found):
    message = r"Own.novelty must return a tensor \[S, N\], torch.float32 \[2, 2\], " + found
    with pytest.raises(ValueError, match=message):
        paying(novelty)


def test_bonuses_that_are_nan_are_named(caplog):
    with pytest.raises(ValueError, match=r"Own.novelty returned NaN or Inf for every observation"):
        paying(lambda seen: seen[..., 1] * torch.nan)
    bonus = paying(lambda seen: torch.tensor([[1.0, torch.nan], [2.0, torch.inf]]))
    assert bonus.tolist() == [1.0, 0.0, 2.0, 0.0]
    assert "the bonus Own is NaN or Inf for some observations" in caplog.text


def test_a_bonus_that_nothing_reads_causes_a_warning(caplog):
    """A channel reads it, or it is in the reward; other channels and algorithms without any do not read it."""
    for env, config in (
        (sea(Counts), PPOConfig(reward_channels={"intrinsic": {}})),
        (sea(Counts, mixed=0.5), DQNConfig()),
    ):
        env.check_config(config)
    assert not caplog.text
    for config in (PPOConfig(reward_channels={"reward": {}}), PPOConfig(), DQNConfig()):
        caplog.clear()
        sea(Counts).check_config(config)
        assert "the bonus Counts has no effect: it is not added to the reward (mixed=0)" in caplog.text


def test_a_bonus_with_hindsight_causes_a_warning(caplog):
    sea(Counts, mixed=0.5).check_config(DQNConfig(hindsight="future"))
    assert caplog.messages == [
        "relabeled transitions of hindsight lack the reward of the wrapper Counts, so their returns mix two tasks: "
        "leave one of the two out"
    ]


def test_bonuses_are_divided_by_the_deviation_of_their_returns():
    plain, scaled = sea(Counts, rows=2), sea(Counts, rows=2, gamma=0.5)
    raw, got = torch.tensor(dive(plain, [1, 0, 1, 1])), torch.tensor(dive(scaled, [1, 0, 1, 1]))
    returns, total = [], torch.zeros(4)
    for bonus in raw:
        total = 0.5 * total + bonus
        returns.append(total.view(2, 2))
    for step in range(1, 4):
        spread = torch.cat(returns[: step + 1], 1).double().var(1, correction=0).add(1e-8).sqrt()
        assert torch.allclose(got[step].view(2, 2).double(), raw[step].view(2, 2) / spread.unsqueeze(1))


def test_a_mixed_bonus_is_added_to_the_reward_and_not_to_the_score():
    env = sea(Counts, mixed=0.25)
    step = env.step(torch.ones(2, dtype=torch.int64))
    assert torch.allclose(step.reward, step.score.float() + 0.25)


def test_the_metric_is_a_mean_from_the_first_step():
    env, resumed = sea(Counts, rows=2), sea(Counts, rows=2)
    assert env.metrics()["bonus/intrinsic"].tolist() == [0.0, 0.0]
    paid = torch.tensor(dive(env, [1, 0, 1, 1, 0])).view(5, 2, 2).mean(2)
    weights = 0.99 ** torch.arange(4.0, -1.0, -1.0)
    expected = (weights / weights.sum()) @ paid
    torch.testing.assert_close(env.metrics()["bonus/intrinsic"], expected)
    state = env.state_dict()
    resumed.load_state_dict(state)
    for each in (env, resumed):
        dive(each, [1, 1])
    assert torch.equal(resumed.metrics()["bonus/intrinsic"], env.metrics()["bonus/intrinsic"])
    del state["averaged"]  # as saved by earlier versions
    resumed.load_state_dict(state)
    assert torch.equal(resumed.metrics()["bonus/intrinsic"], resumed.recent)
