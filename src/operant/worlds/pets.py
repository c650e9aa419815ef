"""PETS: planning by sampled trajectories in an ensemble of probabilistic networks (Chua et al. 2018, arXiv:1805.12114).

Take random actions at first and fit a model to the data. Then plan every action: sample sequences of actions, simulate
them with each network of the ensemble from the current state, move the distribution of sequences towards those with the
highest expected returns, and repeat; then take the first action of the mean, and plan again from the next state,
starting with the rest of the plan. Fit the model again every few steps. Only the model is learned, from few steps;
there is neither a policy nor a value function.

What differs from the paper: networks and plans are small enough for two cores; sampling starts with the standard
deviation of a whole half range, and actions beyond the bounds are set to them, where the authors' code truncates the
normal distribution, with half of that at first; one particle follows each network through the whole plan (TS-infinity,
with as many particles as networks), and all plans of a round share their random numbers (common random numbers);
rewards and ends of episodes are learned (see `operant.worlds.ensemble`); rewards of a plan are weighted by the
probability that the episode continues. The refit is that of the cross-entropy method or of model predictive path
integrals (Williams et al. 2017).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.compatibility import require_suitable
from operant.control.off_policy import random_steps
from operant.control.replay_collector import Experience
from operant.envs import BatchEnv, Tree, begins_anew
from operant.nets import Bounded
from operant.runtime.bounds import PositiveFloat, PositiveInt, UnitFloat, require
from operant.runtime.budget import iterations, require_budget
from operant.runtime.learner import Metrics
from operant.runtime.weights import Weights
from operant.state import Resumable, State
from operant.worlds.ensemble import LearnedModel, ModelConfig


@dataclass(frozen=True)
class PETSConfig(ModelConfig):
    """Hyperparameters of PETS."""

    num_envs: PositiveInt = 1
    """Number of environments per seed, N."""
    buffer_size: PositiveInt = 100_000
    """Capacity of the replay buffer in transitions per seed."""
    planner: Literal["cem", "mppi"] = "cem"
    """Refit of plans: to the best ones (cross-entropy method), or to all, weighted by returns (path integrals)."""
    horizon: PositiveInt = 25
    """Planning horizon, in steps."""
    population_size: PositiveInt = 48
    """Number of sampled plans per round of planning."""
    num_elites: PositiveInt = 6
    """Number of elite plans of the cross-entropy method."""
    planning_iterations: PositiveInt = 3
    """Number of rounds of sampling and refitting per action."""
    planning_temperature: PositiveFloat = 0.5
    """Temperature of path integrals, in standard deviations of the returns. Lower favors the best plans."""
    planning_momentum: UnitFloat = 0.1
    """Weight of the previous distribution in a refit."""
    gamma: UnitFloat = 1.0
    """Discount factor of plans."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if self.planner == "cem" and self.num_elites > self.population_size:
            raise ValueError(
                f"num_elites must be at most population_size, which is {self.population_size}, got {self.num_elites}"
            )
        if self.learning_starts < 1:
            raise ValueError("learning_starts must be at least 1 to fit the model, got 0")
        if self.buffer_size < self.num_envs:
            raise ValueError(
                f"buffer_size must hold one step of all {self.num_envs} environments of each seed, "
                f"got {self.buffer_size}"
            )


PRESETS: Mapping[str, Mapping[str, Any]] = {"tiny": {}}
"""Presets by name; `tiny` is the defaults."""


class Draws(NamedTuple):
    """Standard normal noise of the plans of `R` environments, in `I` rounds with `C` plans each."""

    plans: Tensor
    """`[S or 1, R or 1, I, C, H * A]`."""
    chance: Tensor
    """`[I, H, S * K or K, 1, D + 1]`, noise of each network, the same for all plans."""


