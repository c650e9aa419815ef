import numpy as np
import pytest

from operant.tabular import SarsaLambdaConfig, TDLambdaConfig, learner_for

from .checks import contract, stepping_is_simulating
from .models import forest, random_walk, true_values
from .twin import TwinAgent, TwinPrediction, play

KINDS = ("accumulating", "replacing", "true_online")


class Traced:
    """Twin with dense traces, as vectors like in the papers."""

    lam, kind = 0.8, "accumulating"

    def update(self, step, cell, following):
        shape = np.shape(self.q)
        z = getattr(self, "z", np.zeros(shape))
        old = getattr(self, "old", 0.0)
        q, x = np.array(self.q), np.zeros(shape)
        x[step.state, cell] = 1.0
        value = q[step.state, cell]
        delta = step.reward + self.gamma * following - value
        z *= self.gamma * self.lam
        if self.kind == "accumulating":
            z += x
        elif self.kind == "replacing":
            z[step.state, cell] = 1.0
        else:
            z += (1.0 - self.alpha * z[step.state, cell]) * x
        if self.kind == "true_online":
            q += self.alpha * (delta + value - old) * z - self.alpha * (value - old) * x
        else:
            q += self.alpha * delta * z
        ended = step.terminated or step.truncated
        self.z, self.old = (np.zeros(shape), 0.0) if ended else (z, following)
        self.q = q.tolist()


class TwinTD(Traced, TwinPrediction):
    def learn(self, step):
        self.update(step, 0, self.value(step))


class TwinSarsa(Traced, TwinAgent):
    def learn(self, step):
        self.update(step, step.action, self.next_action(step))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "twin"), [("td-lambda", TwinTD), ("sarsa-lambda", TwinSarsa)])
def test_the_kernel_is_the_algorithm_in_plain_python(name, twin, kind):
    mdp = forest(seed=1)
    values = {"exploration_initial_eps": 0.3} if name == "sarsa-lambda" else {}
    learner = learner_for(
        name, mdp, seeds=(7, 8), steps_per_iteration=300, td_lambda=0.8, traces=kind, gamma=0.9, step_size=0.2, **values
    )
    learner.iterate()
    for i, seed in enumerate((7, 8)):
        agent = twin(mdp, seed, gamma=0.9, alpha=0.2, epsilon=0.3)
        agent.kind = kind
        play(mdp, agent, seed, 300)
        expected = np.array(agent.q)[:, : learner.q.shape[2]]
        np.testing.assert_allclose(learner.q[i], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["td-lambda", "sarsa-lambda"])
def test_contract(name):
    contract(name, traces="true_online")
    stepping_is_simulating(name)


@pytest.mark.parametrize("kind", KINDS)
def test_lambda_0_is_one_step(kind):
    mdp = forest(seed=5)
    for single, traced, values in (("sarsa", "sarsa-lambda", {}), ("n-step-td", "td-lambda", {})):
        one = learner_for(single, mdp, seeds=(1, 2), **values)
        zero = learner_for(traced, mdp, seeds=(1, 2), td_lambda=0.0, traces=kind)
        one.iterate(), zero.iterate()
        np.testing.assert_allclose(zero.q, one.q, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_offline_the_backward_view_is_the_forward_view(lam):
    """Sutton and Barto 2018, section 12.2: the updates of an episode are the same, state by state."""
    mdp = random_walk(7, left=-1.0)
    common = {"gamma": 0.9, "td_lambda": lam, "step_size": 0.05, "initial_value": 0.3}
    backward = learner_for("td-lambda", mdp, seeds=range(5), update="offline", **common)
    forward = learner_for("lambda-return", mdp, seeds=range(5), sweep="together", **common)
    for episodes in (1, 2, 20):
        backward.run_episodes(episodes), forward.run_episodes(episodes)
        np.testing.assert_array_equal(backward.world.state, forward.world.state)
        np.testing.assert_allclose(backward.values, forward.values, rtol=1e-10, atol=1e-13)


def test_true_online_with_lambda_1_is_monte_carlo_at_the_end_of_the_first_episode():
    """The online λ-return of the last step is the return (van Seijen et al. 2016)."""
    mdp = random_walk(7, left=-1.0)
    online = learner_for(
        "td-lambda", mdp, seeds=range(20), td_lambda=1.0, traces="true_online", gamma=1.0, step_size=0.1
    )
    offline = learner_for("lambda-return", mdp, seeds=range(20), td_lambda=1.0, gamma=1.0, step_size=0.1)
    online.run_episodes(5), offline.run_episodes(5)
    np.testing.assert_allclose(online.values, offline.values, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "values", "alpha", "expected"),
    [
        ("td-lambda", {"traces": "accumulating", "td_lambda": 0.0}, 0.8, 0.3454),
        ("td-lambda", {"traces": "accumulating", "td_lambda": 0.8}, 0.3, 0.2624),
        ("td-lambda", {"traces": "true_online", "td_lambda": 0.8}, 0.4, 0.2548),
        ("td-lambda", {"traces": "true_online", "td_lambda": 0.9}, 0.25, 0.2765),
        ("lambda-return", {"td_lambda": 0.4}, 0.7, 0.2914),
        ("lambda-return", {"td_lambda": 0.8}, 0.4, 0.2629),
    ],
)
def test_the_best_errors_of_the_random_walk(name, values, alpha, expected):
    """RMS error over the first 10 episodes, 19 states, with the best step size (figures 12.3 and 12.8)."""
    seeds = 1000
    errors = np.zeros((10, seeds))
    learner = learner_for(name, random_walk(19, left=-1.0), seeds=range(seeds), gamma=1.0, step_size=alpha, **values)
    for k in range(10):
        learner.run_episodes(k + 1)
        errors[k] = np.sqrt(((learner.values - true_values(19, left=-1.0)) ** 2).mean(axis=1))
    mean = errors.mean(axis=0)
    assert abs(mean.mean() - expected) < 4 * mean.std() * np.sqrt(2 / seeds) + 5e-5


def test_traces_need_a_step_size_that_all_cells_share():
    with pytest.raises(ValueError, match="step_size_schedule must be constant, linear or exponential with traces"):
        TDLambdaConfig(step_size_schedule="visits")
    with pytest.raises(ValueError, match=r"td_lambda must be in \[0, 1\], got 1.5"):
        SarsaLambdaConfig(td_lambda=1.5)
    with pytest.raises(ValueError, match="update must be online"):
        TDLambdaConfig(update="offline", traces="true_online")
    with pytest.raises(ValueError, match="traces must be accumulating"):
        TDLambdaConfig(traces="dutch")


def test_faded_traces_are_forgotten():
    learner = learner_for(
        "td-lambda", forest(seed=1, max_steps=None), seeds=(0,), td_lambda=0.5, gamma=0.5, steps_per_iteration=500
    )
    learner.iterate()
    traces = learner.agent.traces
    assert set(traces.active[0, : traces.live[0]]) == set(np.flatnonzero(traces.z[0, :, 0]))
