import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from operant.envs import Wrapper, make, start
from operant.runtime.predicting import Predictor


class Shown(gymnasium.Env):
    """Environment with the given spaces."""

    def __init__(self, seen, done):
        self.observation_space, self.action_space = seen, done


@pytest.fixture
def predictor():
    """Return the predictor of a policy of two seeds in an environment with the given spaces."""
    registered = []

    def make(policy, seen, done, **options):
        name = f"Shown{len(registered)}-v0"
        gymnasium.register(name, lambda: Shown(seen, done))
        registered.append(name)
        return Predictor(policy, name, seeds=2, **options)

    yield make
    for name in registered:
        del gymnasium.registry[name]


class Scripted:
    """Policy with one action per seed; records its observations, and counts its calls in its hidden state."""

    def __init__(self, *actions, recurrent=False):
        self.actions, self.recurrent, self.seen, self.noise = torch.tensor(actions), recurrent, None, None

    def act(self, obs, hidden_state, noise):
        self.seen, self.noise = obs, noise
        leaf = obs
        while isinstance(leaf, dict):
            leaf = next(iter(leaf.values()))
        rows = leaf.shape[1]
        actions = self.actions[:, None].expand(2, rows, *self.actions.shape[1:])
        if not self.recurrent:
            return actions, None
        hidden_state = torch.zeros(2, rows, 3) if hidden_state is None else hidden_state
        return actions, hidden_state + torch.tensor([1.0, 10.0]).view(2, 1, 1)


BOX = spaces.Box(-1.0, 1.0, (3,))


def test_one_observation_gets_one_action_of_the_space(predictor):
    policy = Scripted(0, 1)
    acting = predictor(policy, BOX, space := spaces.Discrete(2))
    obs = np.array([0.25, 0.5, 1.0])
    for index in range(2):
        action, hidden_state = acting.predict(obs, seed_index=index)
        assert (action, hidden_state) == (index, None)
        assert space.contains(action)
    assert (policy.seen.dtype, policy.seen.tolist()) == (torch.float32, [[obs.tolist()]] * 2)


def test_a_batch_gets_an_action_a_row(predictor):
    policy = Scripted(0, 1)
    actions, _ = predictor(policy, BOX, spaces.Discrete(2)).predict(np.eye(3)[:2], seed_index=1)
    assert actions.tolist() == [1, 1]
    assert policy.seen.tolist() == [np.eye(3)[:2].tolist()] * 2


def test_discrete_actions_count_from_where_the_space_does(predictor):
    actions, _ = predictor(Scripted(0, 2), BOX, spaces.Discrete(3, start=5)).predict(np.zeros((4, 3)), seed_index=1)
    assert actions.tolist() == [7] * 4


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (spaces.MultiDiscrete([2, 3], start=[0, 5]), ([0, 0], [1, 2]), [1, 7]),
        (spaces.MultiBinary((2, 1)), ([0, 0], [1, 0]), [[1], [0]]),
        (spaces.Box(0.0, 4.0, (2, 1)), ([0.0, 0.0], [1.0, 3.0]), [[1.0], [3.0]]),
    ],
    ids=str,
)
def test_actions_have_the_shape_of_the_space(predictor, space, actions, expected):
    acting = predictor(Scripted(*actions), BOX, space)
    action, _ = acting.predict(np.zeros(3), seed_index=1)
    assert action.tolist() == expected
    assert space.contains(action)
    assert acting.predict(np.zeros((4, 3)), seed_index=1)[0].tolist() == [expected] * 4


def test_continuous_actions_lie_in_the_space_in_its_own_precision(predictor):
    space = spaces.Box(np.array([0.1, -5.3]), np.array([1.7, 20.9]), dtype=np.float64)
    low, high = space.low.astype(np.float32).tolist(), space.high.astype(np.float32).tolist()
    acting = predictor(Scripted(low, high), BOX, space)
    for index in range(2):
        action, _ = acting.predict(np.zeros(3), seed_index=index)
        assert space.contains(action)


