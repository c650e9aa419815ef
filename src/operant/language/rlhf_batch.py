"""Training batch of RLHF, answers with the advantages of their tokens: `RLHFBatch`."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from operant.language.grpo_batch import GRPOBatch, Learned, TokenStats
from operant.language.logprobs import flat
from operant.language.packing import Plan, Sample


class RLHFBatch(NamedTuple):
    """N answers for training, token by token: lists of N tensors `[l]`.

    Attributes:
        samples: sequences.
        plans: minibatches of each epoch.
        behavior: log-probabilities by the engine.
        old: log-probabilities by the policy before the update.
        values: values of the states before the tokens, before the update.
        advantages: advantages of the tokens.
        trust: importance weights between engine and trainer, by which advantages are multiplied in the loss.
        targets: value targets of the critic.
        rewards: rewards of the tokens, including the KL penalty to the reference.
        kl: log-ratios of the policy to the reference.
        scores: scores of the answers, `[N]`.
        owners: index of the prompt of each answer.
        group: number of answers sampled per prompt, G.
        versions: version of the weights that sampled each answer.
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
    versions: list[int]

    def weighted(self, part: Sequence[int]) -> Tensor:
        """Return the advantages `[m]` of a micro-batch, multiplied by the importance weights."""
        return flat(part, self.trust) * flat(part, self.advantages)

    @property
    def parts(self) -> list[list[int]]:
        """Micro-batches of the first epoch."""
        return [part for step in self.plans[0] for part in step]

    def token_stats(
        self, part: Sequence[int], new: Tensor, entropy: Tensor, weight: Tensor, policy: Tensor
    ) -> TokenStats:
        """Return the statistics of the tokens of a micro-batch.

        Args:
            part: sample indices of the micro-batch.
            new: log-probabilities, `[m]`.
            entropy: entropies of the token distributions, `[m]`.
            weight: loss weights, `[m]`.
            policy: terms of the policy loss, `[m]`.
        """
        old = flat(part, self.old)
        return TokenStats(
            before=old,
            behavior=flat(part, self.behavior),
            trust=flat(part, self.trust),
            advantages=flat(part, self.advantages),
            ratios=new - old,
            entropy=entropy,
            kl=flat(part, self.kl),
            weight=weight,
            policy=policy,
            reference=torch.zeros_like(old),  # the KL penalty is part of the reward, not of the loss
        ).detach()

    def record(self, clip: tuple[float, float] | None) -> Learned:
        """Return a record of the batch without optimizer steps.

        Args:
            clip: lower and upper clip range of the ratio; None: no clipping.
        """
        counts = torch.ones(len(self.samples), dtype=torch.bool)
        batch = GRPOBatch(self.samples, self.advantages, self.behavior, counts, self.scores, self.versions)
        columns = {"reward": self.rewards, "value": self.values, "kl": self.kl}
        reach = clip or (1.0, math.inf)
        return Learned(batch, [], [], self.group, reach, reference=False, owners=self.owners, columns=columns)
