from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from operant.envs import GymnasiumEnv, RestoreError, begins_anew, make, without_episodes
from operant.streams import episode_seed, row_seeds

MODES = list(AutoresetMode)
SEEDS = [11, 22, 33, 44]


class Ledger(gymnasium.Env):
    """Environment whose observation is its row, episode and step, and whose reward shows the action that it received.

    Row b terminates after b + 2 steps and is truncated after 4: rows 0 and 1 terminate, row 2 does both, row 3 is cut.
    """

    def __init__(self, row, nested=False):
        self.row, self.nested, self.episode, self.count = row, nested, -1, 0
        box = spaces.Box(-1e9, 1e9, (3,), np.float64)
        self.observation_space = spaces.Dict({"at": box, "where": spaces.Dict({"row": spaces.Discrete(9)})})
        self.observation_space = self.observation_space if nested else box
        self.action_space = spaces.Discrete(2, start=5)

    def _obs(self):
        at = np.array([self.row, self.episode, self.count], np.float64)
        return {"at": at, "where": {"row": self.row}} if self.nested else at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._obs(), {"noise": {"of": "no interest"}}

    def step(self, action):
        assert action in (5, 6)
        self.count += 1
        return self._obs(), 10.0 * self.row + action, self.count >= self.row + 2, self.count >= 4, {"count": self.count}


