from operator import attrgetter

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from operant.envs import EnvError, GymnasiumEnv, make, without_episodes
from operant.mdp import MDP
from operant.runtime.checkpoints import NonFiniteError
from operant.runtime.training import train
from operant.state import clone
from operant.tabular import OneStepConfig, QLearning, TabularLearner, learner_for
from operant.tabular.configs import BaseConfig

from .models import build, corridor, forest


def learner(mdp=None, seeds=(0, 1), **values):
    return QLearning(OneStepConfig(**values), forest(seed=3) if mdp is None else mdp, seeds=seeds)


def test_reports_are_of_the_episodes_that_ended():
    made = learner(corridor(3, max_steps=4), steps_per_iteration=100, exploration_initial_eps=1.0)
    report = made.iterate()
    assert set(report) == {
        "rollout/episode_return",
        "rollout/episode_length",
        "rollout/episodes",
        "schedule/epsilon",
        "schedule/step_size",
    }
    assert report["rollout/episodes"].tolist() == made.world.episodes.tolist()
    assert ((report["rollout/episode_length"] >= 3) & (report["rollout/episode_length"] <= 4)).all()
    assert report["schedule/step_size"].tolist() == [0.1, 0.1]
    assert "schedule/step_size" not in learner(step_size_schedule="visits").iterate(), "each cell has its own"
    again = made.iterate()
    assert (again["rollout/episodes"] == torch.from_numpy(made.world.episodes) - report["rollout/episodes"]).all()


def test_infos_of_episodes_are_reported():
    env = make("FrozenLake-v1", 1, (5, 6), backend="gymnasium")
    made = QLearning(OneStepConfig(steps_per_iteration=100, exploration_initial_eps=1.0), env, seeds=(5, 6))
    report = made.iterate()
    assert report["rollout/episodes"].min() > 0
    assert report["rollout/info/prob"].tolist() == pytest.approx([1 / 3, 1 / 3])
    made.env.close()


def test_nothing_ended_is_nothing_to_report():
    report = learner(corridor(50), steps_per_iteration=3).iterate()
    assert report["rollout/episodes"].tolist() == [0, 0]
    assert report["rollout/episode_return"].isnan().all()


def test_episodes_are_run_to_a_number_and_recorded():
    made = learner(forest(seed=3))
    history = made.run_episodes(7)
    assert made.world.episodes.tolist() == [7, 7]
    assert history.lengths.shape == (2, 7)
    assert made.consumed == history.lengths.sum(axis=1).max()
    later = made.run_episodes(9)
    assert not later.lengths[:, :7].any()
    assert later.lengths[:, 7:].all()
    assert np.isnan(later.returns[:, :7]).all()
    assert np.isnan(made.run_episodes(9).returns).all()
    whole = learner(forest(seed=3)).run_episodes(9)
    np.testing.assert_array_equal(whole.returns[:, 7:], later.returns[:, 7:])


def test_episodes_are_run_in_parts_with_the_same_results(monkeypatch):
    whole = learner(forest(seed=3)).run_episodes(9)
    monkeypatch.setattr("operant.tabular.learner.STEPS_PER_CALL", 6)
    made = learner(forest(seed=3))
    parts = made.run_episodes(9)
    np.testing.assert_array_equal(parts.returns, whole.returns)
    assert made.consumed == whole.lengths.sum(axis=1).max()


def test_episodes_stop_at_the_budget_and_need_an_end():
    never = build(2, 1, [(0, 0, 1, 1.0, 1.0, False), (1, 0, 0, 1.0, 0.0, False)])
    with pytest.raises(ValueError, match=r"no episode can end: .*max_steps"):
        learner(never).run_episodes(1)
    stays = build(2, 1, [(0, 0, 0, 1.0, 1.0, False), (1, 0, 0, 1.0, 0.0, True)], start=0)
    made = learner_for("sarsa", stays, seeds=(1, 2), budget=500)
    history = made.run_episodes(3)
    assert made.consumed == 500
    assert np.isnan(history.returns).all()
    assert not history.lengths.any()