def test_a_dictionary_with_a_mask(predictor):
    policy = Scripted(0, 1)
    seen = spaces.Dict(x=BOX, action_mask=spaces.MultiBinary(2))
    acting = predictor(policy, seen, spaces.Discrete(2))
    one = {"x": np.ones(3), "action_mask": np.array([0, 1], np.int8)}
    assert acting.predict(one, seed_index=1)[0] == 1
    assert policy.seen["action_mask"].tolist() == [[[0, 1]]] * 2
    many = {key: np.stack([part] * 5) for key, part in one.items()}
    assert acting.predict(many, seed_index=1)[0].tolist() == [1] * 5
    assert {key: tuple(part.shape) for key, part in policy.seen.items()} == {"x": (2, 5, 3), "action_mask": (2, 5, 2)}


def test_the_hidden_state_is_passed_from_call_to_call(predictor):
    acting = predictor(Scripted(0, 1, recurrent=True), BOX, spaces.Discrete(2))
    hidden_state = None
    for steps in (10.0, 20.0):
        _, hidden_state = acting.predict(np.zeros(3), hidden_state, seed_index=1)
        assert hidden_state.tolist() == [steps] * 3
    batch = np.zeros((2, 3))
    _, hidden_state = acting.predict(batch, seed_index=1)
    hidden_state[0] = 0
    assert acting.predict(batch, hidden_state, seed_index=1)[1].tolist() == [[10.0] * 3, [20.0] * 3]
    with pytest.raises(ValueError, match="hidden_state has 2 rows, but there are 3 observations"):
        acting.predict(np.zeros((3, 3)), hidden_state)


def test_noise_is_drawn_for_as_many_rows_as_there_are(predictor):
    policy = Scripted(0, 1)
    acting = predictor(policy, BOX, spaces.Discrete(2))
    acting.predict(np.zeros((4, 3)), noise=torch.ones)
    assert tuple(policy.noise.shape) == (2, 4)
    acting.predict(np.zeros((4, 3)))
    assert policy.noise is None


