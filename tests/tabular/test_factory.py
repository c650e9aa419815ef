import gymnasium
import numpy as np
import pytest

import chains
from operant import api, catalog, mdp
from operant.envs import EnvError, GymnasiumEnv
from operant.runtime.checkpoints import NonFiniteError
from operant.runtime.settings import Settings
from operant.tabular import Arms, OneStepConfig, RandomConfig, assemble, known_model, learner_for
from operant.tabular.view import view_of

from .models import corridor

ENTRY = catalog.find("q-learning")


def experiment(task, config=None, device="cpu", **settings):
    chosen = Settings("q-learning", task, seeds=(3, 5), **settings)
    return assemble(ENTRY, chosen, config or OneStepConfig(steps_per_iteration=100), device=device)


def test_a_known_model_is_simulated_and_others_are_stepped():
    made = experiment("FrozenLake-v1", budget=77)
    assert made.learner.env is None
    assert made.learner.budget == 77
    assert made.learner.seeds == [3, 5]
    assert made.mdp.max_steps == 100
    made.close()
    for task in ("Blackjack-v1", "operant/ShortcutMaze-v0", "operant/BernoulliBandit-v0"):
        assert known_model(task) is None
        made = experiment(task)
        assert isinstance(made.learner.env, GymnasiumEnv)
        made.close()
    made = experiment("FrozenLake-v1", env_backend="gymnasium")
    assert isinstance(made.learner.env, GymnasiumEnv)
    made.close()


def test_actions_that_are_not_feasible_are_not_taken_in_a_stepped_world():
    made = experiment("operant/Gambler-v0", env_backend="gymnasium", budget=300)
    assert isinstance(made.learner.env, GymnasiumEnv)
    assert not made.learner.feasible.all()
    made.learner.iterate()
    assert not made.learner.visits[:, ~made.learner.feasible].any()
    assert made.evaluate(2).lengths[0] > 0
    made.close()


