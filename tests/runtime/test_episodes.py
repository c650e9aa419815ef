import gymnasium
import pytest
import torch

from operant.envs.base import EndlessError, Step
from operant.runtime.episodes import Episodes

LENGTHS = torch.tensor([[2, 5, 1], [4, 3, 1]])  # of the first and of all later episodes of three rows


class Scripted:
    """Three rows of episodes of given lengths; observations are ``(row, episode, step)``, rewards ``10 row + step``.

    The odd row is truncated, the others terminate. With ``next_step`` an invalid transition follows each episode.
    """

    task = "Scripted-v0"
    observation_space = gymnasium.spaces.Box(-100, 100, (3,))
    action_space = gymnasium.spaces.Discrete(10)
    device = torch.device("cpu")
    rows = 3

    def __init__(self, *, next_step=False):
        self.always_valid, self.resets = not next_step, []

    def _obs(self):
        return torch.stack((torch.arange(3), self.episode, self.time), -1).float()

    def reset(self, seeds=None):
        self.resets.append(seeds)
        self.episode, self.time = torch.zeros(2, 3, dtype=torch.int64)
        self.over = torch.zeros(3, dtype=torch.bool)
        return self._obs()

    def step(self, actions):
        assert actions.shape == (3,)
        valid = ~self.over
        reward = torch.where(valid, 10.0 * torch.arange(3) + self.time, 1e6)
        self.time = torch.where(valid, self.time + 1, 0)
        ended = valid & (self.time >= LENGTHS[self.episode.clamp(max=1), torch.arange(3)])
        final = self._obs()
        self.episode = self.episode + ended
        self.over = ended & (not self.always_valid)
        self.time = torch.where(ended & self.always_valid, 0, self.time)
        odd = torch.arange(3) % 2 == 1
        score = reward + 100
        return Step(self._obs(), reward, ended & ~odd, ended & odd, final, valid, score)


def act(obs, t):
    return (torch.full(obs.shape[:2], t),), torch.zeros(obs.shape[:2], dtype=torch.int64)


@pytest.mark.parametrize("next_step", [False, True])
def test_every_row_plays_one_episode_and_nothing_after_it_is_valid(next_step):
    env = Scripted(next_step=next_step)
    rollout = Episodes(env, seeds=1, max_steps=9).collect([7, 8, 9], act)
    assert env.resets == [[7, 8, 9]]
    assert rollout.obs.shape == (5, 1, 3, 3)
    valid = rollout.valid[:, 0].T
    assert valid.tolist() == [[t < length for t in range(5)] for length in (2, 5, 1)]
    for row, length in enumerate((2, 5, 1)):
        assert rollout.rewards[:, 0, row].tolist() == [10.0 * row + t if t < length else 0.0 for t in range(5)]
        assert rollout.obs[:length, 0, row].tolist() == [[row, 0, t] for t in range(length)]
        assert rollout.final_obs[length - 1, 0, row].tolist() == [row, 0, length]
        ended = [t == length - 1 for t in range(5)]
        assert rollout.terminated[:, 0, row].tolist() == [row != 1 and end for end in ended]
        assert rollout.truncated[:, 0, row].tolist() == [row == 1 and end for end in ended]
    assert rollout.kept[0][:, 0, 0].tolist() == list(range(5))
    assert rollout.metrics["rollout/episodes"].tolist() == [3]
    assert rollout.metrics["rollout/episode_length"].tolist() == pytest.approx([8 / 3])
    totals = [0 + 1 + 200, 10 + 11 + 12 + 13 + 14 + 500, 20 + 100]
    assert rollout.metrics["rollout/episode_return"].tolist() == pytest.approx([sum(totals) / 3])


def test_seeds_that_wait_have_no_valid_step_and_nothing_to_report():
    rollout = Episodes(Scripted(), seeds=3, max_steps=9).collect([0, 0, 0], act, torch.tensor([True, False, True]))
    assert len(rollout.rewards) == 2, "the long episode of the waiting seed is not awaited"
    assert rollout.valid[:, :, 0].any(0).tolist() == [True, False, True]
    assert rollout.rewards[:, 1].eq(0).all()
    assert rollout.metrics["rollout/episodes"].tolist() == [1, 0, 1]
    assert rollout.metrics["rollout/episode_return"].isnan().tolist() == [False, True, False]


def test_a_lost_episode_is_not_learned_from_but_counted():
    class Losing(Scripted):
        """Loses the second row in its third step."""

        def step(self, actions):
            step = super().step(actions)
            lost = torch.tensor([False, len(self.steps) == 2, False])
            self.steps.append(step)
            return step._replace(truncated=step.truncated | lost, valid=step.valid & ~lost)

    env = Losing(next_step=True)
    env.steps = []
    rollout = Episodes(env, seeds=1, max_steps=9).collect([7, 8, 9], act)
    whole = Episodes(Scripted(next_step=True), seeds=1, max_steps=9).collect([7, 8, 9], act)
    assert not rollout.valid[:, 0, 1].any()
    for row in (0, 2):
        assert torch.equal(rollout.valid[:, 0, row], whole.valid[: len(rollout.valid), 0, row])
    assert rollout.metrics["health/lost_episodes"].tolist() == [1]
    assert rollout.metrics["rollout/episodes"].tolist() == [2]
    assert whole.metrics["rollout/episodes"].tolist() == [3]
    assert "health/lost_episodes" not in whole.metrics


def test_an_episode_without_an_end_is_an_error_that_names_the_row():
    episodes = Episodes(Scripted(), seeds=1, max_steps=4)
    with pytest.raises(
        EndlessError,
        match=r"environment 1 of Scripted-v0 has not ended its episode after 4 steps; .*--max-episode",
    ):
        episodes.collect([0, 0, 0], act)
    assert len(Episodes(Scripted(), seeds=1, max_steps=5).collect([0, 0, 0], act).rewards) == 5


def test_rows_that_cannot_be_shared_are_rejected():
    with pytest.raises(ValueError, match="3 environments cannot be shared equally by 2 seeds"):
        Episodes(Scripted(), seeds=2, max_steps=5)


def test_extra_tensors_of_steps_are_collected():
    class Extra(Scripted):
        def step(self, actions):
            step = super().step(actions)
            return step._replace(extras={"successor": step.final_obs})

    rollout = Episodes(Extra(), seeds=1, max_steps=9).collect([7, 8, 9], act)
    assert torch.equal(rollout.extras["successor"], rollout.final_obs)