class PETS(Resumable):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds and a bounded Box of actions.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: environment steps per seed so far.
        experience: the environments and their replay buffer.
        model: the learned model.
        plan: `[S, N, horizon, A]`, mean of the current plan of every environment.

    Raises:
        ValueError: if spaces are unsupported, or the number of environments is wrong.
    """

    STATE = ("consumed", "experience", "model", "plan", "plan_streams")

    def __init__(
        self, config: PETSConfig, env: BatchEnv, *, seeds: Sequence[int], budget: int, algorithm: str = "pets"
    ) -> None:
        require_suitable(env, algorithm)
        require_budget(budget, learning_starts=config.learning_starts)
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        self.bounds = Bounded(env.action_space, device=env.device)
        self.experience = Experience(
            env,
            seeds=seeds,
            rows=config.num_envs,
            capacity=config.buffer_size,
            to_env=self.bounds.to_env,
            random=self.bounds.uniform,
        )
        width, dimensions = self.experience.collector.obs.shape[-1], self.bounds.dimensions
        self.model = LearnedModel(config, seeds=seeds, width=width, dimensions=dimensions, device=env.device)
        self.model_gradient = self.model.gradient  # an attribute, so that `operant.nets.programs` finds it
        self.plan = torch.zeros(len(seeds), config.num_envs, config.horizon, dimensions, device=env.device)
        self.plan_streams = streams.of_seeds(seeds, "plans", device=env.device)
        always = streams.torch_generator(0, "greedy plans", device=env.device)
        self.greedy_draws = self._draws(1, [always])
        self.close, self.rollout_steps = self.experience.close, config.model_train_freq * config.num_envs
        self.consumed = 0

    @property
    def learned(self) -> Weights:
        """The weights of model and wrappers, and the normalization statistics."""
        return {"model": self.model.parameters, "moments": self.model.moments, **self.experience.learned}

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of the whole run."""
        fits = 1 + max(iterations(self.budget - self.config.learning_starts, self.rollout_steps), 0)
        return fits * self.config.model_gradient_steps

    def iterate(self) -> Metrics:
        """Collect steps, by planning or at first at random, and fit the model to all data after the random ones."""
        config, first = self.config, random_steps(self.config, self.consumed)
        steps = first or config.model_train_freq
        metrics = self.experience.explore(steps) if first else self.experience.collect(steps, self.act_by_plan)
        self._forget_ended()
        self.consumed += steps * config.num_envs
        if random_steps(config, self.consumed):
            return metrics
        return {**metrics, **self.model.fit(self.experience.replay)}

    @torch.no_grad()
    def act_by_plan(self, obs: Tensor, t: int, envs: slice) -> Tensor:
        """Select actions in [-1, 1] for observations `[S, N, D]`, starting from the current plans."""
        if t:
            self._forget_ended()
        mean, _std = self.improve(obs, self.plan, self._draws(self.config.num_envs, self.plan_streams))
        self.plan.copy_(_rest(mean))
        return mean[:, :, 0]

    def _forget_ended(self) -> None:
        """Reset the plans of environments that start an episode with their next step."""
        self.plan.masked_fill_(self.experience.collector.starts()[..., None, None], 0.0)

    def improve(self, obs: Tensor, plan: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation `[S, N, H, A]` of improved plans.

        Args:
            obs: `[S, N, D]`, current observations.
            plan: `[S, N, H, A]`, initial mean.
            draws: noise of the plans.
        """
        config = self.config
        mean, std = plan.flatten(2), torch.ones_like(plan.flatten(2))
        for drawn, chance in zip(draws.plans.unbind(2), draws.chance, strict=True):
            candidates = (mean.unsqueeze(2) + std.unsqueeze(2) * drawn).clamp(-1.0, 1.0)
            returns = self.evaluate_plans(obs, torch.unflatten(candidates, -1, plan.shape[2:]), chance)
            if config.planner == "cem":
                better = ops.cross_entropy_refit(candidates, returns, elites=config.num_elites)
            else:
                better = ops.path_integral_refit(candidates, returns, temperature=config.planning_temperature)
            mean, std = (new.lerp(old, config.planning_momentum) for new, old in zip(better, (mean, std), strict=True))
        return mean.view_as(plan), std.view_as(plan)

    def evaluate_plans(self, obs: Tensor, plans: Tensor, chance: Tensor) -> Tensor:
        """Return the expected returns `[S, N, C]` of plans `[S, N, C, H, A]` from `obs [S, N, D]`.

        `chance [H, S * K or K, 1, D + 1]` is the noise. NaN counts as -inf.
        """
        (seeds, rows, count), members = plans.shape[:3], self.model.members
        actions = plans.movedim(3, 0).flatten(2, 3).repeat_interleave(members, 1)
        state = obs.unsqueeze(2).expand(-1, -1, count, -1).flatten(1, 2).repeat_interleave(members, 0)
        chance = chance.repeat(1, len(state) // chance.shape[1], 1, 1)
        total = state.new_zeros(state.shape[:2])
        counts = torch.ones_like(total)
        for action, noise in zip(actions, chance, strict=True):
            state, rewards, continues = self.model.predict(state, action, noise)
            total = total + counts * rewards
            counts = counts * continues * self.config.gamma
        return total.view(seeds, members, rows, count).mean(1).nan_to_num(-torch.inf, -torch.inf, -torch.inf)

    def _draws(self, rows: int, generators: Sequence[torch.Generator]) -> Draws:
        """Return the noise of the plans of `rows` environments, with one generator per seed."""
        config, model = self.config, self.model
        rounds = config.planning_iterations
        plans = [self.bounds.normal((rows, rounds, config.population_size, config.horizon), g) for g in generators]
        shape = rounds, config.horizon, model.members, 1, model.width + 1
        chance = [torch.empty(shape, device=self.device).normal_(generator=g) for g in generators]
        return Draws(torch.stack(plans).flatten(-2), torch.cat(chance, 2))

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Select actions for observations `[S, N, ...]` by planning; `hidden_state` contains the rest of the plans.

        The noise of planning is the same at every step, so the action is a function of observation and `hidden_state`;
        with `noise` it is sampled from the last distribution of the plan.
        """
        inputs = self.experience.read(obs)
        plan = inputs.new_zeros(*inputs.shape[:2], *self.plan.shape[2:]) if hidden_state is None else hidden_state
        assert isinstance(plan, Tensor)  # noqa: S101 - as returned before
        mean, std = self.improve(inputs, plan, self.greedy_draws)
        action = mean[:, :, 0]
        if noise is not None:
            action = (action + std[:, :, 0] * noise).clamp(-1.0, 1.0)
        return self.bounds.to_env(action), _rest(mean)

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of one action for each of `rows` environments of one seed."""
        return self.bounds.normal((rows,), generator)

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly, or with new episodes and plans (`operant.envs.begins_anew`)."""
        super().load_state_dict(state)
        if begins_anew(self.experience.collector.env):
            self.plan.zero_()


def _rest(plan: Tensor) -> Tensor:
    """Return plans `[S, N, H, A]` without their first action, with 0 as the last one."""
    return torch.cat((plan[:, :, 1:], torch.zeros_like(plan[:, :, :1])), 2)
