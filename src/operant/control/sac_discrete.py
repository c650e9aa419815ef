"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv:1910.07207).

The critics return the values of all actions, so the expectations over actions in the targets and in the losses of
policy and temperature are computed exactly instead of sampled, and no gradient flows through an action.

What differs from the paper: layers are initialized orthogonally; an episode cut by a time limit bootstraps from its
true final observation (Pardo et al. 2018); target critics are updated slowly at each step (`tau`), while the paper
copies them every 8000 steps; observations are vectors, so networks are perceptrons. The paper's target entropy, 98 % of
that of uniform actions, suits games with many equivalent actions; the preset of CartPole-v1 uses less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.off_policy import OffPolicyConfig
from operant.control.off_policy_learner import Descent, OffPolicyLearner, critic_descent
from operant.control.sac import CRITICS, initial_log_alpha
from operant.envs import BatchEnv, Tree
from operant.envs.spaces import discrete
from operant.nets import BoundEnsemble, CategoricalHead, EnsemblePass, compilable
from operant.runtime.bounds import NonNegativeFloat, UnitFloat
from operant.runtime.learner import Metrics
from operant.runtime.shards import Alone, Shards
from operant.runtime.transitions import Transitions


@dataclass(frozen=True)
class DiscreteSACConfig(OffPolicyConfig):
    """Hyperparameters of discrete SAC. Defaults are those of SAC, with the target entropy of the paper."""

    target_entropy_scale: UnitFloat = 0.98
    """Target entropy of the policy as a fraction of log A, the entropy of uniform actions. Higher explores more."""
    ent_coef: NonNegativeFloat | None = None
    """Fixed entropy coefficient (temperature) in reward per nat; None: learned. Higher explores more."""


ACTOR_GAIN = 0.01
"""Gain of the policy's last layer: initially, the policy is nearly uniform."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 8,
        "gradient_steps": 4,
        "learning_starts": 1000,
        "tau": 0.05,
        "learning_rate": 1e-3,
        "buffer_size": 100_000,
        "hidden_sizes": (64, 64),
        "target_entropy_scale": 0.3,
    },
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults."""


