"""Answers with the advantages of their tokens in the optimizer steps of RLHF: `RLHFBatch`."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from operant.language.grpo_batch import GRPOBatch, Learned
from operant.language.logprobs import flat
from operant.language.packing import Plan, Sample


class RLHFBatch(NamedTuple):
    """N answers for training, token by token: lists of N tensors `[l]`.

    Attributes:
        samples: the sequences.
        plans: the minibatches of each epoch.
        behavior: log-probabilities by the engine.
        old: log-probabilities by the policy before any step.
        values: of the states in which the tokens were chosen, before any step.
        advantages: of the tokens.
        trust: importance weights of the engine's samples, which the advantages are multiplied by in the loss.
        targets: of the critic.
        rewards: of the tokens, the price of their divergence from the reference included.
        kl: their log-ratios to the reference.
        scores: `[N]` of the answers.
        owners: N numbers of the prompts.
        group: answers sampled to each prompt, G.
    """

    samples: list[Sample]
    plans: list[Plan]
    behavior: list[Tensor]
    old: list[Tensor]
    values: list[Tensor]
    advantages: list[Tensor]
    trust: list[Tensor]
    targets: list[Tensor]
    rewards: list[Tensor]
    kl: list[Tensor]
    scores: Tensor
    owners: list[int]
    group: int

    def weighted(self, part: Sequence[int]) -> Tensor:
        """Return the advantages `[m]` of a micro-batch, times their importance weights."""
        return flat(part, self.trust) * flat(part, self.advantages)

    @property
    def parts(self) -> list[list[int]]:
        """The micro-batches of the first epoch."""
        return [part for step in self.plans[0] for part in step]

    def token_stats(
        self, part: Sequence[int], new: Tensor, entropy: Tensor, weight: Tensor, policy: Tensor
    ) -> list[Tensor]:
        """Return the fields of a `operant.language.grpo_batch.TokenStats` of a micro-batch.

        Args:
            part: its samples.
            new: `[m]` log-probabilities.
            entropy: `[m]` of the distributions.
            weight: `[m]` in the loss.
            policy: `[m]` terms of the policy loss.
        """
        old, kl = flat(part, self.old), flat(part, self.kl)
        behavior, trust, advantages = (flat(part, rows) for rows in (self.behavior, self.trust, self.advantages))
        none = torch.zeros_like(old)  # the divergence has its price in the reward, not in the loss
        found = [old, behavior, trust, advantages, new - old, entropy, kl, weight, policy, none]
        return [column.detach() for column in found]

    def record(self, clip: tuple[float, float] | None) -> Learned:
        """Return an empty record of policy steps.

        Args:
            clip: how far a ratio may fall below 1, and rise above it; None: as far as it likes.
        """
        counts = torch.ones(len(self.samples), dtype=torch.bool)
        batch = GRPOBatch(self.samples, self.advantages, self.behavior, counts, self.scores)
        columns = {"reward": self.rewards, "value": self.values, "kl": self.kl}
        reach = clip or (1.0, math.inf)
        return Learned(batch, [], [], self.group, reach, reference=False, owners=self.owners, columns=columns)
