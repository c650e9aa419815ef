import pytest
import torch

from operant.envs import make
from operant.runtime.rollouts import Collector
from operant.runtime.sharded_collector import ShardedCollector
from operant.runtime.shards import Alone, Shards
from operant.state import StateError
from runtime.teams import team

SEEDS, ROWS, STEPS = (3, 5), 4, 40


def collector(count, group=None):
    shards = Shards(count, group or Alone())
    size = ROWS // count
    envs = [make("CartPole-v1", size, SEEDS, first_row=number * size) for number in shards.mine]
    return ShardedCollector(envs, seeds=len(SEEDS), shards=shards)


def script(rows):
    """Return actions that depend on the place of an environment and on the time alone."""
    places = torch.arange(ROWS)[rows].expand(len(SEEDS), -1)

    def act(obs, t):
        actions = (places + t) % 2
        return (actions, obs[..., 0]), actions

    return act


def test_together_shards_are_the_rollout_of_all_environments():
    whole = Collector(make("CartPole-v1", ROWS, SEEDS), seeds=len(SEEDS)).collect(STEPS, script(slice(0, ROWS)))
    divided = collector(2).collect(STEPS, script)
    for name in ("obs", "last_obs", "rewards", "terminated", "truncated", "final_obs"):
        torch.testing.assert_close(getattr(divided, name), getattr(whole, name))
    assert divided.valid is None
    assert [part.shape for part in divided.kept] == [part.shape for part in whole.kept]
    assert divided.metrics.keys() == whole.metrics.keys()
    for name, value in whole.metrics.items():
        torch.testing.assert_close(divided.metrics[name], value)


@pytest.mark.parametrize("size", [2, 4])
def test_every_process_has_the_same_rollout(size):
    alone = collector(4).collect(STEPS, script)
    for rollout in team(size, lambda rank: collector(4, rank).collect(STEPS, script)):
        assert torch.equal(rollout.obs, alone.obs)
        assert torch.equal(rollout.rewards, alone.rewards)


def test_a_state_knows_nothing_of_processes():
    def begin(rank):
        own = collector(4, rank)
        own.collect(STEPS, script)
        return own.state_dict(), own.collect(STEPS, script).obs

    saved, obs = team(2, begin)[0]
    alone = collector(4)
    alone.load_state_dict(saved)
    assert torch.equal(alone.collect(STEPS, script).obs, obs)


def test_a_state_of_other_shards_is_refused():
    with pytest.raises(StateError, match="'shards' has 2 parts but 4 are needed"):
        collector(4).load_state_dict(collector(2).state_dict())
    with pytest.raises(StateError, match="'shards' is missing"):
        collector(4).load_state_dict({})
