"""Prediction errors fall in states that were visited, and noise is never predicted."""

import pytest
import torch
from gymnasium import spaces
from torch.nn.functional import cross_entropy, mse_loss

from explore.bonus_envs import SEEDS, dive, sea
from operant.envs import Wrapper, make, start
from operant.explore import ForwardError, InverseCuriosity, RandomDistillation
from operant.explore.prediction import _Prediction


@pytest.mark.parametrize("kind", [RandomDistillation, ForwardError, InverseCuriosity])
def test_prediction_errors_fall_where_one_has_been(kind):
    env = sea(kind, rows=2, gamma=None, every=3, learning_rate=1e-2)
    bonuses = torch.tensor(dive(env, [1, 1, 1] * 200)).mean(1)
    new = torch.tensor(dive(env, [0, 0, 0])).mean(1)
    assert bonuses[-3:].mean() < 0.01 * bonuses[:30].mean()
    assert new[:2].min() > 10 * bonuses[-3:].max()


class Television(Wrapper):
    """Wrapper that observes a random image next to the pole, a new one at every step or always the same."""

    noisy = True

    def step(self, actions):
        step = self.env.step(actions)
        obs = torch.zeros_like(step.obs) if not self.noisy else torch.rand(step.obs.shape, generator=self.stream)
        return step._replace(obs=obs, final_obs=obs)

    def start(self, seeds):
        self.stream = torch.Generator().manual_seed(0)


def test_a_forward_model_keeps_being_paid_for_noise():
    late = {}
    for noisy in (True, False):
        television = Television(make("CartPole-v1", 4, (0,)))
        television.noisy = noisy
        env = ForwardError(television, gamma=None, every=4)
        start(env, (0,))
        env.reset()
        bonuses = torch.tensor(dive(env, [0, 1] * 300)).mean(1)
        late[noisy] = (bonuses[-50:].mean() / bonuses[2:52].mean()).item()
    assert late[False] < 0.01
    assert late[True] > 0.2


def naive(parameters, sizes, inputs):
    """Return the outputs of a network `[P]` of one hidden layer for inputs `[M, D]`."""
    width, hidden, outputs = sizes
    first, bias, last, shift = parameters.split([width * hidden, hidden, hidden * outputs, outputs])
    return (inputs @ first.view(width, hidden) + bias).relu() @ last.view(hidden, outputs) + shift


@pytest.mark.parametrize(("task", "loss"), [("CartPole-v1", cross_entropy), ("Pendulum-v1", mse_loss)])
def test_the_features_of_the_inverse_model_are_those_that_autograd_finds(task, loss):
    env = InverseCuriosity(make(task, 2, SEEDS), gamma=None, every=4, width=8, outputs=3)
    start(env, SEEDS)
    env.reset()
    first = env.target.clone(), env.inverse.clone()
    generator, chosen = torch.Generator().manual_seed(0), []
    for _ in range(4):
        shape, discrete = (env.rows, *env.action_space.shape), loss is cross_entropy
        chosen.append(
            torch.randint(2, shape, generator=generator) if discrete else torch.rand(shape, generator=generator)
        )
        env.step(chosen[-1])
    pairs, (seen, width) = (env.before, env.observed), (env.observed.shape[-1], env.taken.shape[-1])
    for seed in range(2):
        features, inverse = (part[seed].clone().requires_grad_() for part in first)
        actions = torch.cat([step.view(2, 2, *step.shape[1:])[seed] for step in chosen])
        actions = actions if loss is cross_entropy else actions / 2  # the torque is in [-2, 2]
        both = torch.cat([naive(features, (seen, 8, 3), obs[seed]) for obs in pairs], -1)
        guess = naive(inverse, (6, 8, width), both)
        optimizer = torch.optim.Adam([features, inverse], lr=1e-3)
        loss(guess, actions).backward()
        optimizer.step()
        assert torch.allclose(env.target[seed], features, atol=1e-6)
        assert torch.allclose(env.inverse[seed], inverse, atol=1e-6)
        assert not torch.equal(env.target[seed], first[0][seed])


def test_the_inverse_model_learns_which_action_was_taken():
    env = InverseCuriosity(make("CartPole-v1", 8, (0,)), gamma=None, every=8, learning_rate=3e-3)
    start(env, (0,))
    env.reset()
    generator, right = torch.Generator().manual_seed(0), []
    for _ in range(400):
        env.step(torch.randint(2, (8,), generator=generator))
        if env.waiting == 0:
            pair = torch.cat([env._goals(env._scaled(part)) for part in (env.before, env.observed)], -1)
            guess = env._inverse(env._inverse.layers(env.inverse), pair)
            right.append((guess.argmax(-1) == env.taken.argmax(-1)).float().mean())
    assert torch.stack(right[-10:]).mean() > 0.95


