import itertools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from operant.envs import make
from operant.runtime.evaluation import evaluate_policy
from operant.runtime.watching import Stage

SEEDS = (3, 8)


class Leaning:
    """Policy that pushes the cart to the side to which the pole leans, with a different threshold for each seed."""

    def __init__(self):
        self.shapes = set()

    def act(self, obs, hidden_state, noise):
        self.shapes.add(tuple(obs.shape))
        limits = torch.tensor([0.0, 0.05]).view(2, 1)
        lean = obs[..., 2] + (0.0 if noise is None else noise)
        return (lean > limits).long(), None


class Counting(Leaning):
    """Policy that counts the steps of the episode."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def act(self, obs, hidden_state, noise):
        steps = torch.zeros(2, 1) if hidden_state is None else hidden_state
        self.counts.append(int(steps[0]))
        return super().act(obs, None, noise)[0], steps + 1


@pytest.mark.parametrize("index", [0, 1])
def test_the_first_episode_is_that_of_the_evaluation(index):
    env = make("CartPole-v1", 1, SEEDS, backend="gymnasium", purpose="evaluation")
    expected = evaluate_policy(Leaning(), env, seeds=2, episodes=1).scores[index]
    env.close()
    policy, frames = Leaning(), []
    with Stage(policy, "CartPole-v1", seeds=SEEDS, index=index) as stage:
        assert stage.frames_per_second == 50
        scores, cut = stage.play(1, frames.append)
    assert (scores, cut) == ([expected], 0)
    assert policy.shapes == {(2, 1, 4)}
    assert len(frames) == expected + 1
    assert {(frame.shape, frame.dtype.name) for frame in frames} == {((400, 600, 3), "uint8")}


def test_frames_show_the_states_of_the_episode():
    frames = []
    with Stage(Leaning(), "CartPole-v1", seeds=SEEDS) as stage:
        (score, _), _ = stage.play(2, frames.append)
    poles = [np.flatnonzero((frame[:280] != 255).any(axis=(0, 2))) for frame in frames]
    widths = [columns.max() - columns.min() for columns in poles]
    assert widths[int(score)] > 2 * widths[int(score) + 1], "a fallen pole, then the next episode from its start"


def test_memory_is_that_of_the_episode():
    policy = Counting()
    with Stage(policy, "CartPole-v1", seeds=SEEDS) as stage:
        first, second = map(int, stage.play(2).scores)
    # One more call at the end of the first episode, whose action Gymnasium ignores while it resets.
    assert policy.counts == [*range(first), first, *range(second)]


def test_an_episode_is_cut_at_the_limit_of_the_show_unless_its_own_is_shorter():
    for longest, scores, cut in ((3, [3.0, 3.0], 2), (500, None, 0), (None, None, 0)):
        with Stage(Leaning(), "CartPole-v1", seeds=SEEDS, max_steps=longest) as stage:
            played = stage.play(2)
        assert played.cut == cut
        assert scores is None or played.scores == scores
    with Stage(Leaning(), "CartPole-v1", seeds=SEEDS, max_steps=3, env_kwargs={"max_episode_steps": 2}) as stage:
        assert stage.play(1) == ([2.0], 0), "the task ended by its own limit"


def test_noise_reaches_the_policy():
    def noise():
        drawn.append(1)
        return torch.full((1,), 10.0)

    drawn = []
    with Stage(Leaning(), "CartPole-v1", seeds=SEEDS, noise=noise) as stage:
        (score,), _ = stage.play(1)
    assert len(drawn) == score
    assert score < 15, "the noise makes it push to the right only"


class Blind(CartPoleEnv):
    """Environment without render modes."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it


def test_wrong_requests_are_rejected():
    with pytest.raises(ValueError, match="seed_index must be between 0 and 1 for 2 seeds, got 2"):
        Stage(Leaning(), "CartPole-v1", seeds=SEEDS, index=2)
    gymnasium.register("Blind-v0", entry_point=Blind)
    try:
        with pytest.raises(
            ValueError,
            match=r"Blind-v0 cannot be rendered as 'rgb_array'; it supports .* `operant evaluate` needs no frames",
        ):
            Stage(Leaning(), "Blind-v0", seeds=SEEDS)
    finally:
        del gymnasium.registry["Blind-v0"]


class Dark(CartPoleEnv):
    """Environment whose frames are None."""

    def render(self):
        return None


class Bare(CartPoleEnv):
    """Environment whose constructor has no parameters."""

    def __init__(self):
        super().__init__()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Dark, r"render\(\) of OperantTest-v0 must return an array .*, got None"),
        (Bare, "OperantTest-v0 cannot be rendered, since its constructor has no argument render_mode: "),
    ],
)
def test_an_environment_that_shows_nothing_is_named(kind, message):
    gymnasium.register("OperantTest-v0", kind)
    try:
        with pytest.raises(ValueError, match=message), Stage(Leaning(), "OperantTest-v0", seeds=SEEDS) as stage:
            stage.play(1)
    finally:
        gymnasium.registry.pop("OperantTest-v0")


def test_the_policy_sees_the_observations_of_a_wrapper():
    class Upside(gymnasium.ObservationWrapper):
        def observation(self, observation):
            return -observation

    seen = []

    class Watching(Leaning):
        def act(self, obs, hidden_state, noise):
            seen.append(obs[0, 0].tolist())
            return super().act(obs, hidden_state, noise)

    for wrap in ({}, {"wrap": Upside}):
        with Stage(Watching(), "CartPole-v1", seeds=SEEDS, **wrap) as stage:
            stage.play(1)
            seen.append(None)
    assert seen[0] == [-number for number in seen[seen.index(None) + 1]]


def test_the_moment_of_a_frame_is_known():
    moments = []

    def describe(obs, hidden_state):
        return {"value": obs.new_full((2, 1), float(obs.shape[1]))}

    with Stage(Leaning(), "CartPole-v1", seeds=(3, 4), describe=describe) as stage:
        (first, second), _ = stage.play(2, lambda frame: moments.append(stage.moment))
    steps = [moment.step for moment in moments]
    assert steps == [*range(int(first) + 1), *range(int(second) + 1)]
    assert [moment.score for moment in moments] == steps
    assert [moment.value for moment in moments if moment.step in (first, second)][-1] == 0.0
    assert moments[0].value == 1.0


def test_a_scene_contains_the_policys_view_of_the_state():
    def describe(obs, hidden_state):
        return {"q": torch.stack((obs[..., 2], -obs[..., 2]), -1) * torch.tensor([1.0, 2.0]).view(2, 1, 1)}

    with Stage(Leaning(), "CartPole-v1", seeds=SEEDS, index=1, describe=describe, max_steps=3) as stage:
        scenes = list(itertools.islice(stage.scenes(), 5))
    assert [scene.step for scene in scenes] == [0, 1, 2, 3, 0]
    assert [scene.score for scene in scenes] == [0.0, 1.0, 2.0, 3.0, 0.0]
    assert [scene.reward for scene in scenes] == [0.0, 1.0, 1.0, 1.0, 0.0]
    assert [scene.ended for scene in scenes] == [False, False, False, True, False]
    assert scenes[3].action is None
    assert scenes[3].told == {}
    for scene in (*scenes[:3], scenes[4]):
        left, right = scene.told["q"]
        assert (left, scene.action) == (-right, [float(left / 2 > 0.05)])
        assert scene.value is None
