import gymnasium
import numpy as np
import pytest
import torch

from operant.envs import check_batch_env, make
from operant.envs.tensor import DeepSea, KeyDoor
from operant.mdp import MDP, solve

SEEDS = (3, 5)


@pytest.mark.parametrize("mapping_seed", [None, 7])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_every_step_is_that_of_the_finite_environment(size, mapping_seed):
    options = {"size": size, "mapping_seed": mapping_seed}
    rows = 8
    env = make("operant/DeepSea-v0", rows // 2, SEEDS, backend="tensor", dtype=torch.float64, env_kwargs=options)
    theirs = [gymnasium.make("operant/DeepSea-v0", **options) for _ in range(rows)]
    obs = env.reset()
    assert obs.tolist() == [single.reset()[0] for single in theirs]
    rng = np.random.default_rng(0)
    for _ in range(4 * size + 3):
        actions = rng.integers(0, 2, rows)
        step = env.step(torch.from_numpy(actions))
        for row, single in enumerate(theirs):
            seen, reward, terminated, truncated, _ = single.step(int(actions[row]))
            assert step.final_obs[row] == seen
            assert step.reward[row] == pytest.approx(reward, abs=1e-15)
            assert (step.terminated[row], step.truncated[row]) == (terminated, truncated)
            assert step.obs[row] == (single.reset()[0] if terminated else seen)


@pytest.mark.parametrize("mapping_seed", [None, 4])
def test_the_solvers_policy_earns_the_best_return(mapping_seed):
    options = {"size": 9, "mapping_seed": mapping_seed}
    mdp = MDP.from_gymnasium(gymnasium.make("operant/DeepSea-v0", **options))
    solution = solve(mdp, gamma=1.0)
    assert solution.values[0] == pytest.approx(0.99)
    env, total = make("operant/DeepSea-v0", 1, (0,), backend="tensor", env_kwargs=options), 0.0
    obs = env.reset()
    for _ in range(9):
        step = env.step(torch.from_numpy(np.asarray(solution.policy)[obs.numpy()]))
        obs, total = step.obs, total + step.reward.item()
    assert step.terminated.item()
    assert obs.tolist() == [0]
    assert total == pytest.approx(0.99, abs=1e-6)


def test_it_keeps_the_contract_of_batch_environments():
    check_batch_env(lambda: make("operant/DeepSea-v0", 2, SEEDS, env_kwargs={"size": 3}), seeds=SEEDS, steps=20)


def test_both_backends_show_the_same_and_the_tensors_come_first():
    ours = make("operant/DeepSea-v0", 2, SEEDS, env_kwargs={"size": 4, "mapping_seed": 1})
    theirs = make("operant/DeepSea-v0", 2, SEEDS, backend="gymnasium", env_kwargs={"size": 4, "mapping_seed": 1})
    assert isinstance(ours, DeepSea)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    first, second = ours.reset(), theirs.reset()
    assert first.dtype == second.dtype
    assert first.shape == second.shape
    theirs.close()


def test_the_operations_of_other_devices_give_the_same(torch_library):
    def play(env):
        rng, steps = np.random.default_rng(1), []
        env.reset()
        for _ in range(9):
            step = env.step(torch.from_numpy(rng.integers(0, 2, 3)))
            steps.append(torch.stack((step.obs.float(), step.reward, step.terminated.float())))
        return torch.stack(steps)

    assert torch.equal(play(DeepSea([0, 1, 2], size=4)), play(torch_library(DeepSea, [0, 1, 2], size=4)))


@pytest.mark.parametrize(("size", "layout_seed"), [(5, 0), (6, 3), (8, 1)])
def test_every_step_of_the_rooms_is_that_of_the_finite_environment(size, layout_seed):
    options, rows = {"size": size, "layout_seed": layout_seed}, 6
    env = make("operant/KeyDoor-v0", rows // 2, SEEDS, backend="tensor", dtype=torch.float64, env_kwargs=options)
    theirs = [gymnasium.make("operant/KeyDoor-v0", **options) for _ in range(rows)]
    assert env.reset().tolist() == [single.reset()[0] for single in theirs]
    rng, ends, successes = np.random.default_rng(0), 0, 0
    for _ in range(12 * size**2):
        actions = rng.integers(0, 5, rows)
        step = env.step(torch.from_numpy(actions))
        for row, single in enumerate(theirs):
            seen, reward, terminated, truncated, _ = single.step(int(actions[row]))
            assert (step.final_obs[row], step.reward[row]) == (seen, reward)
            assert (step.terminated[row], step.truncated[row]) == (terminated, truncated)
            ends, successes = ends + truncated, successes + terminated
            assert step.obs[row] == (single.reset()[0] if terminated or truncated else seen)
    assert successes > 0 if size == 5 else ends + successes > 0, "goals are reached, or episodes are truncated"


def test_the_rooms_keep_the_contract_and_compute_the_same_on_other_devices(torch_library):
    check_batch_env(lambda: make("operant/KeyDoor-v0", 2, SEEDS, env_kwargs={"size": 5}), seeds=SEEDS, steps=40)
    ours, others = KeyDoor([0, 1], size=5), torch_library(KeyDoor, [0, 1], size=5)
    for action in torch.from_numpy(np.random.default_rng(2).integers(0, 5, (300, 2))):
        one, other = ours.step(action), others.step(action)
        assert torch.equal(one.obs, other.obs)
        assert torch.equal(one.reward, other.reward)


def test_actions_in_states_with_large_numbers_are_not_rounded():
    """The place of a state and an action in the tables may be odd and above 2^24, which float32 lacks."""

    class Table:
        def __getitem__(self, places):
            self.places = places
            return np.zeros(len(places), np.float32)

    env, table = DeepSea([0], size=1), Table()
    env._state[:] = 2**23 + 3
    env._successors = env._rewards = env._terminates = table
    env._advance(np.ones(1, np.float32))
    assert table.places.tolist() == [2 * (2**23 + 3) + 1]


def test_sizes_out_of_range_are_named():
    with pytest.raises(ValueError, match=r"size must be at least 5, .* got 4"):
        KeyDoor([0], size=4)
    with pytest.raises(ValueError, match="size must be at most 2364 on tensors, got 2365"):
        KeyDoor([0], size=2365)
    with pytest.raises(ValueError, match=r"size must be at least 1, .* got 0"):
        DeepSea([0], size=0)
    with pytest.raises(ValueError, match="size must be at most 4095 on tensors, got 5000"):
        DeepSea([0], size=5000)