def test_policies_share_ties_and_explore():
    made = learner(build(2, 3, [(0, 0, 1, 1.0, 0.0, False), (0, 2, 1, 1.0, 0.0, False), (1, 1, 0, 1.0, 0.0, True)]))
    made.q[1, 0, 2] = 1.0
    made.q[:, :, 1] = 50.0  # not feasible in state 0
    made.agent.table.epsilon[:] = 0.4
    np.testing.assert_allclose(made.policy(), [[[0.5, 0, 0.5], [0, 1, 0]], [[0, 0, 1], [0, 1, 0]]])
    np.testing.assert_allclose(made.policy(exploring=True)[1], [[0.2, 0, 0.8], [0, 1, 0]])
    np.testing.assert_allclose(made.values, [[0, 50], [1, 50]])


def test_it_trains_in_the_common_loop():
    made = learner(steps_per_iteration=300)
    made.budget = 1000
    outcome = train(made, budget=1000, seeds=2, progress="silent")
    assert outcome.consumed == made.consumed == 1000


def diverging(mdp, **values):
    values = {"step_size": 1.0, "td_lambda": 1.0, "traces": "accumulating", "gamma": 1.0, **values}
    return learner_for("td-lambda", mdp, seeds=(4, 7), **values)


def test_values_that_diverge_end_training():
    cliff = MDP.from_gymnasium("CliffWalking-v1")
    message = r"values of seed 4 are NaN or Inf at step \d+: learning has diverged; choose a smaller"
    with pytest.raises(NonFiniteError, match=message):
        diverging(cliff, steps_per_iteration=5000).iterate()
    with pytest.raises(NonFiniteError, match="learning has diverged"):
        diverging(cliff).run_episodes(1)
    sums = learner(step_size=0.0)
    sums.q[:] = 1e308  # the sum overflows
    sums.iterate()
    made = learner(build(2, 2, [(0, 0, 1, 1.0, 0.0, False), (1, 1, 0, 1.0, 0.0, True)]))
    made.q[:, 0, 1] = -np.inf  # as in solutions of models, since the action is not feasible
    made.iterate()


