"""Weights of learners: `load_weights` copies them, and `Best` saves those with the best evaluation.

A learner with networks has them in its attribute `learned`, stacked along the seed axis.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from operant.runtime.checkpoints import CheckpointError, Checkpoints, load
from operant.runtime.evaluation import Evaluation
from operant.runtime.experiment import Experiment, SeparateWeights
from operant.runtime.learner import HasWeights, RenewableWeights, Weights
from operant.runtime.run import Run, RunError
from operant.runtime.run_paths import is_run
from operant.state import State

logger = logging.getLogger(__name__)


def load_weights(learner: HasWeights, learned: Weights) -> None:
    """Overwrite the weights of a learner with those of another, seed by seed; a single seed initializes all.

    Args:
        learner: learner to modify.
        learned: weights by name, `[S, ...]` or `[1, ...]`.

    Raises:
        ValueError: names or shapes differ; the learner is unchanged.
    """
    current = learner.learned
    if mismatch := current.keys() ^ learned.keys():
        raise ValueError(f"only one of the runs has {min(mismatch)!r}")
    for name, source in learned.items():
        target = current[name]
        if len(source) not in (1, len(target)):
            raise ValueError(
                f"that run has {len(source)} seeds and this one {len(target)}; only a single seed can initialize others"
            )
        if source.shape[1:] != target.shape[1:]:
            raise ValueError(
                f"{name!r} has shape {list(source.shape[1:])} in that run, but {list(target.shape[1:])} in this one"
            )
    with torch.no_grad():
        for name, source in learned.items():
            current[name].copy_(source)


class BestPolicy(NamedTuple):
    """The best policies of a run.

    Attributes:
        learned: weights of each seed at its highest score.
        scores: `[S]`, highest score of each seed.
        consumed: `[S]`, budget used at that evaluation.
    """

    learned: Weights
    scores: Tensor
    consumed: Tensor

    def state(self) -> State:
        """Return the state for a checkpoint."""
        return {"learned": dict(self.learned), "statistics": {"scores": self.scores, "consumed": self.consumed}}


class Best:
    """The policy of each seed with the best evaluation during training, in the folder `best/` of a run.

    The maximum of many scores is biased upward: evaluate the policy on new episodes.

    Args:
        run: the run.
        index: index of a single seed to save in `best/seed_<seed>/`, for networks that are not stacked. Default: save
            all seeds together.
    """

    def __init__(self, run: Run, *, index: int | None = None) -> None:
        self._path, self._index = run.path, index
        folder = run.path / "best"
        if index is None:
            self._checkpoints = Checkpoints(folder)
        else:
            self._checkpoints = Checkpoints(folder / f"seed_{run.settings.seeds[index]}")
            self._checkpoints.keep = 1

    def offer(self, learner: HasWeights, evaluation: Evaluation) -> None:
        """Save the weights of seeds that reach a new highest score; a failed write causes a warning.

        Seeds whose networks contain NaN or Inf are skipped.
        """
        seed_scores = evaluation.scores if self._index is None else evaluation.scores[self._index : self._index + 1]
        scores = torch.tensor(seed_scores, dtype=torch.float64).nan_to_num(nan=-torch.inf)
        consumed = torch.full(scores.shape, learner.consumed)
        kept = learner.kept if isinstance(learner, RenewableWeights) else learner.learned
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in kept.items()}
        new = BestPolicy(copies, scores, consumed)
        better = torch.stack([t.isfinite().reshape(len(t), -1).all(1) for t in new.learned.values()]).all(0)
        try:
            previous = self._latest()
            if previous is not None:
                better &= scores > previous.scores
                new = _chosen(better, new, previous)
            if better.any() and (previous is not None or better.all()):
                if self._index is not None:
                    self._checkpoints.folder.parent.mkdir(exist_ok=True)
                self._checkpoints.save(new.state(), learner.consumed, replace=True)
        except (OSError, CheckpointError) as error:
            logger.warning("the best policies could not be saved in %s (%s); training continues", self._path, error)

    def load(self) -> BestPolicy:
        """Load the best policies on the CPU.

        Raises:
            RunError: no best policies were saved.
            CheckpointError: they are damaged.
        """
        found = self._latest()
        if found is None:
            raise _no_best(self._path)
        return found

    def _latest(self) -> BestPolicy | None:
        found = self._checkpoints.latest()
        if found is None:
            return None
        state = load(found[0])
        return BestPolicy(state["learned"], state["statistics"]["scores"], state["statistics"]["consumed"])


def opened(name: str | Path) -> tuple[Run, bool]:
    """Open the run named by `RUN` or `RUN/best`, and return whether its best policies are requested.

    Raises:
        RunError: there is no such run.
    """
    path = Path(name).expanduser()
    best = path.name == "best" and is_run(path.parent)
    return Run.open(path.parent if best else path), best


def best_weights_of(run: Run, experiment: Experiment) -> list[tuple[HasWeights, Best]]:
    """Return the learners of a run with the stores of their best weights.

    There is one per seed if seeds have separate weights, and none if the learner has no weights.
    """
    if isinstance(experiment, SeparateWeights):
        return [(weights, Best(run, index=index)) for index, weights in enumerate(experiment.weights)]
    return [(experiment.learner, Best(run))] if isinstance(experiment.learner, HasWeights) else []


def require_best(run: Run) -> None:
    """Check that a run has best policies, before its experiment is built; `load_best_weights` checks all seeds.

    Raises:
        RunError: no best weights were saved.
    """
    if not (run.path / "best").is_dir():
        raise _no_best(run.path)


def _no_best(path: Path) -> RunError:
    return RunError(
        f"{path} has no best policies: it was never evaluated during training, or its algorithm saves none; use the "
        "latest policies"
    )


def load_best_weights(run: Run, experiment: Experiment) -> tuple[int, ...]:
    """Load the best weights of a run into its learners.

    Returns:
        The budget that each seed had used at its best evaluation.

    Raises:
        RunError: no best weights were saved.
        CheckpointError: they are damaged.
    """
    consumed: list[int] = []
    for learner, best in best_weights_of(run, experiment) or [(experiment.learner, Best(run))]:
        best_policy = best.load()
        load_weights(learner, {**learner.learned, **best_policy.learned})  # earlier versions saved fewer statistics
        consumed += [int(number) for number in best_policy.consumed]
    if isinstance(experiment, SeparateWeights):
        for weights in experiment.weights:
            weights.refresh()
    return tuple(consumed)


def _chosen(better: Tensor, new: BestPolicy, old: BestPolicy) -> BestPolicy:
    """Return the new weights of the seeds for which `better [S]` is true, and the old weights of the others."""

    def choose(left: Tensor, right: Tensor) -> Tensor:
        return torch.where(better.view(-1, *[1] * (left.dim() - 1)), left, right)

    # Earlier versions saved no statistics of bonuses, which policies do not use.
    learned = {name: choose(tensor, old.learned.get(name, tensor)) for name, tensor in new.learned.items()}
    return BestPolicy(learned, choose(new.scores, old.scores), choose(new.consumed, old.consumed))
