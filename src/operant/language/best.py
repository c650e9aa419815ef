"""The best weights of a language model, as `operant.runtime.weights.Best` keeps them: `ModelWeights`, `best_state`."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from operant.runtime.run import Run
from operant.runtime.weights import Best, Weights
from operant.state import State

MODEL, HEAD = "model", "head"
"""Parts of a learner's state that are kept."""


@dataclass(frozen=True)
class ModelWeights:
    """What the learner of one seed has learned: all that it trains of its model (of an adapter that alone), and a head.

    Attributes:
        learner: of one seed.
    """

    learner: Any

    @property
    def consumed(self) -> int:
        """Budget used so far."""
        return self.learner.consumed

    @property
    def learned(self) -> Weights:
        """The parameters themselves, `[1, ...]` each."""
        found: dict[str, Tensor] = {f"{MODEL}.{name}": value for name, value in self.learner.model.trained().items()}
        if scorer := getattr(self.learner, "scorer", None):
            found |= {f"{HEAD}.{name}": value for name, value in scorer.head.named_parameters()}
        return {name: value.detach().unsqueeze(0) for name, value in found.items()}

    def refresh(self) -> None:
        """Let the optimizer take the parameters as they are now, after others were put in their place."""
        getattr(self.learner, "grpo", self.learner).stepper.refresh()


def best_state(run: Run, place: int) -> dict[str, State]:
    """The best weights of one seed, by part of its state and by name.

    Args:
        run: has kept them.
        place: of the seed among those of the run.

    Raises:
        RunError: none were kept.
        CheckpointError: they are damaged.
    """
    found: dict[str, State] = {}
    for name, value in Best(run, place=place).load().learned.items():
        part, _, rest = name.partition(".")
        found.setdefault(part, {})[rest] = value[0]
    return found
