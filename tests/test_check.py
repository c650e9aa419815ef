import pytest
import torch

import operant
from operant import streams
from operant.check import LearnerError, check_learner
from operant.control import A2C
from operant.envs import make
from operant.state import Resumable, State

SMALL = {"num_envs": 2, "hidden_sizes": (4,)}
ROLLOUT = {**SMALL, "num_steps": 8}
REPLAY = {**SMALL, "learning_starts": 16, "batch_size": 8, "buffer_size": 64}
ALTERNATING = {**REPLAY, "rounds_per_iteration": 4}


class Mean(Resumable):
    """Learner of the mean of random numbers, which fulfills the contract."""

    STATE = ("consumed", "weights", "streams")

    def __init__(self, seeds):
        self.consumed, self.weights, self.seeds = 0, torch.zeros(len(seeds)), list(seeds)
        self.streams = [streams.torch_generator(seed, "numbers") for seed in seeds]

    @property
    def learned(self):
        """Weights to compare between a seed alone and among others."""
        return {"weights": self.weights}

    def drawn(self):
        """Return one random number per seed."""
        return torch.stack([torch.rand((), generator=stream) for stream in self.streams])

    def iterate(self):
        """Move the weights toward a random number."""
        errors = self.drawn() - self.weights
        self.weights += 0.5 * errors
        self.consumed += 4
        return {"losses/error": errors.square(), "rollout/episode_return": float("nan"), "rate": 0.5}

    def close(self):
        """Release nothing."""


class StandsStill(Mean):
    def iterate(self):
        return {}


class CountsBefore(Mean):
    def __init__(self, seeds):
        super().__init__(seeds)
        self.consumed = 3


class ReportsNothing(Mean):
    def iterate(self):
        super().iterate()


class ReportsInfinity(Mean):
    def iterate(self):
        return super().iterate() | {"value": float("inf")}


class LosesNumbers(Mean):
    def iterate(self):
        return super().iterate() | {"losses/error": torch.full((len(self.seeds),), torch.nan)}


class ReportsSamples(Mean):
    def iterate(self):
        return super().iterate() | {"samples": torch.zeros(7)}


class ReportsWords(Mean):
    def iterate(self):
        return super().iterate() | {"phase": "warm"}


class WritesLater(Mean):
    def iterate(self):
        return super().iterate() | {"weights": self.weights}


class DrawsAnywhere(Mean):
    def drawn(self):
        return torch.rand(len(self.seeds))


class ForgetsStreams(Mean):
    STATE = ("consumed", "weights")


class ForgetsSchedule(Mean):
    def __init__(self, seeds):
        super().__init__(seeds)
        self.rate = 1.0

    def iterate(self):
        self.rate *= 0.5
        return super().iterate() | {"rate": self.rate}


class IgnoresWeights(Mean):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "weights": self.weights})


class TakesAnything(Mean):
    def load_state_dict(self, state):
        super().load_state_dict({**self.state_dict(), **state})


class LoadsHalf(Mean):
    def load_state_dict(self, state: State) -> None:
        self.consumed = state["consumed"]
        super().load_state_dict(state)


class SavesSets(Mean):
    def state_dict(self):
        return super().state_dict() | {"seen": {1, 2}}


class MixesSeeds(Mean):
    def drawn(self):
        return super().drawn().mean().expand(len(self.seeds))


class DrawsFromFirst(Mean):
    def drawn(self):
        return torch.rand((), generator=self.streams[0]).expand(len(self.seeds))


class AveragesLater(Mean):
    """Learner that overwrites all seeds but the first in its second iteration."""

    def iterate(self):
        metrics = super().iterate()
        if self.consumed > 4:
            self.weights[1:] = self.weights.mean()
        return metrics


class AveragesState(AveragesLater):
    learned = None


class Acts(Mean):
    """Learner with a policy."""

    def __init__(self, seeds):
        super().__init__(seeds)
        self.env = make("CartPole-v1", 3, seeds)

    def act(self, obs, hidden_state, noise):
        return torch.zeros(obs.shape[:2], dtype=torch.int64), None

    def noise(self, rows, generator):
        return torch.rand(rows, generator=generator)


class NeverActs(Acts):
    act = None


class NeverDraws(Acts):
    noise = None


class ActsFlat(Acts):
    def act(self, obs, hidden_state, noise):
        return super().act(obs, hidden_state, noise)[0].flatten(), None


class ActsOutside(Acts):
    def act(self, obs, hidden_state, noise):
        return super().act(obs, hidden_state, noise)[0] + (0 if noise is None else 7), None


class ClosesOnce(Mean):
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class NeverCloses(Mean):
    close = None


