"""The policy-gradient step of TRPO (Schulman et al. 2015, arXiv:1502.05477) for language models.

`improve` applies it to RLHF with `step="trpo"`; `natural_step` is the step for any model.

The trust region is the mean of KL(old‖new) over the sampled states, the prefixes of answers, exact over the vocabulary.
Its Hessian at the old policy is the Fisher matrix, and products with it are second derivatives of that mean (appendix
C.1). They need the logits `[m, V]` of a batch, and several times the memory of a gradient: this is for small models.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from operant import ops
from operant.language.logprobs import flat
from operant.language.models import LanguageModel
from operant.language.packing import Packed, pack, step_weights, take
from operant.language.rlhf import RLHF
from operant.language.rlhf_batch import RLHFBatch
from operant.tensors import linalg


class Part(NamedTuple):
    """A micro-batch with m trained tokens.

    Attributes:
        batch: its samples.
        weights: `[m]` weights of the tokens in the objective of the whole batch.
        old: `[m]` log-probabilities under the policy before the step.
        advantages: `[m]` advantages.
    """

    batch: Packed
    weights: Tensor
    old: Tensor
    advantages: Tensor


class Region(NamedTuple):
    """Trust region, and parameters of the step.

    Attributes:
        delta: maximum mean KL(old‖new), in nats per token.
        damping: damping added to the diagonal of the Fisher matrix.
        temperature: temperature of the policy.
        iterations: maximum number of conjugate-gradient iterations.
        backtracks: maximum number of backtracks, each with the factor 0.8.
        kept: maximum number of tokens of a batch whose first derivatives are computed once, and their graphs kept in
            memory, instead of once per product with the Fisher matrix.
    """

    delta: float
    damping: float = 0.01
    temperature: float = 1.0
    iterations: int = 10
    backtracks: int = 10
    kept: int = 16_384


def improve(learner: RLHF, batch: RLHFBatch) -> dict[str, Tensor | float]:
    """Take one step of RLHF's policy on a whole batch (see `natural_step`)."""
    config, parts, device = learner.config, list[Part](), learner.model.device
    longest = learner.max_tokens
    weight = step_weights(batch.samples, batch.parts, how=config.loss_aggregation, longest=longest, device=device)
    for part in batch.parts:
        packed = pack(take(batch.samples, part), device=device)
        parts.append(Part(packed, weight[part][packed.owner], flat(part, batch.old), batch.weighted(part)))
    region = Region(config.target_kl, config.cg_damping, config.temperature, kept=config.micro_batch_tokens)
    return natural_step(learner.model, parts, region)


def natural_step(model: LanguageModel, parts: Sequence[Part], region: Region) -> dict[str, Tensor | float]:
    """Take one natural-gradient step of a policy, limited by the trust region and a line search.

    Args:
        model: the policy, in float32; its trained parameters are updated.
        parts: micro-batches of the whole batch.
        region: trust region of the step.

    Returns:
        Metrics: the loss (minus the surrogate) before the step, its decrease, the norm of the gradient, the mean
        KL(old‖new) after the step in nats per token, the accepted fraction of the proposed step (0 if rejected), and
        whether the proposed step has NaN or Inf.

    Raises:
        ValueError: if the model computes in 16-bit precision, which is too inaccurate for second derivatives.
    """
    if model.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"a trust-region step needs --dtype float32, got {model.dtype}; use that, or --step ppo")
    policy = _Policy(model, region.temperature)
    start = policy.vector()
    with torch.no_grad():
        old = [policy.logits(part.batch) for part in parts]
    gradient, loss = policy.gradient(parts)
    with sdpa_kernel(SDPBackend.MATH):  # the other kernels have no second derivatives
        fisher = policy.fisher(parts, old, region)
        step = ops.natural_step(fisher, -gradient, delta=region.delta, iterations=region.iterations)
    tried: list[Tensor] = []

    def acceptable(scaled: Tensor) -> Tensor:
        policy.take(start + scaled)
        tried[:] = policy.measure(parts, old)
        return torch.stack(tried).isfinite().all() & (tried[0] < loss) & (tried[1] <= region.delta)

    search = ops.backtrack(acceptable, step, max_backtracks=region.backtracks)
    policy.take(start + search.step)
    new_loss, kl = tried if search.accepted else (loss, torch.zeros_like(loss))
    return {
        "losses/policy": loss,
        "losses/improvement": loss - new_loss,
        "losses/gradient_norm": linalg.vector_norm(gradient),
        "policy/approxkl_avg": kl,
        "policy/step_scale": search.scale,
        "health/updates": 1.0,
        "health/skipped_updates": float(not step.isfinite().all()),
    }