class DiscreteSAC(OffPolicyLearner[DiscreteSACConfig]):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds and Discrete actions.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: environment steps per seed so far.
        experience: the environments and their replay buffer.
        parameters: parameters by name, `[S, P]` each: `actor`, `critics`, their `targets`, and `log_alpha` `[S, 1]`.

    Raises:
        ValueError: if the environment's spaces are unsupported, or the number of environments is wrong.
    """

    actor: BoundEnsemble
    critics: BoundEnsemble
    targets: BoundEnsemble

    def __init__(
        self,
        config: DiscreteSACConfig,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "sac-discrete",
    ) -> None:
        alone = Shards(1, Alone())
        super().__init__(config, env, seeds=seeds, budget=budget, algorithm=algorithm, shards=alone)
        self.head = CategoricalHead(discrete(env.action_space))
        self.choices = self.head.outputs
        self.set_up(env, self.head.to_env, self.uniform)
        self.target_entropy = config.target_entropy_scale * log(self.choices)
        self._make_networks(self.experience.collector.obs.shape[-1])

    def _make_networks(self, features: int) -> None:
        config, choices = self.config, self.choices
        actor, critics = config.actors(features, choices), config.critics(features, choices, members=CRITICS)
        generators = streams.of_seeds(self.seeds, "networks")
        initial = {
            "actor": actor.initial(generators, [(choices, ACTOR_GAIN)]),
            "critics": critics.initial(generators, [(choices, 1.0)]),
            "log_alpha": initial_log_alpha(config.ent_coef, seeds=len(self.seeds)),
        }
        self.set_networks({"actor": actor, "critics": critics}, initial, targets={"targets": "critics"})

    def uniform(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw uniform actions `[*shape]`."""
        return torch.randint(self.choices, shape, generator=generator, device=generator.device)

    def policy(self, obs: Tensor) -> Tensor:
        """Return the logits `[S, M, A]` of the actions for `[S, M, D]`."""
        return self.actor(obs)[0]

    @torch.no_grad()
    def collect(self) -> Metrics:
        """Sample actions from the policy for `train_freq` steps, and store the transitions."""
        steps, rows = self.config.train_freq, self.config.num_envs
        noise = streams.draw(self.action_streams, lambda stream: self.head.noise((steps, rows), stream), dim=1)

        def act(obs: Tensor, t: int, envs: slice, actor: BoundEnsemble) -> Tensor:
            return ops.categorical_sample(actor(obs)[0], noise[t])

        return self.collect_with(act)

    @compilable
    @torch.no_grad()
    def compute_targets(self, batch: Transitions) -> Tensor:
        """Return the targets `[S, M]` of the critics: reward plus discounted soft value (equations 2 and 10)."""
        log_probs = self.policy(batch.next_obs).log_softmax(-1)
        next_q = ops.clipped_double_q(self.targets(batch.next_obs))
        alpha = self.parameters["log_alpha"].exp().unsqueeze(-1)
        soft = ops.soft_value(next_q, log_probs, alpha=alpha)
        targets = ops.q_target(batch.rewards, soft, terminated=batch.terminated, gamma=batch.discounts)
        return targets.clamp(*self.target_range)

    def update(self, batch: Transitions) -> Metrics:
        """Take one gradient step on critics, policy and temperature, and update the target critics."""
        metrics = self.descend(*self.critic_gradient(batch, self.compute_targets(batch)))
        metrics |= self.descend(*self.actor_gradient(batch))
        self.parameters["targets"].lerp_(self.parameters["critics"], self.config.tau)
        return metrics

    @compilable
    def critic_gradient(self, batch: Transitions, targets: Tensor) -> Descent:
        """Differentiate the squared error of both critics, at the actions taken, to the same targets `[S, M]`."""
        networks = EnsemblePass(self.critics, batch.obs)
        actions = batch.actions.expand(CRITICS, *batch.actions.shape).unsqueeze(-1)
        q = networks.outputs.gather(-1, actions).squeeze(-1)
        return critic_descent(networks, q, targets, batch.weights)

    @compilable
    def actor_gradient(self, batch: Transitions) -> Descent:
        """Differentiate equations 12 (policy: the mean of α log π - Q) and 11 (temperature)."""
        log_alpha = self.parameters["log_alpha"]
        alpha = log_alpha.exp()
        networks = EnsemblePass(self.actor, batch.obs)
        logits = networks.outputs[0]
        with torch.no_grad():
            q = ops.clipped_double_q(self.critics(batch.obs))
        values = ops.soft_value(q, logits.log_softmax(-1), alpha=alpha.unsqueeze(-1))
        loss = ops.weighted_mean(-values, batch.weights)
        gradients = {"actor": networks.gradient(loss.sum())}
        entropy = ops.categorical_entropy(logits.detach())
        if self.config.ent_coef is None:
            price = ops.temperature_loss(log_alpha, -entropy, target_entropy=self.target_entropy)
            # The loss is linear in α = exp(log α), so it equals its derivative with respect to log α.
            gradients["log_alpha"] = ops.weighted_mean(price, batch.weights).unsqueeze(1)
        return gradients, {
            "losses/actor": loss.detach(),
            "policy/entropy": ops.weighted_mean(entropy, batch.weights),
            "policy/alpha": alpha.squeeze(1),
        }

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: None, noise: Tensor | None) -> tuple[Tensor, None]:
        """Select actions for raw observations `[S, N, ...]` (see `runtime.Policy`)."""
        logits = self.policy(self.experience.read(obs))
        actions = ops.categorical_mode(logits) if noise is None else ops.categorical_sample(logits, noise)
        return self.head.to_env(actions), None

    @torch.no_grad()
    def describe(self, obs: Tree, hidden_state: None) -> Mapping[str, Tensor]:
        """Return the policy and the minimum of its critics (see `operant.runtime.learner.Describing`)."""
        inputs = self.experience.read(obs)
        probabilities, q = self.policy(inputs).softmax(-1), self.critics(inputs).amin(0)
        return {"probabilities": probabilities, "q": q, "value": (probabilities * q).sum(-1)}

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of one action for each of `rows` environments of one seed."""
        return self.head.noise((rows,), generator)
