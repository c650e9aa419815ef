"""MBPO: soft actor-critic on short rollouts of a learned model (Janner et al. 2019, arXiv:1906.08253).

Collect a few steps, fit an ensemble of networks to all data, and generate short rollouts of the current policy in the
model from real states (algorithm 2). Update actor and critics many times on samples of these, with a few real
transitions among them. Errors of the model cannot accumulate much over short rollouts, and each real state is the start
of many rollouts, so more is learned from each real step.

What differs from the paper: the model is small enough for two cores, and is fitted more often to fewer data; changes of
the state and rewards are normalized separately, and ends of episodes are learned (see `operant.worlds.ensemble`);
rollouts are generated after every fit, not at every step; each rollout cycles through all networks, whereas the paper
samples among the best ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.off_policy import alternate, explore, random_steps
from operant.control.sac import SAC, SACConfig
from operant.envs import BatchEnv
from operant.runtime.bounds import Interval, PositiveInt
from operant.runtime.budget import iterations
from operant.runtime.learner import Metrics
from operant.runtime.replay import Replay
from operant.runtime.rollouts import Rollout
from operant.runtime.transitions import Transitions
from operant.worlds.ensemble import LearnedModel, ModelConfig, Prediction


@dataclass(frozen=True)
class MBPOConfig(ModelConfig, SACConfig):
    """Hyperparameters of MBPO: those of SAC, of the model, and of its rollouts."""

    gradient_steps: PositiveInt = 20
    """Gradient steps of actor and critics per training phase, mostly on model data."""
    real_ratio: Annotated[float, Interval("(0, 1)")] = 0.05
    """Share of real transitions in each batch, which has at least one real and one imagined transition."""
    rollout_batch_size: PositiveInt = 1000
    """Number of model rollouts after each fit, a multiple of `ensemble_size`."""
    rollout_length: PositiveInt = 1
    """Initial length of a model rollout."""
    rollout_length_final: PositiveInt = 1
    """Length of a model rollout at the end of the budget; it grows linearly."""
    model_buffer_size: PositiveInt = 50_000
    """Capacity of the buffer of model transitions per seed. Older ones come from worse models and old policies."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.rollout_batch_size % self.ensemble_size:
            raise ValueError(
                f"rollout_batch_size must be a multiple of ensemble_size, which is {self.ensemble_size}, got "
                f"{self.rollout_batch_size}"
            )
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be at least 2, a real and an imagined transition, got {self.batch_size}")
        needed = self.rollout_batch_size * max(self.rollout_length, self.rollout_length_final)
        if self.model_buffer_size < needed:
            raise ValueError(
                f"model_buffer_size must hold all steps of {self.rollout_batch_size} rollouts, {needed}, got "
                f"{self.model_buffer_size}"
            )
        if self.hindsight != "none":
            raise ValueError(
                f"hindsight must be 'none', because imagined transitions have one goal, got {self.hindsight!r}"
            )
        if self.normalize_obs:
            raise ValueError(
                "normalize_obs must be off: the model scales its own inputs, and imagines raw observations"
            )
        if self.learning_starts < 1:
            raise ValueError("learning_starts must be at least 1 to fit the model, got 0")

    def planned_steps(self, budget: int) -> int:
        """Return the budget, which iterations of some `model_train_freq` steps exceed by little."""
        return budget


