"""Wrappers belong to a run: they report metrics, are saved and stored with the weights, and may apply in evaluation."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from operant import streams
from operant.envs import (
    Normalize,
    TensorEnv,
    Wrapper,
    check_batch_env,
    for_evaluation,
    learned,
    make,
    maker_like,
    start,
    unwrapped,
    wrapped,
    wrappers,
)
from operant.state import StateError, clone

SEEDS = (3, 5)


class Bonus(Wrapper):
    """Wrapper that counts visits to the left and right half of CartPole's track, and gives a bonus for rare ones."""

    STATE = LEARNED = ("counts",)
    in_evaluation = False

    def start(self, seeds):
        self.counts = torch.ones(len(seeds), 2)

    def step(self, actions):
        step = super().step(actions)
        half = (step.obs[:, 0] > 0).long().view(len(self.counts), -1)
        self.counts.scatter_add_(1, half, torch.ones_like(half, dtype=torch.float32))
        bonus = self.counts.gather(1, half).rsqrt().flatten()
        return step._replace(extras={**(step.extras or {}), "intrinsic": bonus})

    def metrics(self):
        return {"bonus/right": self.counts[:, 1].clone()}


class Scaled(Wrapper):
    """Wrapper that scales observations by the largest absolute value of each seed so far."""

    STATE = LEARNED = ("largest",)

    def __init__(self, env):
        super().__init__(env)
        low, high = np.full(4, -1, np.float32), np.full(4, 1, np.float32)
        self.observation_space = spaces.Box(low, high)

    def start(self, seeds):
        self.largest = torch.full((len(seeds), 4), 1e-6)

    def step(self, actions):
        step = self.env.step(actions)
        if self.training:
            rows = step.obs.view(len(self.largest), -1, 4)
            self.largest.copy_(torch.maximum(self.largest, rows.abs().amax(1)))
        return step._replace(obs=self.observation(step.obs), final_obs=self.observation(step.final_obs))

    def observation(self, obs):
        rows = obs.reshape(len(self.largest), -1, 4)
        return (rows / self.largest.unsqueeze(1)).clamp(-1, 1).view_as(obs)


class Noisy(Wrapper):
    """Wrapper that adds noise from the stream of each seed to rewards, and stores the last one."""

    STATE = ("streams", "last", "steps")
    in_evaluation = False

    def start(self, seeds):
        self.streams = [streams.torch_generator(seed, "noisy") for seed in seeds]
        self.last, self.steps = torch.zeros(self.rows), 0

    def step(self, actions):
        step = super().step(actions)
        rows = self.rows // len(self.streams)
        noise = torch.cat([torch.randn(rows, generator=stream) for stream in self.streams])
        self.last, self.steps = 0.5 * self.last + noise, self.steps + 1
        return step._replace(reward=step.reward + self.last)

    def forget(self):
        self.last.zero_()


def cart(backend="tensor"):
    return make("CartPole-v1", 2, SEEDS, backend=backend)


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
@pytest.mark.parametrize("kind", [Wrapper, Bonus, Scaled, Noisy, lambda env: Bonus(Scaled(Noisy(env)))])
def test_wrappers_keep_the_contract_of_environments(kind, backend):
    check_batch_env(lambda: kind(cart(backend)), seeds=SEEDS, steps=40)


def test_a_wrapper_changes_nothing_by_default():
    env, plain = Wrapper(cart()), cart()
    assert torch.equal(env.reset(), plain.reset())
    actions = torch.ones(4, dtype=torch.int64)
    for _ in range(30):
        one, other = env.step(actions), plain.step(actions)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True) if a is not None)
    for name in ("task", "rows", "observation_space", "action_space", "device", "always_valid"):
        assert getattr(env, name) == getattr(plain, name)
    assert env.metrics() == {}
    assert not env.begins_anew


def test_wrappers_are_found_from_within():
    env = Bonus(Scaled(inner := cart()))
    assert [type(wrapper) for wrapper in wrappers(env)] == [Scaled, Bonus]
    assert unwrapped(env) is inner
    assert unwrapped(inner) is inner
    assert isinstance(unwrapped(env), TensorEnv)


def test_learned_state_is_named_by_its_wrapper():
    env = Bonus(Scaled(cart()))
    start(env, SEEDS)
    assert learned(env) == {"Scaled.largest": env.env.largest, "Bonus.counts": env.counts}
    twice = Bonus(Bonus(cart()))
    start(twice, SEEDS)
    with pytest.raises(ValueError, match=r"two wrappers of CartPole-v1 have learned state 'Bonus.counts'"):
        learned(twice)


def test_an_evaluation_is_played_in_the_wrappers_that_hold_there_and_changes_nothing():
    env = Bonus(Scaled(cart()))
    start(env, SEEDS)
    env.reset()
    actions = torch.ones(4, dtype=torch.int64)
    for _ in range(20):
        env.step(actions)
    before = clone(learned(env))
    played = for_evaluation(env, make("CartPole-v1", 5, SEEDS, purpose="evaluation"), SEEDS)
    assert [type(wrapper) for wrapper in wrappers(played)] == [Scaled]
    assert played.rows == 10
    assert not played.training
    played.reset()
    for _ in range(20):
        step = played.step(torch.ones(10, dtype=torch.int64))
    assert step.obs.abs().max() <= 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in learned(env).items())
    env.step(actions)
    assert played.largest is env.env.largest  # later updates apply there, too


def test_unfinished_episodes_are_forgotten_where_new_ones_begin():
    class Anew(Wrapper):
        begins_anew = True

    env = Noisy(Anew(cart()))
    start(env, SEEDS)
    env.reset()
    env.step(torch.ones(4, dtype=torch.int64))
    assert env.last.any()
    state = clone(env.state_dict())
    env.load_state_dict(state)
    assert not env.last.any()
    assert env.steps == 1


def test_a_wrapper_of_gymnasium_raises_an_error_with_the_right_place():
    with pytest.raises(
        ValueError,
        match=r"TimeAwareObservation is a Gymnasium wrapper of a single environment, .* path/to/file.py:make",
    ):
        wrapped(make("CartPole-v1", 1, (3,)), ["gymnasium.wrappers:TimeAwareObservation"])


def test_a_state_of_other_wrappers_is_rejected():
    env, other = Bonus(cart()), Scaled(cart())
    for each in (env, other):
        start(each, SEEDS)
        each.reset()
    with pytest.raises(StateError, match="counts"):
        env.load_state_dict(other.state_dict())


def test_other_processes_cannot_make_wrapped_environments():
    with pytest.raises(ValueError, match="Bonus wraps the environments of CartPole-v1, but other processes"):
        maker_like(Bonus(cart()), 2)


def test_normalization_is_a_wrapper():
    env = Normalize(cart(), seeds=2, gamma=0.9)
    assert learned(env).keys() == {
        f"{kind}.{name}" for kind in ("observations", "rewards") for name in ("count", "mean", "squares")
    }
    env.reset()
    env.step(torch.ones(4, dtype=torch.int64))
    before = clone(learned(env))
    played = for_evaluation(env, make("CartPole-v1", 5, SEEDS), SEEDS)
    raw = make("CartPole-v1", 5, SEEDS).reset()
    assert torch.equal(played.reset(), env.normalize(raw))
    played.step(torch.ones(10, dtype=torch.int64))
    assert all(torch.equal(tensor, before[name]) for name, tensor in learned(env).items())
    check_batch_env(lambda: Normalize(cart(), seeds=2, gamma=0.9), seeds=SEEDS, steps=40)