class Walk(gymnasium.Env):
    """Random walk from a seed whose observation contains its whole past, and which ends at random."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, forgetful=False):
        self.forgetful, self.at = forgetful, np.zeros(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=None if self.forgetful else seed)
        self.at = self.np_random.normal(size=2)
        return self.at.copy(), {}

    def step(self, action):
        self.at = self.at * 1.01 + action[0] + self.np_random.normal(size=2)
        return self.at.copy(), float(self.at[0]), bool(self.np_random.random() < 0.05), False, {}


def ledgers(mode, nested=False):
    return SyncVectorEnv([partial(Ledger, row, nested) for row in range(4)], autoreset_mode=mode, copy=False)


def expected_ledger(steps, mode):
    """Compute in a loop over rows the content of each step: (obs, final_obs, reward, terminated, truncated, valid)."""
    at = [[row, 0, 0] for row in range(4)]
    ended, rows_of_steps = [False] * 4, []
    for _ in range(steps):
        rows = []
        for row in range(4):
            if mode is AutoresetMode.NEXT_STEP and ended[row]:
                at[row], ended[row] = [row, at[row][1] + 1, 0], False
                rows.append((list(at[row]), list(at[row]), 0.0, False, False, False))
                continue
            at[row][2] += 1
            final = list(at[row])
            terminated, truncated = final[2] >= row + 2, final[2] >= 4
            ended[row] = terminated or truncated
            if ended[row] and mode is not AutoresetMode.NEXT_STEP:
                at[row] = [row, final[1] + 1, 0]
            rows.append((list(at[row]), final, 10.0 * row + 6, terminated, truncated, True))
        rows_of_steps.append(rows)
    return rows_of_steps


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_every_field_of_every_step_is_as_predicted(mode, nested):
    env = GymnasiumEnv(ledgers(mode, nested), SEEDS)
    assert env.always_valid == (mode is not AutoresetMode.NEXT_STEP)
    assert env.action_space == spaces.Discrete(2)
    first = env.reset()
    first = first["at"] if nested else first
    assert first.tolist() == [[row, 0, 0] for row in range(4)]
    kept = [env.step(torch.ones(4, dtype=torch.int64)) for _ in range(12)]
    for step, rows in zip(kept, expected_ledger(12, mode), strict=True):
        obs, final_obs = step.obs, step.final_obs
        if nested:
            assert final_obs["where"]["row"].tolist() == obs["where"]["row"].tolist() == [0, 1, 2, 3]
            assert obs["where"]["row"].dtype == torch.int64
            obs, final_obs = obs["at"], final_obs["at"]
        for row, (now, final, reward, terminated, truncated, valid) in enumerate(rows):
            assert obs[row].tolist() == now
            assert final_obs[row].tolist() == final
            assert step.reward[row].item() == step.score[row].item() == reward
            assert (bool(step.terminated[row]), bool(step.truncated[row])) == (terminated, truncated)
            assert bool(step.valid[row]) == valid
        assert obs.dtype == step.reward.dtype == torch.float32
    both = [bool((step.terminated & step.truncated).any()) for step in kept]
    assert any(both)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_real_environments_equal_a_loop_over_single_ones(mode, asynchronous):
    """The reference resets each row by its own rules; episodes end when the pole falls or at a limit of 12 steps."""
    vector = AsyncVectorEnv if asynchronous else SyncVectorEnv
    make_one = partial(gymnasium.make, "CartPole-v1", max_episode_steps=12)
    rows, steps = 3, 50
    env = GymnasiumEnv(vector([make_one] * rows, autoreset_mode=mode), SEEDS[:rows], task="CartPole-v1")
    actions = torch.randint(2, (steps, rows), generator=torch.Generator().manual_seed(0))
    obs, taken = env.reset(), [env.step(action) for action in actions]
    env.close()
    ours = mode is AutoresetMode.DISABLED
    for row in range(rows):
        single, episode, over = make_one(), 0, False
        now, _ = single.reset(seed=episode_seed(SEEDS[row], 0) if ours else SEEDS[row])
        assert np.array_equal(obs[row].numpy(), now)
        for step, action in zip(taken, actions[:, row].tolist(), strict=True):
            if over:
                now, _ = single.reset()
                assert np.array_equal(step.obs[row].numpy(), now)
                assert (step.reward[row], step.terminated[row], step.truncated[row]) == (0, False, False)
                assert not step.valid[row]
                over = False
                continue
            final, reward, terminated, truncated, _ = single.step(action)
            assert np.array_equal(step.final_obs[row].numpy(), final)
            assert (step.reward[row], step.terminated[row], step.truncated[row]) == (reward, terminated, truncated)
            assert step.valid[row]
            now = final
            if terminated or truncated:
                episode += 1
                if mode is AutoresetMode.NEXT_STEP:
                    over = True
                else:
                    now, _ = single.reset(seed=episode_seed(SEEDS[row], episode) if ours else None)
            assert np.array_equal(step.obs[row].numpy(), now)
        assert episode > 2


def walks(vector, rows=4, **kwargs):
    env = vector([partial(Walk, **kwargs)] * rows, autoreset_mode=AutoresetMode.DISABLED)
    return GymnasiumEnv(env, row_seeds([3], rows, "environment"), task="Walk")


@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("steps", [0, 1, 17, 60])
def test_resume_is_exact_in_the_middle_of_episodes(vector, steps):
    actions = torch.rand(steps + 30, 4, 1, generator=torch.Generator().manual_seed(steps)) * 2 - 1
    env, other = walks(vector), walks(vector)
    obs = env.reset()
    for action in actions[:steps]:
        obs = env.step(action).obs
    state = env.state_dict()
    other.reset([5, 6, 7, 8])
    other.step(actions[0])
    assert torch.equal(other.load_state_dict(state), obs)
    again = other.state_dict()
    assert state["seeds"] == again["seeds"]
    for key in ("episode", "age", "actions", "obs"):
        assert torch.equal(again[key], state[key])
    for action in actions[steps:]:
        for ours, theirs in zip(env.step(action)[:7], other.step(action)[:7], strict=True):
            assert torch.equal(ours, theirs)
    assert steps < 60 or len(set(state["age"].tolist())) > 1
    env.close()
    other.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_mazes_that_change_resume_at_their_numbers_of_steps(vectorization):
    """Their episodes are short, so replaying the current one alone would make the change late."""
    maze = {"before": "S..\n...\n..G", "after": "S#.\n...\n..G"}
    kwargs = {**maze, "change_at": 150, "max_episode_steps": 20}
    env, other = (
        make("operant/ShortcutMaze-v0", 3, [4], vectorization=vectorization, env_kwargs=kwargs) for _ in range(2)
    )
    actions = torch.randint(4, (400, 3), generator=torch.Generator().manual_seed(2))
    env.reset()
    for action in actions[:110]:
        obs = env.step(action).obs
    other.reset()
    assert torch.equal(other.load_state_dict(env.state_dict()), obs)

    for action in actions[110:]:
        assert torch.equal(env.step(action).obs, other.step(action).obs)
    env.close()
    other.close()


def test_only_the_actions_of_current_episodes_are_kept():
    env = GymnasiumEnv(ledgers(AutoresetMode.DISABLED), SEEDS)
    env.reset()
    for _ in range(50):
        env.step(torch.ones(4, dtype=torch.int64))
        state = env.state_dict()
        assert len(state["actions"]) == state["age"].max() < 4


def test_a_row_resumes_although_another_ends_while_it_waits():
    """Row 0 starts its second episode late, so it plays recorded actions and ends while row 3 catches up."""
    make_one = partial(gymnasium.make, "CartPole-v1", max_episode_steps=40)

    def fresh():
        vector = SyncVectorEnv([make_one] * 2, autoreset_mode=AutoresetMode.DISABLED, copy=False)
        return GymnasiumEnv(vector, [1, 2], task="CartPole-v1")

    env = fresh()
    obs = env.reset()
    for _ in range(38):
        action = torch.stack((torch.tensor(1), (obs[1, 2] + 0.3 * obs[1, 3] > 0).long()))
        obs = env.step(action).obs
    state = env.state_dict()
    assert state["age"][0] < 12
    assert state["age"][1] == 38
    other = fresh()
    assert torch.equal(other.load_state_dict(state), obs)
    state["actions"][:, 1] = 1
    with pytest.raises(RuntimeError, match=r"environments \[1\].*ended the episode too early"):
        fresh().load_state_dict(state)


class Masked(gymnasium.Env):
    """Environment that allows one action at a time and asserts it; its episodes have 2 to 6 steps."""

    observation_space = spaces.Dict(left=spaces.Box(0, 9, (1,), np.float64), action_mask=spaces.MultiBinary(3))
    action_space = spaces.Discrete(3, start=4)

    def _obs(self):
        self.allowed = int(self.np_random.integers(3))
        return {"left": np.array([self.left]), "action_mask": np.eye(3, dtype=np.int8)[self.allowed]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = float(self.np_random.integers(2, 7))
        return self._obs(), {}

    def step(self, action):
        if action != self.allowed + 4:
            raise ValueError(f"{action} is against the rules")
        self.left -= 1
        return self._obs(), 1.0, self.left == 0, False, {}


def test_a_row_plays_by_the_rules_while_it_waits():
    env, again = (
        GymnasiumEnv(SyncVectorEnv([Masked] * 4, autoreset_mode=AutoresetMode.DISABLED), SEEDS) for _ in range(2)
    )
    obs = env.reset()
    for _ in range(30):
        obs = env.step(obs["action_mask"].long().argmax(1)).obs
        resumed = again.load_state_dict(env.state_dict())
        assert torch.equal(resumed["left"], obs["left"])
        assert torch.equal(resumed["action_mask"], obs["action_mask"])


class Particular(gymnasium.Env):
    """Environment that accepts only members of its action space, and observes the last one."""

    def __init__(self, actions):
        self.action_space = actions
        self.observation_space = spaces.Box(-9.0, 9.0, actions.shape)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action)), action
        self.steps += 1
        return np.asarray(action, np.float32), 0.0, self.steps == 3, False, {}


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(3, start=-1), [[2], [0]]),
        (spaces.MultiDiscrete([[2], [3]], start=[[4], [5]]), [[1, 2], [0, 1]]),
        (spaces.MultiBinary((1, 2)), [[0, 1], [1, 1]]),
        (spaces.Box(-1.0, 1.0, (2, 2)), [[0.1, 0.2, 0.3, 0.4], [-1.0, 1.0, 0.5, 0.0]]),
        (spaces.Box(-1.0, 1.0, (), np.float64), [[0.25], [-0.5]]),
    ],
    ids=str,
)
def test_actions_of_any_shape_are_written_and_played_again(space, actions):
    def particular():
        vector = SyncVectorEnv([lambda: Particular(space)] * 2, autoreset_mode=AutoresetMode.DISABLED)
        return GymnasiumEnv(vector, [1, 2])

    env, again = particular(), particular()
    tensor = torch.tensor(actions)
    tensor = tensor if env.action_space.shape else tensor.squeeze(1)
    assert torch.equal(env.reset(), again.load_state_dict(env.state_dict()))
    for _ in range(4):
        step = env.step(tensor)
        assert torch.equal(again.load_state_dict(env.state_dict()), step.obs)
    first = torch.tensor(getattr(space, "start", 0)).flatten()
    assert torch.equal(step.final_obs.reshape(2, -1), (torch.tensor(actions) + first).float())


class Scaling(Particular):
    """Environment that writes into the actions that it receives."""

    def step(self, action):
        action *= 0.5
        return super().step(action)


def test_an_environment_may_write_into_its_actions():
    def scaling():
        space = spaces.Box(-1.0, 1.0, (2,))
        vector = SyncVectorEnv([lambda: Scaling(space)] * 2, autoreset_mode=AutoresetMode.DISABLED)
        return GymnasiumEnv(vector, [1, 2])

    env, again = scaling(), scaling()
    env.reset()
    for _ in range(4):
        step = env.step(torch.full((2, 2), 0.8))
        assert torch.equal(again.load_state_dict(env.state_dict()), step.obs)
        assert torch.equal(again.load_state_dict(env.state_dict()), step.obs)


def test_an_environment_that_is_not_deterministic_is_found_out():
    env = walks(SyncVectorEnv, forgetful=True)
    env.reset()
    env.step(torch.zeros(4, 1))
    state = env.state_dict()
    with pytest.raises(
        RestoreError, match=r"Walk cannot be restored: environments \[.*not deterministic.*--new-episodes"
    ):
        walks(SyncVectorEnv, forgetful=True).load_state_dict(state)
    anew = walks(SyncVectorEnv, forgetful=True)
    anew.load_state_dict(without_episodes({"deep": [state]})["deep"][0])
    assert anew.state_dict()["age"].tolist() == [0] * 4


def test_without_saved_episodes_new_ones_begin():
    env, other = walks(SyncVectorEnv), walks(SyncVectorEnv)
    first = env.reset()
    assert not begins_anew(env)
    for step in torch.zeros(3, 4, 1):
        env.step(step)
    state = env.state_dict()
    assert state["episode"].tolist() == [0] * 4
    assert torch.equal(other.load_state_dict(without_episodes(state)), first)
    assert begins_anew(other)
    other.load_state_dict(state)
    assert not begins_anew(other)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_environments_that_reset_themselves_cannot_be_saved(mode):
    env = GymnasiumEnv(ledgers(mode), SEEDS)
    env.reset()
    with pytest.raises(RuntimeError, match=f"{mode.name}.*AutoresetMode.DISABLED"):
        env.state_dict()
    with pytest.raises(RuntimeError, match=f"{mode.name}.*AutoresetMode.DISABLED"):
        env.load_state_dict({})


def test_an_environment_with_one_stream_for_all_rows_is_seeded_by_all_of_them():
    def fresh(seeds):
        return GymnasiumEnv(gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point"), seeds)

    env = fresh([1, 2, 3])
    assert not env.always_valid
    assert env.task == "CartPole-v1"
    first = env.reset()
    assert torch.equal(fresh([1, 2, 3]).reset(), first)
    assert not torch.equal(fresh([1, 2, 4]).reset(), first)
    for _ in range(40):
        step = env.step(torch.ones(3, dtype=torch.int64))
        assert torch.equal(step.valid, step.reward == 1)


class Batched(gymnasium.vector.VectorEnv):
    """Vector environment that resets in the same step and returns its final observations as one batch."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.SAME_STEP}
    num_envs = 2
    single_observation_space = spaces.Dict({"x": spaces.Box(-9, 9, (1,), np.float32)})
    single_action_space = spaces.MultiDiscrete([2, 3], start=[1, -1])
    silent, kind = False, np.float32

    def reset(self, *, seed=None, options=None):
        return {"x": np.zeros((2, 1), np.float32)}, {}

    def step(self, actions):
        assert actions.tolist() == [[2, 1], [1, -1]]
        ended = np.array([False, True])
        info = {} if self.silent else {"final_obs": {"x": np.array([[7.0], [8.0]], self.kind)}, "_final_obs": ended}
        return {"x": np.array([[1.0], [2.0]], self.kind)}, np.ones(2), ended, np.zeros(2, np.bool_), info


