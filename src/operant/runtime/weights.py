"""Weights of the seeds: `load_weights` copies them, and `Best` saves the best.

A learner with networks names them in its attribute `learned`.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from operant.runtime.checkpoints import CheckpointError, Checkpoints, load
from operant.runtime.evaluation import Evaluation
from operant.runtime.experiment import Experiment, SeparateWeights
from operant.runtime.learner import HasWeights, Weights
from operant.runtime.run import Run, RunError
from operant.state import State

logger = logging.getLogger(__name__)


def load_weights(learner: HasWeights, learned: Weights) -> None:
    """Replace the weights of a learner, for each seed, by those of another; those of a single seed for all.

    Raises:
        ValueError: names or shapes differ; the learner is unchanged.
    """
    own = learner.learned
    if odd := own.keys() ^ learned.keys():
        raise ValueError(f"only one of them has {min(odd)!r}")
    for name, there in learned.items():
        here = own[name]
        if len(there) not in (1, len(here)):
            raise ValueError(
                f"there are {len(there)} seeds there and {len(here)} here; all may begin with a single one"
            )
        if there.shape[1:] != here.shape[1:]:
            raise ValueError(f"{name!r} of a seed is {list(there.shape[1:])} there and {list(here.shape[1:])} here")
    with torch.no_grad():
        for name, there in learned.items():
            own[name].copy_(there)


class BestPolicy(NamedTuple):
    """The best policies of a run.

    Attributes:
        learned: the weights of each seed at its highest score.
        scores: `[S]`, these scores.
        consumed: `[S]`, budget used by then.
    """

    learned: Weights
    scores: Tensor
    consumed: Tensor

    def state(self) -> State:
        """Return the state for a checkpoint."""
        return {"learned": dict(self.learned), "statistics": {"scores": self.scores, "consumed": self.consumed}}


class Best:
    """The best policy of each seed by the evaluations during training, in `best/` of a run.

    The highest of many scores is biased upward: evaluate the policy on new episodes.

    Args:
        run: the run.
        place: index of a single saved seed, in `best/seed_<seed>/`, for networks that are not stacked. Default: all
            seeds together.
    """

    def __init__(self, run: Run, *, place: int | None = None) -> None:
        self._path, self._place = run.path, place
        folder = run.path / "best"
        if place is None:
            self._checkpoints = Checkpoints(folder)
        else:
            self._checkpoints = Checkpoints(folder / f"seed_{run.settings.seeds[place]}")
            self._checkpoints.keep = 1

    def offer(self, learner: HasWeights, evaluation: Evaluation) -> None:
        """Save the weights of seeds at a new highest score; a failure is only warned about.

        Seeds whose networks have NaN or Inf are skipped.
        """
        own = evaluation.scores if self._place is None else evaluation.scores[self._place : self._place + 1]
        scores = torch.tensor(own, dtype=torch.float64).nan_to_num(nan=-torch.inf)
        consumed = torch.full(scores.shape, learner.consumed)
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in learner.learned.items()}
        new = BestPolicy(copies, scores, consumed)
        better = torch.stack([t.isfinite().reshape(len(t), -1).all(1) for t in new.learned.values()]).all(0)
        try:
            old = self._latest()
            if old is not None:
                better &= scores > old.scores
                new = _chosen(better, new, old)
            if better.any() and (old is not None or better.all()):
                self._checkpoints.save(new.state(), learner.consumed)
        except (OSError, CheckpointError) as error:
            logger.warning("the best policies could not be saved in %s (%s); training continues", self._path, error)

    def load(self) -> BestPolicy:
        """Return the best policies, on the CPU.

        Raises:
            RunError: none were saved.
            CheckpointError: they are damaged.
        """
        found = self._latest()
        if found is None:
            raise RunError(
                f"{self._path} has no best policies: it was never evaluated in training, or its algorithm saves "
                "none; use its latest policies"
            )
        return found

    def _latest(self) -> BestPolicy | None:
        found = self._checkpoints.latest()
        if found is None:
            return None
        state = load(found[0])
        return BestPolicy(state["learned"], state["statistics"]["scores"], state["statistics"]["consumed"])


def opened(name: str | Path) -> tuple[Run, bool]:
    """Return the run named by `RUN` or `RUN/best`, and whether its best policies are meant.

    Raises:
        RunError: no such run.
    """
    path = Path(name).expanduser()
    best = path.name == "best" and (path.parent / "config.toml").exists()
    return Run.open(path.parent if best else path), best


def keepers(run: Run, experiment: Experiment) -> list[tuple[HasWeights, Best]]:
    """Return learners with their best weights: all seeds together, or each separately; none for tables."""
    if isinstance(experiment, SeparateWeights):
        return [(one, Best(run, place=place)) for place, one in enumerate(experiment.weights)]
    return [(experiment.learner, Best(run))] if isinstance(experiment.learner, HasWeights) else []


def teach_best(run: Run, experiment: Experiment) -> tuple[int, ...]:
    """Load the best weights of a run into its learners.

    Returns:
        The budget used by each seed by then.

    Raises:
        RunError: none were saved.
        CheckpointError: they are damaged.
    """
    consumed: list[int] = []
    for taught, found in keepers(run, experiment) or [(experiment.learner, Best(run))]:
        kept = found.load()
        load_weights(taught, kept.learned)
        consumed += [int(number) for number in kept.consumed]
    if isinstance(experiment, SeparateWeights):
        for weights in experiment.weights:
            weights.refresh()
    return tuple(consumed)


def _chosen(better: Tensor, new: BestPolicy, old: BestPolicy) -> BestPolicy:
    """Return the new weights of the seeds that are `better [S]`, and the old ones of the others."""

    def choose(left: Tensor, right: Tensor) -> Tensor:
        return torch.where(better.view(-1, *[1] * (left.dim() - 1)), left, right)

    learned = {name: choose(tensor, old.learned[name]) for name, tensor in new.learned.items()}
    return BestPolicy(learned, choose(new.scores, old.scores), choose(new.consumed, old.consumed))