def test_observations_are_normalized_by_all_up_to_the_last_gradient_step():
    env = RandomDistillation(make("CartPole-v1", 3, SEEDS), every=4)
    start(env, SEEDS)
    env.reset()
    generator, seen = torch.Generator().manual_seed(0), []
    for step in range(11):
        seen.append(env.step(torch.randint(2, (env.rows,), generator=generator)).final_obs.view(2, 3, 4))
        if step < 3:
            assert torch.equal(env._scaled(seen[0]), seen[0].clamp(-5, 5))
        else:
            before = torch.cat(seen[: (step + 1) // 4 * 4], 1).double()
            expected = (seen[0] - before.mean(1, keepdim=True)) / before.std(1, keepdim=True, correction=0)
            assert torch.allclose(env._scaled(seen[0]).double(), expected.clamp(-5, 5), atol=1e-3)


@pytest.mark.parametrize("kind", [RandomDistillation, ForwardError, InverseCuriosity])
def test_networks_and_normalization_statistics_belong_to_the_weights(kind):
    first, other = sea(kind, rows=2, every=3), sea(kind, rows=2, every=3)
    dive(first, [1, 0, 1] * 50)
    names = {f"{which}.{name}" for which in ("scale", "moments") for name in ("count", "mean", "squares")}
    names |= {"target", "predictor", "center", "factor"} | ({"inverse"} if kind is InverseCuriosity else set())
    assert first.learned.keys() == {f"{kind.__name__}.{name}" for name in names}
    for name, tensor in first.learned.items():
        other.learned[name].copy_(tensor)
    for env in (first, other):
        env.reset()
    assert not torch.equal(first.factor, torch.ones_like(first.factor))
    again, expected = dive(other, [1])[0], dive(first, [1])[0]
    assert again == pytest.approx(expected, rel=0.1), "not divided by the deviation of new statistics"


def test_a_bonus_without_errors_is_abstract():
    class Unfinished(_Prediction):
        def _inputs(self):
            return 1

        def _examples(self):
            return torch.zeros(1), torch.zeros(1)

    with pytest.raises(TypeError, match=r"abstract class Unfinished .*_errors"):
        Unfinished(make("CartPole-v1", 1, [0]))


class Dropout(Wrapper):
    """Wrapper with one observation of a bad value, in the second row."""

    value = torch.nan

    def start(self, seeds):
        self.steps = 0

    def step(self, actions):
        step, self.steps = super().step(actions), self.steps + 1
        if self.steps == 5:
            step.obs[1, 0] = self.value
        return step._replace(final_obs=step.obs)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", [RandomDistillation, ForwardError, InverseCuriosity])
def test_a_bad_observation_gets_no_bonus_and_changes_no_statistics(kind, value):
    """It is the successor of step 5 and the origin of step 6; the other row and the other seed learn on."""
    env, clean = (made(Dropout(make("CartPole-v1", 2, SEEDS)), every=3) for made in (kind, kind))
    env.env.value, clean.env.value = value, 0.0
    for each in (env, clean):
        start(each, SEEDS)
        each.reset()
    bonuses, others = (torch.tensor(dive(each, [0, 1] * 2 + [0])) for each in (env, clean))
    assert all(tensor.isfinite().all() for tensor in vars(env).values() if isinstance(tensor, torch.Tensor))
    bonuses, others = (
        torch.cat([some, torch.tensor(dive(each, [1] + [0, 1] * 3))])
        for some, each in ((bonuses, env), (others, clean))
    )
    assert bonuses.isfinite().all()
    bad = torch.zeros_like(bonuses, dtype=torch.bool)
    bad[4, 1] = True
    bad[5, 1] = kind is not RandomDistillation
    assert torch.equal(bonuses == 0, bad)
    assert torch.equal(bonuses[:, 2:], others[:, 2:])
    for name, tensor in env.learned.items():
        assert tensor.isfinite().all(), name
    assert env.scale.count.flatten().tolist() == [23 - (kind is not RandomDistillation), 24]


class Units(Wrapper):
    """Wrapper with a torque between two other bounds than -2 and 2."""

    low, high = -1000.0, 3000.0

    def __init__(self, env):
        super().__init__(env)
        self.action_space = spaces.Box(self.low, self.high, (1,))

    def step(self, actions):
        return super().step((actions - 1000) / 1000)


@pytest.mark.parametrize("kind", [ForwardError, InverseCuriosity])
def test_bonuses_do_not_depend_on_the_units_of_actions(kind):
    env, other = kind(make("Pendulum-v1", 2, SEEDS)), kind(Units(make("Pendulum-v1", 2, SEEDS)))
    for each in (env, other):
        start(each, SEEDS)
        each.reset()
    for n in range(20):
        torque = torch.tensor([[1.0], [-2.0], [0.5], [0.25]]) * (-1) ** n
        bonuses = (each.step(actions) for each, actions in ((env, torque), (other, torque * 1000 + 1000)))
        one, two = (step.extras["intrinsic"] for step in bonuses)
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


class Choices(Wrapper):
    """Wrapper with several choices, the first of which is the action."""

    def __init__(self, env, space):
        super().__init__(env)
        self.action_space = space

    def step(self, actions):
        return super().step((actions.flatten(1)[:, 0] > 0).long())


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (spaces.MultiDiscrete([3, 2], start=[1, 0]), [[3, 0], [1, 1]], [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]]),
        (spaces.MultiBinary(2), [[1, 0], [0, 0]], [[0, 1, 1, 0], [1, 0, 1, 0]]),
    ],
)
def test_every_choice_has_a_softmax_of_its_own(space, actions, expected):
    env = InverseCuriosity(Choices(make("CartPole-v1", 1, SEEDS), space), every=1, width=4, outputs=3)
    start(env, SEEDS)
    env.reset()
    env.step(torch.tensor(actions))
    assert env.taken[:, 0].tolist() == expected
    guess = torch.randn(2, 1, env.taken.shape[-1], requires_grad=True)
    parts = zip(guess.split(env._units.choices, -1), env.taken.split(env._units.choices, -1), strict=True)
    sum(cross_entropy(one.squeeze(1), other.squeeze(1), reduction="sum") for one, other in parts).backward()
    torch.testing.assert_close(env._guess_gradient(guess.detach(), env.taken), guess.grad)