class _Policy:
    """A model as a function of one flat vector `[D]` of its trained parameters."""

    def __init__(self, model: LanguageModel, temperature: float):
        self.model, self.temperature = model, temperature
        self.trained = model.trained()
        self._module = _Logits(self)

    def logits(self, batch: Packed) -> Tensor:
        """Return the logits `[m, V]` of the trained tokens."""
        hidden = self.model.read(batch).index_select(0, batch.before)
        return self.model.logits(hidden) / self.temperature

    def vector(self) -> Tensor:
        """Return a copy of the parameters."""
        return torch.cat([value.detach().flatten() for value in self.trained.values()])

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a vector, by name of the parameter."""
        pieces = vector.split_with_sizes([value.numel() for value in self.trained.values()])
        return {name: p.view_as(v) for p, (name, v) in zip(pieces, self.trained.items(), strict=True)}

    def take(self, vector: Tensor) -> None:
        """Set the parameters to a vector."""
        for name, value in self.named(vector).items():
            self.trained[name].data.copy_(value)

    def gradient(self, parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
        """Return the gradient `[D]` of the loss, and the loss."""
        values = list(self.trained.values())
        total, loss = torch.zeros_like(self.vector()), torch.zeros((), device=self.model.device)
        for part in parts:
            share = self._loss(part)
            found = torch.autograd.grad(share, values, allow_unused=True, materialize_grads=True)
            total += torch.cat([value.flatten() for value in found])
            loss = loss + share.detach()
        return total, loss

    def _loss(self, part: Part) -> Tensor:
        new, _ = self.model.log_probs(part.batch, temperature=self.temperature)
        return (part.weights * ops.surrogate(new, part.old, part.advantages)).sum()

    def fisher(self, parts: Sequence[Part], old: Sequence[Tensor], region: Region) -> Callable[[Tensor], Tensor]:
        """Return `v -> F v`, with F the mean Fisher matrix over the states of the batch, plus damping."""
        point, tokens = self.vector(), sum(len(logits) for logits in old)

        def operator(part: Part, before: Tensor) -> Callable[[Tensor], Tensor]:
            def kl(parameters: Tensor) -> Tensor:
                named = {f"network.{name}": value for name, value in self.named(parameters).items()}
                new = functional_call(self._module, named, (part.batch,))
                return ops.categorical_kl(before, new).sum() / tokens

            return ops.fisher_operator(kl, point, damping=0.0)

        few = sum(len(part.batch.ids) for part in parts) <= region.kept
        kept = list(map(operator, parts, old)) if few else None

        def product(vector: Tensor) -> Tensor:
            total = region.damping * vector
            for multiply in kept or map(operator, parts, old):
                total = total + multiply(vector)
            return total

        return product

    @torch.no_grad()
    def measure(self, parts: Sequence[Part], old: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss and the mean KL(old‖new) of the current parameters."""
        tokens = sum(len(logits) for logits in old)
        loss = torch.stack([self._loss(part) for part in parts]).sum()
        kl = [
            ops.categorical_kl(before, self.logits(part.batch)).sum() / tokens
            for part, before in zip(parts, old, strict=True)
        ]
        return loss, torch.stack(kl).sum()


class _Logits(nn.Module):
    """The logits of a policy as a module, for `functional_call`."""

    def __init__(self, policy: _Policy):
        super().__init__()
        self.network = policy.model.network
        self._policy = (policy,)

    def forward(self, batch: Packed) -> Tensor:
        """Return `[m, V]`."""
        return self._policy[0].logits(batch)