class Summed(gymnasium.ObservationWrapper):
    """Wrapper that observes the sum of a pair of numbers."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Discrete(9)

    def observation(self, observation):
        return int(sum(observation))


def test_observations_of_a_wrapped_environment_are_those_of_the_bare_one(predictor):
    policy = Scripted(0, 1)
    pair = spaces.Tuple((spaces.Discrete(5), spaces.Discrete(5)))
    acting = predictor(policy, pair, spaces.Discrete(2), wrap=Summed)
    assert acting.predict((3, 4), seed_index=1)[0] == 1
    assert policy.seen.tolist() == [[7]] * 2
    acting.predict((np.array([1, 2, 3]), np.array([0, 1, 4])))
    assert policy.seen.tolist() == [[1, 3, 7]] * 2


@pytest.mark.parametrize(
    ("seen", "observations", "message"),
    [
        (BOX, np.zeros(4), r"have shape \[4\], but one of Shown0-v0 has \[3\], and a batch of them \['N', 3\]"),
        (BOX, np.zeros((0, 3)), r"have shape \[0, 3\]"),
        (BOX, np.zeros((2, 2, 3)), r"have shape \[2, 2, 3\]"),
        (spaces.Dict(a=BOX, b=BOX), {"a": np.zeros(3)}, r"must be a dictionary with the parts \['a', 'b'\], got {'a'"),
        (spaces.Dict(a=BOX, b=BOX), np.zeros(3), r"must be a dictionary with the parts \['a', 'b'\], got array"),
        (spaces.Dict(a=BOX, b=BOX), {"a": np.zeros(3), "b": np.zeros((2, 3))}, "differ in their number of rows"),
        (spaces.Discrete(4, start=2), "a", r"must be members of Discrete\(4, start=2\), got 'a'"),
        (spaces.Discrete(4, start=2), 6, r"must be members of Discrete\(4, start=2\), got 6"),
        (spaces.Discrete(4, start=2), 2.5, r"must be members of Discrete\(4, start=2\), got 2.5"),
        (spaces.Discrete(4, start=2), np.array([2, 5, 1]), r"must be members of Discrete\(4, start=2\), got 1"),
        (
            spaces.MultiDiscrete([2, 3]),
            np.array([[1, 2], [0, 3]]),
            r"must be members of MultiDiscrete\(\[2 3\]\), got 3",
        ),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": -1}, r"must be members of Discrete\(2\), got -1"),
    ],
)
def test_observations_of_another_form_are_rejected(predictor, seen, observations, message):
    with pytest.raises(ValueError, match=message):
        predictor(Scripted(0, 1), seen, spaces.Discrete(2)).predict(observations)


@pytest.mark.parametrize("index", [-1, 2])
def test_an_unknown_seed_is_rejected(predictor, index):
    with pytest.raises(ValueError, match=f"seed_index must lie between 0 and 1, as there are 2 seeds; got {index}"):
        predictor(Scripted(0, 1), BOX, spaces.Discrete(2)).predict(np.zeros(3), seed_index=index)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_inf_are_rejected(predictor, value):
    acting = predictor(Scripted(0, 1), BOX, spaces.Discrete(2))
    with pytest.raises(ValueError, match=rf"must be finite, but the observation is {value:g} at \[1\] of row 0"):
        acting.predict(np.array([0.0, value, 0.0]))
    acting = predictor(Scripted(0, 1), spaces.Dict({"b": BOX}), spaces.Discrete(2))
    with pytest.raises(ValueError, match=rf"b is {value:g} at \[2\] of row 1"):
        acting.predict({"b": np.array([[0.0] * 3, [0.0, 0.0, value]])})


def test_a_mask_that_allows_nothing_is_rejected(predictor):
    space = spaces.Dict({"a": BOX, "action_mask": spaces.MultiBinary(2)})
    acting = predictor(Scripted(0, 1), space, spaces.Discrete(2))
    acting.predict({"a": np.zeros(3), "action_mask": np.array([0, 1])})
    with pytest.raises(ValueError, match="'action_mask' of row 0 allows no action"):
        acting.predict({"a": np.zeros(3), "action_mask": np.array([0, 0])})


class Shifted(Wrapper):
    """Wrapper that adds a separate number for each seed to observations."""

    LEARNED = ("shift",)

    def start(self, seeds):
        self.shift = torch.arange(1.0, len(seeds) + 1)

    def observation(self, obs):
        return (obs.unflatten(0, (len(self.shift), -1)) + self.shift.view(-1, 1, 1)).flatten(0, 1)


class Rewarding(Shifted):
    in_evaluation = False


def test_wrappers_that_hold_in_evaluations_change_observations():
    env = Rewarding(Shifted(make("CartPole-v1", 2, (3, 5))))
    start(env, (3, 5))
    policy = Scripted([0, 1], [1, 0])
    policy.actions = torch.tensor([0, 1])
    predictor = Predictor(policy, "CartPole-v1", seeds=2, wrappers=[env.env, env])
    obs = np.zeros((3, 4), np.float32)
    predictor.predict(obs)
    assert torch.equal(policy.seen, torch.tensor([1.0, 2.0]).view(2, 1, 1).expand(2, 3, 4))


def test_a_wrapper_that_remembers_observations_cannot_be_asked_about_one():
    class Stacked(Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = spaces.Box(-1, 1, (8,))

    env = Stacked(make("CartPole-v1", 2, (3, 5)))
    with pytest.raises(ValueError, match=r"Stacked computes observations in step\(\) from several observations"):
        Predictor(Scripted([0], [1]), "CartPole-v1", seeds=2, wrappers=[env])
