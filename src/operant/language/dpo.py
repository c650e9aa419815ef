r"""Direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290): preferences without a reward model.

The policy that maximizes E[r] - β KL(π‖ref) is π* = ref·exp(r/β)/Z. Solved for the reward, r = β log(π*/ref) + β log Z,
it turns the loss of a reward model into a loss of the policy, since Z depends only on the prompt and cancels in a
comparison: -log σ(β[(log π_w - log ref_w) - (log π_l - log ref_l)]), equation 7. IPO (Azar et al. 2023,
arXiv:2310.12036, equation 17) and the hinge loss of SLiC (Zhao et al. 2023, arXiv:2305.10425) are selected by
`loss_type`.

What differs from the paper: the log-probabilities of the reference are computed once, before training, and are part of
the state (`precompute_ref_log_probs`); and the first loss is checked against its known value, log 2 for equal policy
and reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from operant import ops
from operant.language.configs import LanguageConfig, require_used
from operant.language.examples import Pair
from operant.language.models import LanguageModel, Reference
from operant.language.optimizer import OptimizerStep, backward
from operant.language.packing import Packed, Sample, group_batches, pack
from operant.language.rollouts import shuffled
from operant.runtime.bounds import PositiveFloat, PositiveInt, require
from operant.runtime.learner import Metrics
from operant.runtime.shards import Shards
from operant.state import DeclaredState, State, clone
from operant.tensors import backpropagate, floats

PRESETS: dict[str, dict[str, Any]] = {}
"""There are no presets; variants are values of `loss_type`."""

EXACT = 1e-4
"""Tolerance of the first loss in float32, relative if its expected value is above 1."""
ROUNDED = 3e-2
"""Tolerance of the first loss in bfloat16, or with matrix products of reduced precision."""


@dataclass(frozen=True, kw_only=True)
class DPOConfig(LanguageConfig):
    """Hyperparameters of DPO, with TRL's names; docs/algorithms/dpo.md lists the differences from TRL's defaults."""

    learning_rate: PositiveFloat = 1e-6
    """Learning rate of AdamW. Models of a few million parameters need 1e-5 to 1e-4."""
    batch_size: PositiveInt = 32
    """Number of pairs per optimizer step."""
    beta: PositiveFloat = 0.1
    """Strength of the KL penalty to the reference, above 0. Larger values keep the policy closer to the reference."""
    loss_type: Literal["sigmoid", "ipo", "hinge"] = "sigmoid"
    """Loss of a pair (`operant.ops.dpo`). `ipo` uses mean log-probabilities per token, the others sums."""
    label_smoothing: float = 0.0
    """Assumed probability that a label is flipped, in [0, 0.5); only for `sigmoid`."""
    precompute_ref_log_probs: bool = True
    """Compute the reference's log-probabilities once, before training, instead of at every step. This saves computation
    and the memory of a second model."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        require(self, label_smoothing="[0, 0.5)")
        used = self.loss_type == "sigmoid"
        require_used(self, f"loss_type={self.loss_type}", ("label_smoothing", used, "loss_type=sigmoid", ""))


