from contextlib import closing

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import operant
from operant.envs import EnvError, GymnasiumEnv, make
from operant.envs.checks import RewardCheck, blocked_rows, first_problem, needs_check, saying_once

BOX = spaces.Box(-1.0, 1.0, (2,))


class Scripted(gymnasium.Env):
    """Environment that returns the observations of a script, one after the other."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, script):
        self.observation_space, self.script = space, script

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_ = 0
        return self.script[0], {}

    def step(self, action):
        self.step_ += 1
        return self.script[self.step_], 0.0, False, False, {}


@pytest.fixture
def scripted():
    """Return a function that plays two copies of an environment with a script from reset to the end."""

    def play(space, *script):
        gymnasium.registry.pop("OperantTestScripted-v0", None)
        gymnasium.register("OperantTestScripted-v0", Scripted, kwargs={"space": space, "script": script})
        env = make("OperantTestScripted-v0", 2, [0])
        env.reset()
        for _ in script[1:]:
            env.step(torch.zeros(2, dtype=torch.int64))

    yield play
    gymnasium.registry.pop("OperantTestScripted-v0", None)


def box(*values):
    return np.array(values, np.float32)


def test_numbers_outside_the_box_and_nan_are_each_reported_once(scripted, caplog):
    scripted(BOX, box(0, 1), box(0, 1.5), box(9, 0), box(0, np.nan), box(np.nan, 0), box(9, 9))
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "OperantTestScripted-v0: observation[1] is 1.5, but its space is [-1, 1]" in texts[0]
    assert "(environment 0, 1 steps after reset(seed=" in texts[0]
    assert "observation[1] is nan (environment 0, 3 steps after" in texts[1]


@pytest.mark.parametrize(("reward", "said"), [(float("nan"), "nan"), (-float("inf"), "-inf")])
def test_a_reward_of_nan_or_inf_is_reported_once(reward, said, scripted, caplog, monkeypatch):
    step = Scripted.step
    monkeypatch.setattr(Scripted, "step", lambda self, action: (step(self, action)[0], reward, False, False, {}))
    with saying_once():  # once in training and once in an evaluation
        scripted(BOX, box(0, 1), box(0, 1), box(0, 1))
        scripted(BOX, box(0, 1), box(0, 1), box(0, 1))
    (text,) = (record.getMessage() for record in caplog.records)
    assert f"OperantTestScripted-v0: the reward is {said} (environment 0, 1 steps after reset(seed=" in text


def test_each_of_two_runs_in_a_process_reports_a_finding(caplog):
    def find():
        RewardCheck("Task-v0")(np.array([np.inf]), str)

    with saying_once():
        find()
        with saying_once():
            find()
            find()
        find()
    assert len(caplog.records) == 2


def test_finite_rewards_whose_sum_overflows_are_left_alone(caplog):
    check = RewardCheck("Task-v0")
    check(np.full(2, 1.7e308), str)
    assert not caplog.records
    check(np.array([1.7e308, -np.inf]), str)
    assert [record.getMessage() for record in caplog.records] == [
        "Task-v0: the reward is -inf (1); this warning appears once"
    ]


def test_observations_that_keep_to_their_space_are_left_alone(scripted, caplog):
    scripted(spaces.Box(-np.inf, np.inf, (2,)), box(0, 1e30), box(-np.inf, 3))
    scripted_dict = spaces.Dict({"a": BOX, "n": spaces.Discrete(3, start=-1)})
    scripted(scripted_dict, {"a": box(1, -1), "n": -1}, {"a": box(0, 0), "n": 1})
    assert not caplog.records


@pytest.mark.parametrize(
    ("space", "good", "bad", "message"),
    [
        (spaces.Discrete(4), 3, 4, r"observation is 4, not a member of Discrete\(4\) \(environment 0, 1 steps"),
        (spaces.Discrete(4, start=2), 2, 1, "observation is 1, not a member"),
        (
            spaces.MultiDiscrete([2, 3]),
            np.array([1, 2]),
            np.array([0, 3]),
            r"observation\[1\] is 3, not a member",
        ),
        (
            spaces.Dict({"n": spaces.Discrete(2), "b": BOX}),
            {"n": 0, "b": box(0, 0)},
            {"n": -1, "b": box(0, 0)},
            "n is -1",
        ),
    ],
)
def test_states_that_are_none_are_an_error(scripted, space, good, bad, message):
    with pytest.raises(EnvError, match=message):
        scripted(space, good, bad)


@pytest.mark.parametrize("first", [False, True])
def test_a_mask_that_allows_nothing_is_an_error(scripted, first):
    space = spaces.Dict({"a": BOX, "action_mask": spaces.MultiBinary(2)})
    open_, shut = ({"a": box(0, 0), "action_mask": np.full(2, allowed, np.int8)} for allowed in (1, 0))
    with pytest.raises(
        EnvError, match=f"'action_mask' allows no action .environment 0, {0 if first else 1} steps after"
    ):
        scripted(space, *((shut,) if first else (open_, shut)))


class Emptying(gymnasium.Env):
    """Every move can be played once; the episode ends when none is left."""

    observation_space = spaces.Dict({"a": BOX, "action_mask": spaces.MultiBinary(2)})
    action_space = spaces.Discrete(2)

    def seen(self):
        return {"a": box(0, 0), "action_mask": np.array(self.left, np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = [1, 1]
        return self.seen(), {}

    def step(self, action):
        self.left[action] = 0
        return self.seen(), 1.0, not any(self.left), False, {}


def test_the_last_observation_of_an_episode_needs_no_allowed_action(tmp_path):
    trained = operant.train(
        "ppo", Emptying, budget=64, num_envs=2, num_steps=16, num_minibatches=1, run=tmp_path / "run"
    )
    assert trained.evaluate(2).mean == 2


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_only_first_observations_need_an_allowed_action_where_an_environment_resets_itself(mode):
    vector = SyncVectorEnv([Emptying] * 2, autoreset_mode=mode)
    with closing(GymnasiumEnv(vector, seeds=[0, 1])) as env:
        env.reset()
        ended = [env.step(torch.tensor(actions)).terminated.any() for actions in ([0, 1], [1, 0])]
        assert ended == [False, True]


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (BOX, box(0, 0, 0), r"observation has shape \[3\], but its space has \[2\] after reset"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.5, 3.0]), "dtype float64, but its space has uint8"),
        (spaces.Dict({"a": BOX}), box(0, 0), "observation is a ndarray, but its space is a dictionary"),
        (spaces.Dict({"a": BOX, "b": BOX}), {"a": box(0, 0)}, "observation has no part 'b'"),
        (spaces.Dict({"a": BOX}), {"a": box(0)}, "observation a has shape"),
    ],
)
def test_wrong_shapes_and_types_are_named(scripted, space, obs, message):
    with pytest.raises(EnvError, match=message):
        scripted(space, obs)


def test_a_shape_that_is_wrong_after_a_step_alone_is_named(scripted):
    with pytest.raises(EnvError, match=r"shape \[1\], but its space has \[2\] after step"):
        scripted(BOX, box(0, 0), box(0))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((None, False, False), "the reward is None, expected a number, after step"),
        (("1", False, False), "the reward is '1', expected a number"),
        (([1.0, 2.0], False, False), r"the reward is \[1\.0, 2\.0\], expected a number"),
        ((1.0, None, False), "terminated is None, expected True or False, after step"),
        ((1.0, False, "no"), "truncated is 'no', expected True or False"),
    ],
)
def test_results_that_numpy_would_convert_are_errors(scripted, monkeypatch, result, message):
    monkeypatch.setattr(Scripted, "step", lambda self, action: (self.script[1], *result, {}))
    with pytest.raises(EnvError, match=message):
        scripted(BOX, box(0, 0), box(0, 0))


@pytest.mark.parametrize("reward", [1, True, np.float32(1.0), np.ones(()), torch.tensor(1.0)])
def test_numbers_of_any_type_are_rewards(scripted, monkeypatch, reward):
    monkeypatch.setattr(Scripted, "step", lambda self, action: (self.script[1], reward, np.bool_(False), 0, {}))
    scripted(BOX, box(0, 0), box(0, 0))


def test_every_choice_needs_an_action():
    mask = np.array([[1, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0]])
    assert blocked_rows(mask, spaces.MultiDiscrete([2, 3])) == [1, 2]
    assert blocked_rows(mask, spaces.Discrete(5)) == []
    assert blocked_rows(mask * 0, spaces.Discrete(5)) == [0, 1, 2]


def test_only_custom_environments_are_checked():
    assert not needs_check(gymnasium.registry["CartPole-v1"])
    assert not needs_check(gymnasium.registry["operant/Cliff-v0"])
    assert make("CartPole-v1", 1, [0], backend="gymnasium")._check is None
    assert first_problem(BOX, box(0, 0)) is None
