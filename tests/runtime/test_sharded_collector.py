import pytest
import torch
from gymnasium.spaces import Discrete

from operant.envs import TensorEnv, Wrapper, make
from operant.runtime.encoding import digest
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
    """Return actions that depend only on the environment's place and the time."""
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


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
        ("Acrobot-v1", {}),
        ("MountainCarContinuous-v0", {}),
        ("operant/CartPoleSwingUp-v0", {}),
        ("operant/DeepSea-v0", {"size": 5}),
        ("operant/BitFlip-v0", {"bits": 4}),
    ],
)
def test_environments_stepped_together_are_those_stepped_apart(task, options):
    count, size = 3, 5

    def played(apart):
        shards = Shards(count, Alone())
        envs = [make(task, size, SEEDS, first_row=k * size, env_kwargs=options) for k in range(count)]
        assert all(isinstance(env, TensorEnv) for env in envs)
        if apart:
            envs = [Wrapper(env) for env in envs]
        own = ShardedCollector(envs, seeds=len(SEEDS), shards=shards)
        space, draw = envs[0].action_space, torch.Generator().manual_seed(0)

        def act(obs, t):
            shape = (len(SEEDS), obs.shape[1])
            if isinstance(space, Discrete):
                return (obs,), torch.randint(int(space.n), shape, generator=draw)
            return (obs,), torch.randn(*shape, *space.shape, generator=draw)

        rollouts = [own.collect(steps, lambda _: act) for steps in (150, 900)]
        return rollouts, own.state_dict()

    (together, state), (apart, state_apart) = played(False), played(True)
    for one, other in zip(together, apart, strict=True):
        for name, value in vars(other).items():
            found = getattr(one, name)
            pairs = zip(found, value, strict=True) if name == "kept" else [(found, value)]
            pairs = [(found[key], value[key]) for key in value] if isinstance(value, dict) else pairs
            assert all(a is b or torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs), name
    assert sum(int(rollout.metrics["rollout/episodes"].sum()) for rollout in together) > 0
    assert digest(state) == digest(inner(state_apart))


def inner(state):
    """Return a state without its wrappers."""
    return {"shards": [{**part, "env": part["env"]["env"]} for part in state["shards"]]}


@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-6])
def test_policies_are_stacked_only_where_that_changes_no_bit(factor, monkeypatch):
    monkeypatch.setattr("operant.nets.agreement.ENOUGH", 1)
    calls = []

    def stacked(obs, t):
        assert obs.is_contiguous()
        calls.append(t)
        return (obs * factor,), torch.zeros(obs.shape[:2], dtype=torch.int64)

    def alone(rows):
        return lambda obs, t: ((obs.clone(),), torch.zeros(obs.shape[:2], dtype=torch.int64))

    def make_stacked():
        made.append(1)
        return stacked

    own, made = collector(2), []
    own.collect(3, alone)
    rollout, exact = own.collect(5, alone, make_stacked), collector(2)
    exact.collect(3, alone)
    assert calls == (list(range(5)) if factor == 1.0 else [0])
    assert torch.equal(rollout.kept[0], exact.collect(5, alone).kept[0])
    own.collect(1, alone, make_stacked)
    assert len(made) == (2 if factor == 1.0 else 1), "shards copy networks only where they are used"


def test_a_process_with_one_shard_makes_no_stacked_policies():
    def made():
        pytest.fail("there is nothing to stack")

    for rollout in team(2, lambda rank: collector(2, rank).collect(3, script, made)):
        assert len(rollout.rewards) == 3


def test_a_state_of_other_shards_is_rejected():
    with pytest.raises(StateError, match="'shards' has 2 parts, expected 4"):
        collector(4).load_state_dict(collector(2).state_dict())
    with pytest.raises(StateError, match="'shards' is missing"):
        collector(4).load_state_dict({})


def test_every_policy_gets_its_observations_in_memory_of_the_same_layout():
    """Kernels may round by strides and alignment, which a view of the observations of all shards would change."""
    places = []

    def act(rows):
        def decide(obs, t):
            places.append((obs.is_contiguous(), obs.storage_offset()))
            return (obs,), torch.zeros(obs.shape[:2], dtype=torch.int64)

        return decide

    shards = Shards(4, Alone())
    envs = [make("CartPole-v1", 1, (3,), first_row=number) for number in range(4)]
    ShardedCollector(envs, seeds=1, shards=shards).collect(3, act)
    assert places == [(True, 0)] * 12