def test_final_observations_may_come_as_one_batch():
    env = GymnasiumEnv(Batched(), [1, 2])
    env.reset()
    step = env.step(torch.tensor([[1, 2], [0, 0]]))
    assert step.obs["x"].tolist() == [[1.0], [2.0]]
    assert step.final_obs["x"].tolist() == [[1.0], [8.0]]
    assert env.action_space == spaces.MultiDiscrete([2, 3])
    Batched.silent = True
    with pytest.raises(RuntimeError, match=r"without info\['final_obs'\]"):
        env.step(torch.tensor([[1, 2], [0, 0]]))


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64])
def test_final_observations_may_be_unsigned_numbers(kind, monkeypatch):
    monkeypatch.setattr(Batched, "single_observation_space", spaces.Dict({"x": spaces.Box(0, 9, (1,), kind)}))
    monkeypatch.setattr(Batched, "silent", False)
    monkeypatch.setattr(Batched, "kind", kind)
    env = GymnasiumEnv(Batched(), [1, 2])
    env.reset()
    assert env.step(torch.tensor([[1, 2], [0, 0]])).final_obs["x"].tolist() == [[1], [8]]


def test_results_are_not_overwritten_by_later_steps():
    env = GymnasiumEnv(ledgers(AutoresetMode.DISABLED), SEEDS)
    first = env.reset()
    steps = [env.step(torch.ones(4, dtype=torch.int64)) for _ in range(3)]
    assert first[:, 2].tolist() == [0, 0, 0, 0]
    assert [step.final_obs[3, 2].item() for step in steps] == [1, 2, 3]