class DPO(DeclaredState):
    """Learner of DPO.

    Args:
        config: hyperparameters.
        model: policy; the reference is a copy of its initial state.
        pairs: training set.
        held_out: pairs for `accuracies`.
        seed: random seed of the order of the pairs.
        budget: number of training pairs, including repetitions.
        shards: shards of each optimizer step. Default: one.

    Attributes:
        consumed: number of pairs used so far.
        model: policy.
        reference: reference model; None if its log-probabilities are precomputed.
        precomputed: reference log-probabilities of the chosen and the rejected answer of each pair, `[N + H, 2]`:
            training pairs, then held-out pairs, 0 for those that the budget does not reach (checkpoints must be
            finite); None before the first step, or without `precompute_ref_log_probs`.
    """

    STATE = ("model", ("optimizer", "stepper"), "consumed", "reference")

    def __init__(
        self,
        config: DPOConfig,
        model: LanguageModel,
        pairs: Sequence[Pair],
        held_out: Sequence[Pair] = (),
        *,
        seed: int,
        budget: int,
        shards: Shards | None = None,
    ):
        self.shards = shards or Shards()
        self.config, self.model, self.seed, self.budget = config, model, seed, budget
        self.pairs, self.held_out = list(pairs), list(held_out)
        self.stepper = OptimizerStep(model.trained(), config)
        self.reference = None if config.precompute_ref_log_probs else Reference(model)
        self.precomputed: Tensor | None = None
        self.consumed = 0

    def iterate(self) -> Metrics:
        """Take one optimizer step on the next pairs."""
        count = min(self.config.batch_size, len(self.pairs))
        metrics = self.update(shuffled(len(self.pairs), self.consumed, count, seed=self.seed))
        self.consumed += count
        return metrics

    def update(self, batch: Sequence[int]) -> dict[str, Any]:
        """Take one optimizer step on the pairs with the given indices, accumulating gradients over micro-batches."""
        if self.reference is None and self.precomputed is None:
            self.precomputed = self._precompute()

        def differentiate(part: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
            packed = self._packed(part)
            policy = self._sums(self.model.log_probs(packed)[0], packed)
            ref = self._under_reference(part, packed)
            how: dict[str, Any] = {"label_smoothing": self.config.label_smoothing, "kind": self.config.loss_type}
            loss = ops.dpo(*policy.unbind(1), *ref.unbind(1), beta=self.config.beta, **how)
            backpropagate(loss.sum() / len(batch))
            return loss.detach(), policy.detach(), self.config.beta * (policy.detach() - ref)

        found = backward([self.stepper], self._parts(batch), differentiate, self.shards)
        losses, policies, rewards = zip(*found, strict=True)
        loss = torch.cat(losses).mean()
        if not self.stepper.steps:
            self.check_start(float(loss))
        norm, skipped = self.stepper.step(self.consumed / self.budget)
        chosen, rejected = torch.cat(rewards).unbind(1)
        log_probs = torch.cat(policies).mean(0)
        return {
            "losses/dpo": loss,
            "losses/gradient_norm": norm,
            "rewards/chosen": chosen.mean(),
            "rewards/rejected": rejected.mean(),
            "rewards/accuracies": (chosen > rejected).float().mean(),
            "rewards/margins": (chosen - rejected).mean(),
            "logps/chosen": log_probs[0],
            "logps/rejected": log_probs[1],
            "num_tokens": float(sum(len(p.chosen) + len(p.rejected) for p in map(self._pair, batch))),
            "health/updates": 1.0,
            "health/skipped_updates": skipped,
        }

    def check_start(self, loss: float) -> None:
        """Check the loss of the first step, at which the policy equals its reference.

        Raises:
            ValueError: the loss differs from its expected value: log 2 for sigmoid, 1 for hinge, 1/(2β)² for IPO.
        """
        zero = torch.zeros(1)
        expected = float(ops.dpo(zero, zero, zero, zero, beta=self.config.beta, kind=self.config.loss_type))
        full = self.model.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        if not abs(loss - expected) <= (EXACT if full else ROUNDED) * max(1.0, expected):
            raise ValueError(
                f"the first DPO loss is {loss:.6g}, but a policy equal to its reference has loss {expected:.6g} "
                f"({self.config.loss_type}): their log-probabilities were computed differently. "
                "Look for dropout, noise or routing in the network, or weights that changed after initialization"
            )

    @torch.no_grad()
    def accuracies(self, count: int | None = None) -> list[float]:
        """Return for each held-out pair 1 if its chosen answer has the higher implicit reward β log(π/ref), else 0.

        Ties give 0.5, as for a policy equal to its reference before the first step.

        Args:
            count: number of pairs to use, from the first; None: all.
        """
        wanted = [len(self.pairs) + i for i in range(len(self.held_out))][:count]
        if not self.stepper.steps:
            return [0.5] * len(wanted)
        found: list[Tensor] = []
        for part in self._parts(wanted):
            packed = self._packed(part)
            ref = self._under_reference(part, packed)
            policy = self._sums(self.model.log_probs(packed)[0], packed)
            chosen, rejected = (policy - ref).unbind(1)
            found.append((1 + (chosen - rejected).sign()) / 2)
        return floats(torch.cat(found)) if found else []

    def _under_reference(self, part: Sequence[int], packed: Packed) -> Tensor:
        """Return the reference log-probabilities of the pairs with the given indices, `[n, 2]`."""
        if self.reference is not None:
            return self._sums(self.reference.log_probs(packed), packed)
        assert self.precomputed is not None  # noqa: S101 - set before the first step
        return self.precomputed[list(part)].to(self.model.device)

    @torch.no_grad()
    def _precompute(self) -> Tensor:
        count = min(self.config.batch_size, len(self.pairs))
        needed = min(-(-self.budget // count) * count, len(self.pairs))  # at least one epoch needs all pairs
        trained = sorted(shuffled(len(self.pairs), 0, needed, seed=self.seed))
        wanted = [*trained, *(len(self.pairs) + i for i in range(len(self.held_out)))]

        def sums(part: Sequence[int]) -> Tensor:
            packed = self._packed(part)
            return self._sums(self.model.log_probs(packed)[0], packed).cpu()

        found = torch.zeros(len(self.pairs) + len(self.held_out), 2)
        found[wanted] = torch.cat(self.shards.map(sums, self._parts(wanted)))
        return found

    def _sums(self, log_probs: Tensor, batch: Packed) -> Tensor:
        """Return the log-probabilities of both answers of each pair, `[n, 2]`; for IPO their means per token."""
        sums = ops.segment_sum(log_probs, batch.owner, len(batch.lengths))
        return (sums / batch.lengths if self.config.loss_type == "ipo" else sums).view(-1, 2)

    def _pair(self, position: int) -> Pair:
        size = len(self.pairs)
        return self.pairs[position] if position < size else self.held_out[position - size]

    def _samples(self, position: int) -> list[Sample]:
        pair = self._pair(position)
        return [Sample(pair.prompt, pair.chosen), Sample(pair.prompt, pair.rejected)]

    def _packed(self, part: Sequence[int]) -> Packed:
        return pack([sample for i in part for sample in self._samples(i)], ends=False, device=self.model.device)

    def _parts(self, batch: Sequence[int]) -> list[list[int]]:
        size = {"tokens": self.config.micro_batch_tokens, "shards": self.shards.count}
        parts = group_batches([self._samples(i) for i in batch], **size)
        return [[batch[i] for i in part] for part in parts]

    def state_dict(self) -> State:
        """Return the complete state for an exact resume, including the reference."""
        return super().state_dict() | {"precomputed": self.precomputed}

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict` exactly.

        Raises:
            ValueError: the state belongs to other pairs or another model.
        """
        kept, size = state["precomputed"], len(self.pairs) + len(self.held_out)
        if kept is not None and len(kept) != size:
            raise ValueError(
                f"the state has the reference's log-probabilities of {len(kept)} pairs, but there are {size}: load it "
                "with the data set and length limits of the run that saved it"
            )
        super().load_state_dict({name: part for name, part in state.items() if name != "precomputed"})
        self.precomputed = clone(kept)