def test_values_of_a_large_table_are_tested_after_as_many_steps():
    made = learner(corridor(400), steps_per_iteration=20, step_size=0.0)
    made.q[1, 350, 0] = np.nan
    for _ in range(made.q.size // (2 * 10 * 20) - 1):
        made.iterate()
    with pytest.raises(NonFiniteError, match=rf"of seed 1 .* at step {made.consumed + 20}"):
        made.iterate()
    made.q[1, 350, 0] = 0.0
    made.require_finite()


def test_a_state_of_another_configuration_is_rejected():
    with pytest.raises(ValueError, match=r"state entry 'agent\.table\.q' has shape"):
        learner(forest(states=6)).load_state_dict(learner(forest(states=5)).state_dict())


def test_an_environment_resumes_where_it_was():
    env, other = (make("CliffWalking-v1", 1, (5, 6), backend="gymnasium") for _ in range(2))
    made, resumed = (
        learner(env, seeds=(5, 6), steps_per_iteration=30),
        learner(other, seeds=(5, 6), steps_per_iteration=30),
    )
    made.iterate()
    resumed.load_state_dict(made.state_dict())
    made.iterate(), resumed.iterate()
    np.testing.assert_array_equal(made.q, resumed.q)
    np.testing.assert_array_equal(made.world.state, resumed.world.state)
    with pytest.raises(ValueError, match="run_episodes needs a simulated model"):
        made.run_episodes(3)
    with pytest.raises(ValueError, match="must be simulated"):
        made.replace_model(MDP.from_gymnasium("CliffWalking-v1"))
    made.close(), resumed.close()


UNFINISHED = {
    "sarsa": ["pending"],
    "n-step-sarsa": ["pending", "window.held"],
    "n-step-td": ["window.held"],
    "sarsa-lambda": ["pending", "traces.z", "traces.live"],
    "td-lambda": ["traces.z", "traces.live", "traces.old_value", "traces.moves"],
    "monte-carlo": ["episode.length"],
    "monte-carlo-prediction": ["episode.length"],
}


@pytest.mark.parametrize("kind", UNFINISHED)
def test_new_episodes_continue_nothing_of_the_old_ones(kind):
    env = make("CliffWalking-v1", 1, (5,), backend="gymnasium")
    made = learner_for(kind, env, seeds=(5,), **({"update": "offline"} if kind == "td-lambda" else {}))
    places = [f"agent.{path}" for path in UNFINISHED[kind]] + ["world.age", "world.total"]
    unlearned = [attrgetter(place)(made).copy() for place in places]
    for place in [*places, "world.episodes", "agent.table.q"]:
        attrgetter(place)(made)[...] = 3
    state = clone(made.state_dict())
    made.load_state_dict(state)
    assert all((attrgetter(place)(made) == 3).all() for place in places)
    made.load_state_dict(without_episodes(state))
    for place, begun in zip(places, unlearned, strict=True):
        np.testing.assert_array_equal(attrgetter(place)(made), begun, place)
    assert made.world.episodes[0] == 3
    assert (made.agent.table.q == 3).all()
    made.close()


def test_unsuitable_environments_and_arguments_are_rejected():
    box = make("CartPole-v1", 1, (0,), backend="gymnasium")
    with pytest.raises(ValueError, match="observations and actions that are Discrete and start at 0, but CartPole-v1"):
        learner(box, seeds=(0,))
    rows = make("CliffWalking-v1", 2, (0,), backend="gymnasium")
    with pytest.raises(ValueError, match="1 seeds need 1 environments"):
        learner(rows, seeds=(0,))
    box.close(), rows.close()
    with pytest.raises(ValueError, match="at least one seed"):
        learner(seeds=())
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        learner().run_episodes(0)
    with pytest.raises(ValueError, match="budget must be at least 1"):
        QLearning(OneStepConfig(), forest(), seeds=(0,), budget=0)
    with pytest.raises(TypeError, match="use one of its subclasses"):
        TabularLearner(BaseConfig(), forest(), seeds=(0,))


def test_thousands_of_seeds_are_as_easy_as_one():
    many = learner_for("q-learning", forest(seed=1), seeds=range(3000), steps_per_iteration=50)
    many.iterate()
    one = learner_for("q-learning", forest(seed=1), seeds=(2999,), steps_per_iteration=50)
    one.iterate()
    np.testing.assert_array_equal(many.q[2999], one.q[0])
    assert len(np.unique(many.q.reshape(3000, -1), axis=0)) > 2000


class Straying(gymnasium.Env):
    """Environment that returns a state outside its space, or a reward that is NaN."""

    observation_space, action_space = gymnasium.spaces.Discrete(5), gymnasium.spaces.Discrete(2)

    def __init__(self, state, reward):
        self.after, self.reward = state, reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return self.after, self.reward, False, False, {}


def straying(state, reward=0.0, kind="q-learning"):
    """Return a learner in an environment without checks, so that only the learner can find the error."""
    vector = SyncVectorEnv([lambda: Straying(state, reward)], autoreset_mode=AutoresetMode.DISABLED)
    env = GymnasiumEnv(vector, [0], task="Straying-v0", check=False)
    return learner_for(kind, env, seeds=[0], steps_per_iteration=10)


@pytest.mark.parametrize("kind", ["q-learning", "td-lambda", "monte-carlo", "dyna-q"])
@pytest.mark.parametrize("state", [5, -1, 10**12, -(10**12)])
def test_a_state_without_a_row_is_an_error_and_not_a_crash(kind, state):
    made = straying(state, kind=kind)
    with pytest.raises(EnvError, match=rf"^Straying-v0 is in state {state}, but its observation space has 5 states"):
        made.iterate()
    with pytest.raises(EnvError, match=f"the environment is in state {state}, but"):
        made.act(torch.tensor([[state]]), None, None)
    made.close()


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_a_reward_that_is_no_number_does_not_enter_the_table(reward):
    made = straying(1, reward)
    with pytest.raises(EnvError, match=rf"^Straying-v0 returned the reward {reward}, expected a finite number"):
        made.iterate()
    assert np.isfinite(made.q).all()
    made.close()
