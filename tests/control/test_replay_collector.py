import pytest
import torch

from control.learners import next_step, poison, same
from control.probes import Pendular
from operant.control.replay_collector import Experience
from operant.envs import make
from operant.envs.adapter import without_episodes
from operant.runtime.checkpoints import Checkpoints
from operant.runtime.checkpoints import load as load_checkpoint
from operant.state import clone
from operant.streams import row_seeds


def experience(seeds=(3, 5), rows=4, *, wrap=None, capacity=40, env=None):
    if env is None:
        env = make("CartPole-v1", rows, seeds)
    return Experience(
        env if wrap is None else wrap(env),
        seeds=seeds,
        rows=rows,
        capacity=capacity,
        to_env=lambda actions: actions,
        random=lambda shape, generator: torch.randint(2, shape, generator=generator),
    )


def test_what_happened_is_remembered():
    memory = experience(capacity=1000)
    seen = []

    def act(obs, t):
        seen.append(obs)
        return torch.full(obs.shape[:2], t % 2)

    metrics = memory.collect(30, act)
    assert memory.replay.size == 30 * 4
    batch = memory.replay.take(torch.arange(120).expand(2, -1), gamma=0.9)
    assert torch.equal(batch.obs, torch.stack(seen).movedim(1, 0).flatten(1, 2))
    assert torch.equal(batch.actions[0], (torch.arange(120) // 4) % 2)
    assert batch.terminated.sum(1).tolist() == metrics["rollout/episodes"].tolist()
    assert metrics["health/dropped_transitions"].tolist() == [0, 0]
    assert batch.weights is None


def test_successors_at_a_truncation_are_the_final_observations():
    memory = experience(env=Pendular(row_seeds((3, 5), 4, "environment")), capacity=400)
    memory.collect(20, lambda obs, _: torch.zeros(obs.shape[:2], dtype=torch.int64))
    batch = memory.replay.take(torch.arange(80).expand(2, -1), gamma=0.9)
    assert torch.equal(batch.next_obs, 1.0 - batch.obs), "the two states take turns, also where an episode is cut"
    assert not batch.terminated.any()


def test_random_actions_belong_to_the_seed():
    block, alone = experience((3, 5, 8)), experience((5,))
    for memory in (block, alone):
        memory.explore(7)
        memory.explore(5)
    assert torch.equal(block.replay.fields["actions"][:, 1:2], alone.replay.fields["actions"])
    assert torch.equal(block.replay.fields["next_obs"][:, 1:2], alone.replay.fields["next_obs"])
    assert block.replay.fields["actions"].float().std() > 0.4
    assert torch.equal(block.sample(9, gamma=0.9).index[1:2], alone.sample(9, gamma=0.9).index)


def test_a_number_that_is_not_finite_is_counted_for_its_seed():
    memory = experience(wrap=poison(row=5, when=3))
    counts = [memory.explore(2)["health/dropped_transitions"].tolist() for _ in range(4)]
    assert counts == [[0, 0], [0, 1], [0, 0], [0, 0]]


def test_transitions_of_autoreset_are_held_without_weight():
    memory = experience(wrap=next_step(1e6), capacity=400)
    metrics = memory.explore(40)
    batch = memory.replay.take(torch.arange(160).expand(2, -1), gamma=0.9)
    assert metrics["health/dropped_transitions"].tolist() == [0, 0]
    dummies = (batch.weights == 0).sum(1)
    assert (dummies >= metrics["rollout/episodes"] - 4).all()
    assert dummies.min() > 0
    assert not batch.obs[batch.weights == 0].any()
    live = batch.weights > 0
    assert batch.obs[live].abs().max() < 1e6


def test_experience_goes_on_bit_for_bit(tmp_path):
    first, second = experience(), experience()
    first.explore(13)
    first.sample(8, gamma=0.9)
    second.load_state_dict(load_checkpoint(Checkpoints(tmp_path / "checkpoints").save(first.state_dict(), 1)))
    for memory in (first, second):
        memory.explore(5)
    one, other = first.sample(16, gamma=0.9, n=3), second.sample(16, gamma=0.9, n=3)
    assert torch.equal(one.index, other.index)
    assert torch.equal(one.rewards, other.rewards)
    assert same(first.state_dict(), second.state_dict())


def test_windows_end_where_new_episodes_begin_after_loading():
    first, second = (experience(env=make("CartPole-v1", 4, (3, 5), backend="gymnasium")) for _ in range(2))
    first.explore(5)
    second.load_state_dict(without_episodes(clone(first.state_dict())))
    second.explore(5)
    newest = torch.arange(4 * 4, 5 * 4).expand(2, -1)
    one, other = (memory.replay.take(newest, gamma=0.9, n=3) for memory in (first, second))
    assert torch.equal(one.next_obs, other.next_obs)
    assert torch.equal(one.rewards, other.rewards)
    assert torch.equal(one.terminated, other.terminated)


def test_another_number_of_rows_is_refused():
    with pytest.raises(ValueError, match="2 seeds with 3 environments each need 6 rows, but the environment has 8"):
        experience(rows=3, env=make("CartPole-v1", 4, (3, 5)))