def test_a_world_that_refuses_actions_without_a_model_is_rejected_before_training(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with pytest.raises(ValueError, match=r"does not allow all actions in all states .* It raised: action 36"):
        experiment(f"{file}:Own", env_backend="gymnasium")
    assert experiment(f"{file}:Own").mdp is not None


LATER = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Later(gymnasium.Env):
    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(2, start=1)
    rejects = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return 0, self.info()

    def info(self):
        return {"action_mask": np.array([1, self.state < 3], np.int8)}

    def step(self, action):
        if self.rejects and action - 1 and self.state == 3:
            raise RuntimeError("action 2 in state 3")
        ended = self.state == 3
        self.state = min(3, self.state + 1)
        return self.state, 1.0, ended, False, self.info()


class Kind(Later):
    rejects = False
"""


def test_a_mask_that_excludes_an_action_later_is_found(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(LATER)
    with pytest.raises(ValueError, match=r"does not allow all actions in all states .* It raised: action 2 in state 3"):
        experiment(f"{file}:Later", budget=300)
    experiment(f"{file}:Kind", budget=300).close()


OWN = """
import gymnasium
from gymnasium import spaces
from operant.envs.worlds import Gambler


class Own(Gambler):
    pass

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.wrappers import TransformObservation, TransformReward


def cost():
    return TransformReward(gymnasium.make("FrozenLake-v1"), lambda reward: reward - 0.1)


def rows():
    return TransformObservation(gymnasium.make("FrozenLake-v1"), lambda state: state // 4, spaces.Discrete(4))


class Slow(FrozenLakeEnv):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward - 0.1, *rest


class Momentum(FrozenLakeEnv):
    P = 0.9

    def __init__(self):
        super().__init__()
        self.table, self.P = self.P, 0.9

    def step(self, action):
        self.P = self.table
        result = super().step(action)
        self.P = 0.9
        return result
"""


@pytest.mark.parametrize(
    ("name", "states", "reward", "said"),
    [
        ("cost", 16, -0.1, "the wrapper TransformReward"),
        ("rows", 4, 0.0, "the wrapper TransformObservation"),
        ("Slow", 16, -0.1, "in state 0 returns the state, reward and termination"),
        ("Momentum", 16, 0.0, ""),
    ],
)
@pytest.mark.parametrize("env_backend", ["auto", "gymnasium"])
def test_an_environment_that_differs_from_its_table_is_stepped(
    name, states, *, reward, said, env_backend, tmp_path, caplog
):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    task = f"{file}:{name}"
    made = experiment(task, budget=100, env_backend=env_backend)
    assert isinstance(made.learner.env, GymnasiumEnv)
    assert made.mdp is None
    assert made.learner.states == states
    made.learner.iterate()
    assert made.learner.q.min() < 0 if reward else made.learner.q.min() == 0
    assert view_of(made, 0).q.shape == (states, 4)
    assert said in caplog.text if env_backend == "auto" else "stepped" not in caplog.text
    made.close()
    with pytest.raises(ValueError, match="has no model to simulate"):
        experiment(task, env_backend="tensor")


def test_a_table_without_a_known_start_is_stepped(caplog):
    one, several = (experiment(f"{chains.__file__}:{name}", budget=100) for name in ("Chain", "Anywhere"))
    assert one.mdp is not None
    assert one.evaluate(2).mean == -4.0
    assert several.mdp is None
    assert isinstance(several.learner.env, GymnasiumEnv)
    assert "stepped, not simulated: its episodes start in several states (0, 2)" in caplog.text
    several.close()
    with pytest.raises(ValueError, match="has no model to simulate: its episodes start"):
        experiment(f"{chains.__file__}:Anywhere", env_backend="tensor")


def test_evaluations_are_the_same_at_every_call_and_need_no_limit():
    made = experiment("CliffWalking-v1")
    first, again = made.evaluate(7), made.evaluate(7)
    assert first == again
    assert first.episodes == 7
    assert max(first.lengths) <= 10_000
    made.learner.q[:] = 0.0
    made.learner.q[:, 36, 0] = made.learner.q[:, 24:35, 1] = made.learner.q[:, 35, 2] = 1.0
    for backend in (None, "auto", "tensor", "gymnasium"):
        evaluation = made.evaluate(3, backend=backend)
        assert evaluation.scores == (-13.0, -13.0)
        assert evaluation.lengths == (13.0, 13.0)
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        made.evaluate(0)
    with pytest.raises(ValueError, match="backend must be 'auto', 'tensor' or 'gymnasium', got 'jax'"):
        made.evaluate(1, backend="jax")


def test_scores_are_exact_where_the_model_is_known():
    made = experiment("FrozenLake-v1")
    made.learner.q[:] = np.eye(4)[[0, 3, 3, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0]]
    exact, sampled = made.evaluate(200), made.evaluate(200, backend="gymnasium")
    assert (exact.exact, sampled.exact) == (True, False)
    assert exact.scores == pytest.approx((0.740165, 0.740165), abs=5e-7)
    assert exact.episode_scores[0] == exact.scores[:1] * 200
    scores = np.array(sampled.episode_scores)
    assert scores.mean() == pytest.approx(exact.mean, abs=4 * 0.44 / np.sqrt(scores.size))
    for cut, expected in zip(sampled.cut, exact.cut, strict=True):
        assert cut == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(200))


def test_a_policy_that_never_ends_has_the_score_of_an_episode_that_is_cut():
    made = experiment("CliffWalking-v1")
    made.learner.q[:] = [1.0, 0.0, 0.0, 0.0]  # up, and up again
    assert made.evaluate(3).scores == (-10_000.0, -10_000.0)
    assert made.evaluate(3).cut == (1.0, 1.0)


@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
@pytest.mark.parametrize(("limit", "score"), [(12, -12.0), (13, -13.0), (200, -13.0)])
def test_the_lower_limit_of_task_and_settings_truncates_evaluations(backend, limit, score):
    made = experiment("CliffWalking-v1", evaluate_max_steps=limit, env_kwargs={"max_episode_steps": 100})
    made.learner.q[:, 36, 0] = made.learner.q[:, 24:35, 1] = made.learner.q[:, 35, 2] = 1.0
    evaluation = made.evaluate(2, backend=backend)
    assert evaluation.scores == (score, score)
    assert evaluation.lengths == (-score, -score)
    made.close()


def test_sampled_episodes_of_a_model_are_truncated_at_the_lower_limit(monkeypatch):
    monkeypatch.setattr("operant.tabular.exact.MOST_WORK", 0)
    made = experiment("CliffWalking-v1", evaluate_max_steps=12, env_kwargs={"max_episode_steps": 100})
    made.learner.q[:] = [1.0, 0.0, 0.0, 0.0]
    assert made.evaluate(2).scores == (-12.0, -12.0)


@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
@pytest.mark.parametrize(("consumed", "lengths"), [(999, [10, 10]), (1000, [50, 50])])
def test_a_changing_task_is_evaluated_as_it_is_at_this_point_of_training(backend, consumed, lengths):
    made = experiment("operant/BlockingMaze-v0", evaluate_max_steps=50)
    before = known_model("operant/BlockingMaze-v0", {"frozen_at": 0})
    made.learner.q[:] = mdp.solve(before, gamma=0.95).q
    made.learner.consumed = consumed
    evaluation = made.evaluate(2, backend=backend)
    assert list(evaluation.lengths) == lengths, "the way that the first maze opens is closed in the second one"
    assert evaluation.exact == (backend == "auto")
    made.close()


SHIFTING = """
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv


class Shifting(FrozenLakeEnv):
    def __init__(self, frozen_at=None):
        super().__init__()
        self.frozen_at, self.steps = frozen_at, frozen_at or 0
        self.first, self.P = self.P, self.table()

    def table(self):
        factor = 1 if self.steps < 100 else 2
        first = getattr(self, "first", self.P)
        return {
            state: {action: [(p, to, factor * r, end) for p, to, r, end in rows] for action, rows in actions.items()}
            for state, actions in first.items()
        }

    def step(self, action):
        self.steps += self.frozen_at is None
        self.P = self.table()
        return super().step(action)
"""


def test_a_changing_environment_of_a_user_has_a_model_only_at_a_point_of_training(tmp_path):
    (tmp_path / "own.py").write_text(SHIFTING)
    made = experiment(task := f"{tmp_path / 'own.py'}:Shifting", budget=100)
    assert made.mdp is None, "its table is that of the first steps"
    assert isinstance(made.learner.env, GymnasiumEnv)
    for consumed, reward in ((99, 1.0), (100, 2.0)):
        made.learner.consumed = consumed
        assert made.evaluation_model().rewards.max() == reward
        assert made.evaluate(2).exact
    made.close()
    assert known_model(task, {"frozen_at": None}) is None
    assert known_model(task, {"frozen_at": 0}) is not None


def test_the_limit_of_the_task_does_not_count_as_that_of_evaluations(caplog):
    made = experiment("CliffWalking-v1", env_kwargs={"max_episode_steps": 10_001}, env_backend="gymnasium")
    made.learner.q[:] = [1.0, 0.0, 0.0, 0.0]
    assert list(made.evaluate(1).lengths) == [10_001, 10_001]
    assert "evaluate_max_steps" not in caplog.text
    made.close()


def test_a_large_model_is_sampled(monkeypatch):
    monkeypatch.setattr("operant.tabular.exact.MOST_WORK", 100)
    made = experiment("FrozenLake-v1")
    sampled = made.evaluate(5)
    assert not sampled.exact
    assert len(sampled.cut) == 2


def test_an_environment_is_wrapped_for_the_learner():
    made = experiment("Blackjack-v1")
    env = made.wrap(gymnasium.make("Blackjack-v1"))
    obs, _ = env.reset(seed=0)
    assert env.observation_space == gymnasium.spaces.Discrete(32 * 11 * 2)
    assert env.observation_space.contains(obs)
    assert made.learner.states == env.observation_space.n
    made.close()
    lake = made.wrap(gymnasium.make("FrozenLake-v1"))
    assert lake.observation_space == gymnasium.spaces.Discrete(16)
    assert lake.reset(seed=0)[0] == 0


def test_unsuitable_tasks_and_options_are_rejected():
    with pytest.raises(ValueError, match="FrozenLake-v1"):
        experiment("FrozenLaki-v1")
    with pytest.raises(ValueError, match="a table needs finite spaces"):
        experiment("CartPole-v1")
    with pytest.raises(ValueError, match="has no model to simulate"):
        experiment("Blackjack-v1", env_backend="tensor")
    with pytest.raises(ValueError, match="runs only on the CPU"):
        experiment("FrozenLake-v1", device="cuda")
    with pytest.raises(TypeError, match="q-learning needs a configuration of OneStepConfig"):
        experiment("FrozenLake-v1", RandomConfig())


def test_learners_are_found_by_name():
    assert learner_for("sarsa", corridor(), seeds=(1,), gamma=0.5).config.gamma == 0.5
    assert learner_for("ucb1", Arms.normal([1.0]), seeds=(1,), bonus_coef=3.0).config.bonus_coef == 3.0
    for source in ("FrozenLake-v1", gymnasium.make("FrozenLake-v1")):
        with pytest.raises(ValueError, match=r"the source is a .*MDP\.from_gymnasium\(env\), or .*enumerated\(task"):
            learner_for("sarsa", source, seeds=(1,))
    with pytest.raises(ValueError, match=r"ppo is not a tabular algorithm; it belongs to operant\.control"):
        learner_for("ppo", corridor(), seeds=(1,))
    for seeds in (["a"], [-1], [0.5]):
        with pytest.raises(ValueError, match=r"seeds must be non-negative integers, such as range\(3\), got"):
            learner_for("sarsa", corridor(), seeds=seeds)
    with pytest.raises(ValueError, match="did you mean gamma"):
        learner_for("sarsa", corridor(), seeds=(1,), gama=0.5)


def test_a_run_is_trained_resumed_and_loaded(tmp_path):
    values = {"seeds": 3, "budget": 900, "progress": "silent", "steps_per_iteration": 100}
    whole = api.train("dyna-q", "CliffWalking-v1", run=tmp_path / "whole", **values)
    asked = []
    part = api.train(
        "dyna-q",
        "CliffWalking-v1",
        run=tmp_path / "part",
        interrupted=lambda: len(asked) > 4 or asked.append(0),
        **values,
    )
    assert part.outcome.interrupted
    resumed = api.resume(tmp_path / "part", progress="silent")
    np.testing.assert_array_equal(resumed.experiment.learner.q, whole.experiment.learner.q)
    loaded = api.load(tmp_path / "whole")
    assert loaded.evaluate(5) == whole.evaluate(5)
    assert loaded.evaluate(5, backend="gymnasium").episodes == 5


def test_a_run_that_diverges_has_no_score_and_keeps_its_checkpoint(tmp_path):
    values = {"step_size": 1.0, "td_lambda": 1.0, "traces": "accumulating", "steps_per_iteration": 100}
    scores = []
    with pytest.raises(NonFiniteError, match="learning has diverged"):
        api.train(
            "sarsa-lambda",
            "CliffWalking-v1",
            run=tmp_path / "run",
            seeds=2,
            budget=20_000,
            evaluate_every=100,
            checkpoint_seconds=0.0,
            progress="silent",
            report=scores.append,
            **values,
        )
    loaded = api.load(tmp_path / "run")
    assert 0 < loaded.experiment.learner.consumed < 20_000
    loaded.experiment.learner.q[1, 3, 2] = np.nan
    with pytest.raises(NonFiniteError, match="seed 1"):
        loaded.evaluate(5)


class Outside(gymnasium.Env):
    """Environment that returns a state outside its space."""

    observation_space, action_space = gymnasium.spaces.Discrete(5), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 9, 0.0, False, False, {}


def test_an_environment_of_a_user_is_checked_and_a_state_outside_its_space_is_named(tmp_path, caplog):
    gymnasium.register("OperantTestOutside-v0", Outside)
    try:
        with pytest.raises(
            EnvError, match=r"^OperantTestOutside-v0: step\(\).* 9 is not in Discrete\(5\), so it is no"
        ):
            api.train("q-learning", "OperantTestOutside-v0", seeds=2, budget=100, run=tmp_path / "run")
        assert "OperantTestOutside-v0: Gymnasium's check_env reports: " in caplog.text
    finally:
        gymnasium.registry.pop("OperantTestOutside-v0")


WRAPPERS = """
import torch
from gymnasium.spaces import Box, Discrete

from operant.envs import Wrapper


class Visits(Wrapper):
    \"\"\"Pays scale / sqrt(n) for the n-th visit of a state, in training alone.\"\"\"

    STATE = LEARNED = ("counts",)
    in_evaluation = False

    def __init__(self, env, scale=0.1):
        super().__init__(env)
        self.scale = scale

    def start(self, seeds):
        self.counts = torch.zeros(len(seeds), int(self.observation_space.n))

    def step(self, actions):
        step = super().step(actions)
        rows = torch.arange(len(self.counts)), step.final_obs
        self.counts[rows] += 1
        return step._replace(reward=step.reward + self.scale / self.counts[rows].sqrt())

    def metrics(self):
        return {"visits/states": (self.counts > 0).sum(1).float()}


class Rows(Wrapper):
    \"\"\"Shows the row of a map of four columns alone.\"\"\"

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = Discrete(4)

    def observation(self, obs):
        return obs // 4


class Continuous(Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = Box(0, 1, (1,))
"""


@pytest.fixture
def wrappers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(WRAPPERS, encoding="utf-8")


def test_a_table_learns_in_wrappers_and_resumes_exactly(wrappers):
    options = {"seeds": 2, "budget": 600, "steps_per_iteration": 100, "evaluate_every": 10_000, "progress": "silent"}
    options |= {"wrappers": ["mine.py:Visits(scale=0.5)"]}
    whole = api.train("q-learning", "FrozenLake-v1", run="whole", **options)
    learner = whole.experiment.learner
    assert learner.env.counts.sum(1).tolist() == [600, 600]
    assert (learner.q[learner.visits > 0] > 0).all(), "every step has a reward"
    stops = iter([False, False, False])
    part = api.train("q-learning", "FrozenLake-v1", run="part", interrupted=lambda: next(stops, True), **options)
    assert part.experiment.learner.consumed < 600
    resumed = api.resume("part", progress="silent").experiment.learner
    np.testing.assert_array_equal(resumed.q, learner.q)
    assert resumed.env.counts.tolist() == learner.env.counts.tolist()
    alone = api.train("q-learning", "FrozenLake-v1", run="alone", **options | {"seeds": [1]}).experiment.learner
    np.testing.assert_array_equal(alone.q[0], learner.q[1])
    report = learner.iterate()
    assert report["visits/states"].tolist() == (learner.env.counts > 0).sum(1).tolist()
    assert report["rollout/episode_return"].nan_to_num().max() <= 1, "the task's own reward is reported"
    evaluation = api.load("whole").evaluate(20)
    assert evaluation.exact, "the wrapper applies in training only, so that the model is that of the task"
    assert evaluation == api.load("whole").evaluate(20)


def test_evaluations_of_tables_are_played_in_the_wrappers_that_hold_there(wrappers):
    made = experiment("FrozenLake-v1", wrappers=("mine.py:Rows",))
    assert made.learner.states == 4
    assert made.mdp is None
    made.learner.q[:] = 0.0
    made.learner.q[:, :3, 1] = made.learner.q[:, 3, 2] = 1.0  # down, and to the right in the last row
    evaluation = made.evaluate(100)
    assert evaluation == made.evaluate(100)
    assert not evaluation.exact
    bare = experiment("FrozenLake-v1", env_backend="gymnasium")
    bare.learner.q[:, :12, 1] = bare.learner.q[:, 12:, 2] = 1.0
    assert bare.evaluate(100, backend="gymnasium").scores == evaluation.scores, "the same policy, the same episodes"
    with pytest.raises(ValueError, match="has no model to simulate"):
        made.evaluate(3, backend="tensor")
    made.close()
    bare.close()


def test_wrappers_that_a_table_cannot_have_are_named(wrappers):
    with pytest.raises(
        ValueError, match=r"Continuous has observations of Box.*, but wrappers of tabular algorithms must have"
    ):
        experiment("FrozenLake-v1", wrappers=("mine.py:Continuous",))
    with pytest.raises(ValueError, match="env_backend='tensor' simulates the model of FrozenLake-v1 inside the kernel"):
        experiment("FrozenLake-v1", wrappers=("mine.py:Rows",), env_backend="tensor")
    with pytest.raises(ValueError, match="bandits run inside the kernel, which does not support"):
        api.train("ucb1", "operant/Testbed-v0", wrappers=["mine.py:Rows"], progress="silent")