def test_reset_takes_new_seeds_and_keeps_them():
    env = walks(SyncVectorEnv, rows=2)
    first = env.reset([8, 9])
    env.step(torch.zeros(2, 1))
    assert torch.equal(env.reset(), first)
    assert not torch.equal(env.reset([8, 10])[1], first[1])


def test_wrong_arguments_are_named():
    env = GymnasiumEnv(ledgers(AutoresetMode.DISABLED), SEEDS)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(torch.ones(4, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="reset"):
        env.state_dict()
    env.reset()
    with pytest.raises(ValueError, match=r"shape \[4, 1\], but \[4\]"):
        env.step(torch.ones(4, 1, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"torch.float32.*torch.int64"):
        env.step(torch.ones(4))
    with pytest.raises(ValueError, match="4 non-negative seeds"):
        env.reset([1, 2])
    with pytest.raises(ValueError, match="'Walk', but this environment is 'SyncVectorEnv'"):
        env.load_state_dict({"task": "Walk"})
    odd = ledgers(AutoresetMode.DISABLED)
    odd.metadata["autoreset_mode"] = "Sometimes"
    with pytest.raises(ValueError, match=r"'Sometimes'.*DISABLED"):
        GymnasiumEnv(odd, SEEDS)
    del odd.metadata["autoreset_mode"]
    with pytest.raises(ValueError, match="None"):
        GymnasiumEnv(odd, SEEDS)