_SMALL = {"learning_rate": 1e-3, "hidden_sizes": (64, 64), "rollout_length": 2, "rollout_length_final": 8}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "Pendulum-v1": _SMALL,
    "InvertedPendulum-v5": _SMALL,
    "operant/ContinuousCartPole-v0": _SMALL,
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults."""


class MBPO(SAC):
    """Learner that trains `S` seeds as one program; for the arguments see `SAC`.

    Attributes:
        model: model of the environment.
        imagined: replay buffer of imagined transitions.
    """

    STATE = (*SAC.STATE, "model", "imagined", "rollout_streams")

    config: MBPOConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self, config: MBPOConfig, env: BatchEnv, *, seeds: Sequence[int], budget: int, algorithm: str = "mbpo"
    ) -> None:
        super().__init__(config, env, seeds=seeds, budget=budget, algorithm=algorithm)
        width, dimensions = self.experience.collector.obs.shape[-1], self.bounds.dimensions
        self.model = LearnedModel(config, seeds=seeds, width=width, dimensions=dimensions, device=env.device)
        self.imagined = Replay(
            seeds=len(seeds), rows=config.rollout_batch_size, capacity=config.model_buffer_size, device=env.device
        )
        self.model_gradient = self.model.gradient  # an attribute, so that `operant.nets.programs` finds it
        self.rollout_streams = streams.of_seeds(seeds, "imagination", device=env.device)

    @property
    def gradient_steps(self) -> int:
        """Number of gradient steps of actor and critics in the whole run."""
        steps = max(self.budget - self.config.learning_starts, 0)
        return iterations(steps, self.rollout_steps) * self.config.gradient_steps

    @property
    def rollout_length(self) -> int:
        """Current length of model rollouts."""
        first, last = self.config.rollout_length, self.config.rollout_length_final
        return round(first + (last - first) * min(self.consumed / self.budget, 1.0))

    def iterate(self) -> Metrics:
        """Take random actions at first; later fit the model, imagine, and alternate collection and updates."""
        if random_steps(self.config, self.consumed):
            return explore(self)
        fitted = self.model.fit(self.experience.replay)
        length = self.rollout_length
        self.imagine(length)
        metrics = alternate(self, iterations(self.config.model_train_freq, self.config.train_freq))
        return {**fitted, **metrics, "model/rollout_length": float(length)}

    @torch.no_grad()
    def imagine(self, length: int) -> None:
        """Store rollouts of the policy in the model, from states of the real replay buffer."""
        replay, count = self.experience.replay, self.config.rollout_batch_size
        begin = replay.take(replay.draw(count, self.rollout_streams), gamma=1.0)
        obs = begin.obs
        alive = torch.ones_like(begin.terminated) if begin.weights is None else begin.weights > 0
        steps: list[tuple[Tensor, ...]] = []
        for t in range(length):
            noise = streams.draw(self.rollout_streams, lambda stream: self.bounds.normal((count,), stream))
            actions = ops.tanh_gaussian_sample(*self.policy(obs), noise)
            after, rewards, continues = self._follow(obs, actions, t)
            chance = streams.draw(
                self.rollout_streams, lambda s: torch.empty(count, device=self.device).uniform_(generator=s)
            )
            alive, ended = alive & after.isfinite().all(-1), chance >= continues
            steps.append((obs, actions, rewards, ended, after, alive))
            alive = alive & ~ended
            obs = torch.where(alive.unsqueeze(-1), after, obs)
        before, actions, rewards, ended, after, valid = (torch.stack(column) for column in zip(*steps, strict=True))
        nothing = torch.zeros_like(ended)
        self.imagined.add(Rollout(before, obs, (), rewards, ended, nothing, after, valid, {}), actions)

    def _follow(self, obs: Tensor, actions: Tensor, t: int) -> Prediction:
        """Return the successors of `obs [S, B, D]`; each network predicts a share of B that changes at every step."""
        members, shape = self.model.members, (*obs.shape[1:-1], obs.shape[-1] + 1)
        chance = streams.draw(
            self.rollout_streams, lambda s: torch.empty(shape, device=self.device).normal_(generator=s)
        )
        inputs = (obs, actions, chance)
        prediction = self.model.predict(
            *(torch.unflatten(part, 1, (members, -1)).roll(t, 1).flatten(0, 1) for part in inputs)
        )
        return Prediction(*(torch.unflatten(part, 0, (-1, members)).roll(-t, 1).flatten(1, 2) for part in prediction))

    def sample(self) -> Transitions:
        """Sample a batch of real and imagined transitions."""
        config = self.config
        real = min(max(round(config.real_ratio * config.batch_size), 1), config.batch_size - 1)
        imagined = self.imagined.draw_valid(config.batch_size - real, self.rollout_streams)
        parts = (
            self.experience.sample(real, gamma=config.gamma),
            self.imagined.take(imagined, gamma=config.gamma),
        )
        weights = [torch.ones_like(part.rewards) if part.weights is None else part.weights for part in parts]
        names = [name for name in vars(parts[0]) if name != "weights"]
        columns = {name: torch.cat([getattr(part, name) for part in parts], 1) for name in names}
        return Transitions(**columns, weights=torch.cat(weights, 1))