def test_a_learner_that_keeps_the_contract_passes():
    check_learner(Mean)
    check_learner(Acts)
    check_learner(Mean, seeds=(5,), iterations=1)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (StandsStill, "consumed was 0 before an iteration and is 0 after it: it must grow"),
        (CountsBefore, "consumed is 3 before the first iteration: it must be an int, the budget that"),
        (ReportsNothing, "iterate returned None: it must return a mapping of metrics"),
        (ReportsInfinity, "metric 'value' is inf: metrics must not be Inf"),
        (LosesNumbers, r"metric 'losses/error' is \[nan, nan\]: metrics must not be Inf"),
        (ReportsSamples, r"metric 'samples' has shape \(7,\): it must be one number, or one per seed, \(2,\)"),
        (ReportsWords, "metric 'phase' is a str: metrics must be floats or tensors"),
        (WritesLater, r"metric 'weights' was changed by the next iteration: report a copy \(`tensor.clone\(\)`\)"),
        (DrawsAnywhere, "two learners with the same seeds differ in state entry /weights .*: draw all random numbers"),
        (ForgetsStreams, "state entry /weights differs between the next iterations with .*: the state lacks something"),
        (
            ForgetsSchedule,
            "metric 'rate' differs between the next iterations .* a schedule or the environment; name it in",
        ),
        (IgnoresWeights, "state entry /weights differs after loading: load_state_dict must restore it"),
        (TakesAnything, "a state that lacks 'consumed' was loaded without an error: read every entry"),
        (
            LoadsHalf,
            "a state that lacks 'weights' raised an error, but has changed state entry /consumed: inherit from",
        ),
        (SavesSets, "state_dict returned a value that checkpoints cannot store: state entry /seen is a set"),
        (MixesSeeds, "metric 'losses/error' of seed 0 differs by .* without the other seeds: sum losses"),
        (DrawsFromFirst, "metric 'losses/error' of seed 1 differs by .* without the other seeds"),
        (AveragesLater, "weight 'weights' of seed 1 differs by .* without the other seeds"),
        (AveragesState, "state entry /weights of seed 1 differs by .* without the other seeds"),
        (NeverActs, "NeverActs has no method 'act'"),
        (NeverDraws, "NeverDraws has no method 'noise'"),
        (ActsFlat, r"ActsFlat\.act must return actions of shape \(2, 3\), .*, got \(6,\)"),
        (ActsOutside, r"ActsOutside\.act returned the action 7, not in Discrete\(2\)"),
        (
            ClosesOnce,
            r"close failed when called twice \(RuntimeError\('closed already'\)\): the second call must do nothing",
        ),
        (NeverCloses, "NeverCloses has no method 'close': see operant.runtime.learner.ControlLearner"),
    ],
)
def test_a_learner_that_breaks_the_contract_raises_an_error_with_place_and_fix(kind, message):
    with pytest.raises(LearnerError, match=message):
        check_learner(kind)


@pytest.mark.parametrize(
    ("name", "task", "values"),
    [
        ("ppo", "CartPole-v1", ROLLOUT | {"num_epochs": 2, "num_minibatches": 2, "normalize_obs": True}),
        ("recurrent-ppo", "CartPole-v1", ROLLOUT | {"num_epochs": 1, "num_minibatches": 2, "rnn_hidden_size": 4}),
        ("a2c", "Pendulum-v1", ROLLOUT),
        ("trpo", "CartPole-v1", ROLLOUT),
        ("reinforce", "CartPole-v1", SMALL),
        ("prioritized-dqn", "CartPole-v1", REPLAY | {"train_freq": 8}),
        ("td3", "Pendulum-v1", ALTERNATING),
        ("sac", "Pendulum-v1", ALTERNATING),
        ("sac-discrete", "CartPole-v1", ALTERNATING),
        ("q-learning", "FrozenLake-v1", {}),
    ],
)
def test_learners_of_the_library_keep_the_contract(name, task, values):
    operant.check_learner(name, task, **values)


class Hurried(A2C):
    """Subclass that omits parts of its base class from the state."""

    STATE = ("consumed", "agent")


def test_a_class_is_checked_in_a_task():
    check_learner(A2C, "CartPole-v1", **ROLLOUT)
    with pytest.raises(LearnerError, match="differs between the next iterations"):
        check_learner(Hurried, "CartPole-v1", **ROLLOUT)


def test_a_name_needs_a_task_and_an_environment():
    with pytest.raises(ValueError, match=r"ppo needs a task .*: check_learner\('ppo', 'CartPole-v1'\)"):
        check_learner("ppo")
    with pytest.raises(ValueError, match="grpo trains a language model: pass check_learner a function"):
        check_learner("grpo", "arithmetic")
    with pytest.raises(ValueError, match=r"ppo\.num_env: there is no such key"):
        check_learner("ppo", "CartPole-v1", num_env=2)


@pytest.mark.parametrize("wrong", [{"seeds": ()}, {"iterations": 0}])
def test_nothing_is_not_checked(wrong):
    with pytest.raises(ValueError, match="at least one seed and one iteration are needed"):
        check_learner(Mean, **wrong)
