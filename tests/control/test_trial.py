"""Wrong learners of users are reported before a run is created."""

from dataclasses import dataclass

import pytest
import torch

import operant
from operant.state import Resumable

TINY = {"budget": 32, "progress": "silent", "evaluate_episodes": 2}


@dataclass(frozen=True)
class Config:
    """Hyperparameters of a learner from scratch."""

    num_envs: int = 2
    """Environments per seed."""


class Scratch(Resumable):
    """Learner with the documented methods alone, which plays the first action."""

    STATE = ("consumed", "env")

    def __init__(self, config: Config, env, *, seeds, budget):
        self.consumed, self.env, self.seeds = 0, env, seeds
        self.env.reset()

    def act(self, obs, hidden_state, noise):
        return torch.zeros(len(obs), obs.shape[1], dtype=torch.int64), None

    def noise(self, rows, generator):
        return torch.rand(rows, generator=generator)

    def iterate(self):
        self.env.step(torch.zeros(self.env.rows, dtype=torch.int64))
        self.consumed += 2
        return {}

    def close(self):
        self.env.close()


def train(learner, path, **options):
    return operant.train(learner, "CartPole-v1", run=path / "run", **{**TINY, **options})


def test_the_documented_methods_are_enough(tmp_path):
    trained = train(Scratch, tmp_path, seeds=2)
    assert trained.outcome.consumed == 32
    assert trained.predict([0.0] * 4)[0] == trained.predict([0.0] * 4, deterministic=False)[0] == 0
    assert operant.resume(tmp_path / "run", budget=40, progress="silent").outcome.evaluation.mean > 0


class Counting(Scratch):
    """Learner with a weight per seed."""

    STATE = ("consumed", "env", "weight")

    def __init__(self, config: Config, env, *, seeds, budget):
        super().__init__(config, env, seeds=seeds, budget=budget)
        del self.seeds
        self.weight = torch.tensor([float(seed) for seed in seeds])

    @property
    def learned(self):
        return {"weight": self.weight}

    def noise(self, rows, generator):
        return torch.rand(rows, generator=generator)


def test_a_learner_with_weights_starts_from_another_run(tmp_path):
    operant.train(Counting, "CartPole-v1", run=tmp_path / "first", seeds=[3, 1], **TINY)
    for seeds, weights in (([1, 3], [1.0, 3.0]), ([5, 6], [3.0, 1.0])):
        run = tmp_path / f"run-{seeds[0]}"
        again = operant.train(Counting, "CartPole-v1", run=run, seeds=seeds, init=tmp_path / "first", **TINY)
        assert again.experiment.learner.weight.tolist() == weights
    assert (tmp_path / "first" / "best").is_dir()
    operant.train(Scratch, "CartPole-v1", run=tmp_path / "none", **TINY)
    for learner, source in ((Scratch, "none"), (Scratch, "first"), (Counting, "none")):
        with pytest.raises(
            ValueError, match=r"cannot start from .*: give it `learned`|no weights to copy; give it `learn"
        ):
            operant.train(learner, "CartPole-v1", run=tmp_path / "x", init=tmp_path / source, **TINY)


class NoAct(Scratch):
    act = None


class NoNoise(Scratch):
    noise = close = None


class Alone(Scratch):
    def act(self, obs, hidden_state, noise):
        return super().act(obs, hidden_state, noise)[0]


class Flat(Scratch):
    def act(self, obs, hidden_state, noise):
        return super().act(obs, hidden_state, noise)[0].flatten(), None


class DrawsForSeeds(Scratch):
    def noise(self, rows, generator):
        return torch.rand(1, rows, generator=generator)


class DrawsNothing(Scratch):
    def noise(self, rows, generator):
        return None


class Third(Scratch):
    def act(self, obs, hidden_state, noise):
        return super().act(obs, hidden_state, noise)[0] + (2 if noise is None else 0), None


class Real(Scratch):
    def act(self, obs, hidden_state, noise):
        return super().act(obs, hidden_state, noise)[0].float(), None


class NotCounting(Scratch):
    consumed = property(lambda self: 0.5, lambda self, value: None)


@dataclass(frozen=True)
class Sparse:
    """Hyperparameters without the number of environments."""

    rate: float = 0.1
    """Rate."""


class NoRows(Scratch):
    config: Sparse


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        (NoAct, r"NoAct lacks the method act: see operant\.runtime\.learner\.ControlLearner"),
        (NoNoise, "NoNoise lacks the methods noise, close"),
        (Alone, r"Alone\.act must return a pair, a tensor of actions and the next hidden state"),
        (Flat, r"Flat\.act must return actions of shape \(1, 2\), seeds and environments, got \(2,\)"),
        (DrawsForSeeds, r"DrawsForSeeds\.noise must return .* \(3, \.\.\.\), .* of one seed, got \(1, 3\): leave out"),
        (DrawsNothing, r"DrawsNothing\.noise must return a tensor of shape \(3, \.\.\.\), .*, got None"),
        (Third, r"Third\.act returned the action 2, not in Discrete\(2\)"),
        (Real, r"Real\.act: actions have dtype torch\.float32, but the action space needs torch\.int64"),
        (NotCounting, r"NotCounting\.consumed must be an integer"),
        (NoRows, "Sparse, has no field num_envs: add"),
    ],
)
def test_a_learner_that_cannot_be_trained_is_reported_before_there_is_a_run(learner, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        train(learner, tmp_path)
    assert not (tmp_path / "run").exists()


class Silent(Scratch):
    def iterate(self):
        super().iterate()


def test_metrics_that_are_none_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"Silent\.iterate returned None: it must return a mapping of metrics"):
        train(Silent, tmp_path)


def test_an_objective_with_other_parameters_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"objective .* cannot be called: too many positional arguments; expected a"):
        operant.train("ppo", "CartPole-v1", objective=lambda batch: batch, run=tmp_path / "run", **TINY)
    assert not (tmp_path / "run").exists()
