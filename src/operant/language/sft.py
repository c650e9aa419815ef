"""Supervised fine-tuning: maximum likelihood of demonstrations.

Maximizes the log-likelihood of the tokens of demonstrations given the preceding text (Ouyang et al. 2022,
arXiv:2203.02155, section 3.5; the method is older). Only tokens of the completion are trained, including EOS, so that
the model learns to stop.

What differs from common practice: all tokens of an optimizer step have the same weight, independent of its division
into micro-batches; there is no padding; and the final weights are those with the lowest validation loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from operant import ops
from operant.language.configs import LanguageConfig
from operant.language.models import LanguageModel
from operant.language.optimizer import OptimizerStep, backward
from operant.language.packing import Packed, Sample, micro_batches, pack, take
from operant.language.rollouts import shuffled
from operant.runtime.bounds import PositiveFloat, PositiveInt
from operant.runtime.learner import Metrics
from operant.runtime.shards import Shards
from operant.state import State, clone
from operant.tensors import backpropagate, split

PRESETS: dict[str, dict[str, Any]] = {}
"""There are no variants."""


@dataclass(frozen=True, kw_only=True)
class SFTConfig(LanguageConfig):
    """Hyperparameters."""

    learning_rate: PositiveFloat = 2e-5
    """Learning rate of AdamW (TRL: 2e-5). Models of a few million parameters need 1e-3."""
    batch_size: PositiveInt = 32
    """Number of demonstrations per optimizer step."""
    loss_aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    """Aggregation of the loss: mean over all tokens of the step, or mean over demonstrations of their token means."""
    keep_best: bool = True
    """Load the weights with the lowest validation loss at the end of training."""
    validations: PositiveInt = 40
    """Number of validations per run, for the best weights."""


class SFT:
    """Learner of SFT.

    Args:
        config: hyperparameters.
        model: model to train.
        demonstrations: training set.
        held_out: demonstrations for validation.
        seed: random seed of the order of the demonstrations.
        budget: number of training demonstrations, including repetitions.
        shards: shards of each optimizer step. Default: one.

    Attributes:
        consumed: number of demonstrations used so far.
        model: model.
        validation: last validation loss, in nats per token.
    """

    def __init__(
        self,
        config: SFTConfig,
        model: LanguageModel,
        demonstrations: Sequence[Sample],
        held_out: Sequence[Sample],
        *,
        seed: int,
        budget: int,
        shards: Shards | None = None,
    ):
        self.config, self.model, self.budget, self.seed = config, model, budget, seed
        self.shards = shards or Shards()
        self.demonstrations, self.held_out = demonstrations, held_out
        self.stepper = OptimizerStep(model.trained(), config)
        self.consumed = 0
        self.validation, self.least = float("nan"), float("inf")
        self.best: State | None = None

    def iterate(self) -> Metrics:
        """Take one optimizer step on the next demonstrations."""
        count = min(self.config.batch_size, len(self.demonstrations))
        order = shuffled(len(self.demonstrations), self.consumed, count, seed=self.seed)
        metrics = self.update(take(self.demonstrations, order))
        before, self.consumed = self.consumed, self.consumed + count
        every = max(1, self.budget // self.config.validations)
        over = self.consumed >= self.budget
        if self.config.keep_best and (over or before // every < self.consumed // every):
            self.validate()
            if over and self.best is not None:
                self.model.load_state_dict(self.best)
                self.stepper.refresh()
                self.validation = self.least
        return metrics | {"validation/loss": self.validation}

    def update(self, batch: Sequence[Sample]) -> dict[str, Any]:
        """Take one optimizer step on a batch, accumulating gradients over micro-batches."""
        parts = micro_batches(batch, tokens=self.config.micro_batch_tokens, shards=self.shards.count)
        packed = [pack(take(batch, part), ends=False, device=self.model.device) for part in parts]
        lengths = [part.lengths for part in packed]
        weight = ops.token_weights(torch.cat(lengths), how=self.config.loss_aggregation)
        weights = split(weight, [len(n) for n in lengths])
        tokens = sum(int(n.sum()) for n in lengths)

        def differentiate(part: tuple[Packed, Tensor]) -> tuple[Tensor, Tensor]:
            rows, weight = part
            log_probs, entropies = self.model.log_probs(rows)
            nll = -(weight[rows.owner] * log_probs).sum()
            backpropagate(nll)
            return nll.detach(), entropies.detach().sum() / tokens

        found = backward([self.stepper], [*zip(packed, weights, strict=True)], differentiate, self.shards)
        loss, entropy = (sum(column, torch.zeros(())) for column in zip(*found, strict=True))
        norm, skipped = self.stepper.step(self.consumed / self.budget)
        return {
            "losses/nll": loss,
            "losses/gradient_norm": norm,
            "entropy": entropy,
            "num_tokens": float(tokens),
            "health/updates": 1.0,
            "health/skipped_updates": skipped,
        }

    def validate(self) -> None:
        """Compute the validation loss, and save the weights if it is the lowest so far."""
        most = self.config.micro_batch_tokens
        parts = micro_batches(self.held_out, tokens=most, shards=self.shards.count)
        found = self.shards.map(
            lambda part: self.model.completion_log_probs(take(self.held_out, part), tokens=most), parts
        )
        log_probs = [row for rows in found for row in rows]
        tokens = sum(len(row) for row in log_probs)
        self.validation = -sum(float(row.sum()) for row in log_probs) / tokens
        if self.validation < self.least:
            self.least, self.best = self.validation, clone(self.model.state_dict())

    def state_dict(self) -> State:
        """Return the complete state for an exact resume."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.stepper.state_dict(),
            "consumed": self.consumed,
            "statistics": {"validation": self.validation, "least": self.least},
            "best": self.best,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict` exactly."""
        self.model.load_state_dict(state["model"])
        self.stepper.load_state_dict(state["optimizer"])
        self.consumed, self.best = state["consumed"], state["best"]
        self.validation, self.least = state["statistics"]["validation"], state["statistics"]["least"]
