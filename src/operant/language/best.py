"""Best weights of a language model, stored by `operant.runtime.weights.Best`: `ModelWeights`, `best_state`."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from operant.runtime.run import Run
from operant.runtime.weights import Best, Weights
from operant.state import State

MODEL, HEAD = "model", "head"
"""Parts of a learner's state that are stored in the best weights."""


@dataclass(frozen=True)
class ModelWeights:
    """Weights of one seed's learner: all trained parameters of its model or adapter, and its head, if any.

    Attributes:
        learner: learner of one seed.
    """

    learner: Any

    @property
    def consumed(self) -> int:
        """Budget used so far."""
        return self.learner.consumed

    @property
    def learned(self) -> Weights:
        """The parameters by name, `[1, ...]` each."""
        found: dict[str, Tensor] = {f"{MODEL}.{name}": value for name, value in self.learner.model.whole().items()}
        if scorer := getattr(self.learner, "scorer", None):
            found |= {f"{HEAD}.{name}": value for name, value in scorer.head.named_parameters()}
        return {name: value.detach().unsqueeze(0) for name, value in found.items()}

    @property
    def kept(self) -> Weights:
        """The parameters by name, as they are stored: with the centered scores of a finished reward model."""
        if not hasattr(self.learner, "centered_bias"):
            return self.learned
        return {**self.learned, f"{HEAD}.bias": self.learner.centered_bias().unsqueeze(0)}

    def refresh(self) -> None:
        """Synchronize the optimizer with the current parameters."""
        getattr(self.learner, "grpo", self.learner).stepper.refresh()


def best_state(run: Run, place: int) -> dict[str, State]:
    """Load the best weights of one seed, by part of its state and by name.

    Args:
        run: the run.
        place: index of the seed in the run.

    Raises:
        RunError: the run has no best weights.
        CheckpointError: they are damaged.
    """
    found: dict[str, State] = {}
    for name, value in Best(run, index=place).load().learned.items():
        part, _, rest = name.partition(".")
        found.setdefault(part, {})[rest] = value[0]
    return found
