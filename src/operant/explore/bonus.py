"""The base class of exploration bonuses.

A bonus is a wrapper of the environments. It adds its intrinsic reward to each step as an extra tensor, which a reward
channel reads (`operant.control.reward_channels`): the critic then predicts its return separately, with its own
discount. For algorithms without channels, such as DQN, `mixed` adds it to the reward.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from operant.catalog.bonuses import WEIGHT
from operant.envs import BatchEnv, Step, Tree, Wrapper
from operant.envs.features import Features
from operant.envs.normalize import Moments
from operant.runtime.bounds import require
from operant.state import State

logger = logging.getLogger(__name__)

WARMUP_STEPS, UPDATE_INTERVAL = 100, 8
"""The standard deviation of returns is updated at each of the first `WARMUP_STEPS` steps, and then only at every step
divisible by `UPDATE_INTERVAL`, because it changes slowly and is expensive."""

CHANNEL = "intrinsic"
"""Default name of the extra tensor with a bonus."""

MOST = 10.0
"""Maximum bonus after division by the standard deviation of returns, as in the `VecNormalize` of Stable-Baselines3. The
returns of the first steps are nearly equal, and their deviation can be 0."""

DECAY = 0.99
"""Factor of the moving average of the metric, per step."""

UNKNOWN = 1 << 20
"""Number of averaged steps of a state that lacks it; in a mean of this many the first ones do not matter."""


def warn_of_hindsight(wrapper: Wrapper, config: object) -> None:
    """Log a warning if hindsight relabels transitions, whose rewards lack what a wrapper adds to them.

    Args:
        wrapper: wrapper that changes rewards.
        config: configuration of the algorithm.
    """
    if getattr(config, "hindsight", "none") != "none":
        logger.warning(
            "relabeled transitions of hindsight lack the reward of the wrapper %s, so their returns mix two tasks: "
            "leave one of the two out",
            type(wrapper).__name__,
        )


class Taken(NamedTuple):
    """A step of all environments.

    Attributes:
        seen: features of the true successors of the actions, `[S, N, D]`.
        actions: `[B, ...]`.
        valid: whether the step is valid, `[S, N]`.
        following: features of the next observations, `[S, N, D]`.
        ends: whether these are the first of an episode, `[S, N]`.
    """

    seen: Tensor
    actions: Tensor
    valid: Tensor
    following: Tensor
    ends: Tensor


class Bonus(Wrapper):
    """Base class of bonuses; subclasses define `novelty`, or `novelties` for all steps of a rollout together.

    The bonus depends on the true successor `Step.final_obs`, also at the end of an episode. Invalid steps get 0, and so
    do observations with NaN or Inf: `novelty` sees them as zeros that are not valid.

    In a rollout the bonuses of all steps are computed together after the last one (see `defer`), because a few large
    operations are faster than many small ones.

    Args:
        env: the wrapped environment.
        channel: name of the extra tensor with the bonus.
        mixed: weight of the bonus in the reward, not negative; 0: it is not added.
        gamma: discount of the non-episodic return whose running standard deviation, per seed, divides the bonus (Burda
            et al. 2018, arXiv:1810.12894, section 2.4), after which it is at most 10 (`MOST`); None: no
            division.

    Attributes:
        shape: `(S, N)`.
        features: conversion of observations to a vector or an image.
        weight: of a class, the default weight of `--bonus`, relative to the environment's reward.
        episodic: of a class, whether its return ends with the episode, for `--bonus` with reward channels.
        gamma: of a class, the default discount of `--bonus`.

    Raises:
        TypeError: if the subclass defines neither `novelty` nor `novelties`.
    """

    STATE = ("moments", "returns", "recent", "averaged", "deviation", "steps")
    in_evaluation = False
    weight: ClassVar[float] = WEIGHT
    episodic: ClassVar[bool] = False
    gamma: float | None = 0.99

    def __init__(
        self, env: BatchEnv, channel: str = CHANNEL, *, mixed: float = 0.0, gamma: float | None = None
    ) -> None:
        if type(self).novelty is Bonus.novelty and type(self).novelties is Bonus.novelties:
            raise TypeError(f"{type(self).__name__} must define novelty(seen, actions, valid)")
        self.channel, self.mixed, self.gamma = channel, mixed, gamma
        require(self, mixed="[0, inf)", gamma="[0, 1) or None")
        super().__init__(env)
        self.features = Features.of(env.observation_space, env.action_space)
        self._deferred: list[tuple[Taken, Tensor]] | None = None
        self._is_first, self._is_reported, self._all_valid = True, False, False

    def check_config(self, config: object) -> None:
        """Log a warning if no reward channel of the algorithm reads the bonus, and it is not in the reward.

        Log one also if hindsight relabels transitions, whose rewards then lack the bonus.
        """
        warn_of_hindsight(self, config)
        if self.mixed or self.channel in (getattr(config, "reward_channels", None) or ()):
            return
        logger.warning(
            "the bonus %s has no effect: it is not added to the reward (mixed=0), and the algorithm has no reward "
            "channel %r; pass it with --bonus instead of --wrapper",
            *(type(self).__name__, self.channel),
        )

    @property
    def learned(self) -> dict[str, Tensor]:
        """The tensors that belong to the weights, `[S, ...]` by name, with statistics of a normalized bonus."""
        return super().learned | (self._named(moments=self.moments) if self.gamma is not None else {})

    @property
    def _label(self) -> str:
        """Name in names of learned state: the class, and a channel that is not the default."""
        return super()._label if self.channel == CHANNEL else f"{super()._label}.{self.channel}"

    def _named(self, **statistics: Moments) -> dict[str, Tensor]:
        """Return the tensors of statistics by name."""
        return {
            f"{self._label}.{which}.{name}": getattr(moments, name)
            for which, moments in statistics.items()
            for name in Moments.NAMES
        }

    def start(self, seeds: Sequence[int]) -> None:
        """Create the running statistics."""
        self.shape = len(seeds), self.rows // len(seeds)
        self.moments = Moments(len(seeds), (), self.device)
        self.returns = torch.zeros(self.shape, dtype=torch.float64, device=self.device)
        self.recent = torch.zeros(len(seeds), device=self.device)
        self.averaged = 0
        self.deviation = torch.ones(len(seeds), 1, device=self.device)
        self.steps = 0

    def novelty(self, seen: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
        """Return the novelty `[S, N]` of the observations `seen [S, N, D]`, and learn from the `valid [S, N]` ones.

        Args:
            seen: features of the true successors of the actions.
            actions: actions taken, `[B, ...]`.
            valid: whether the step is valid.
        """
        raise TypeError(f"{type(self).__name__} defines novelties of several steps, not novelty")

    def begin(self, seen: Tensor, rows: Tensor) -> None:
        """Process the first observations `seen [S, N, D]` of episodes that begin in the environments `rows [S, N]`."""

    def _see(self, obs: Tree) -> Tensor:
        return self.features.encode(obs).reshape(*self.shape, -1).float()

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every environment."""
        obs = self.env.reset(seeds)
        self.begin(self._see(obs), torch.ones(self.shape, dtype=torch.bool, device=self.device))
        return obs

    def step(self, actions: Tensor) -> Step:
        """Apply one action per environment, and add the bonus."""
        step = self.env.step(actions)
        seen = self._see(step.final_obs)
        following = seen if step.obs is step.final_obs else self._see(step.obs)
        ends = step.terminated | step.truncated
        if not self.always_valid:
            ends = ends | ~step.valid
        taken_step = Taken(seen, actions, step.valid.view(self.shape), following, ends.view(self.shape))
        if self._deferred is None:
            bonus = self._pay([taken_step])[0]
        else:
            bonus = torch.full_like(step.reward, torch.nan)
            self._deferred.append((taken_step, bonus))
        reward = step.reward + self.mixed * bonus if self.mixed else step.reward
        return step._replace(reward=reward, extras={**(step.extras or {}), self.channel: bonus})

    def defer(self) -> None:
        """Set the bonuses of the following steps to NaN until `settle`, unless they are added to the reward."""
        self._deferred = None if self.mixed else []

    def settle(self) -> None:
        """Compute the bonuses of all steps since `defer`, in place."""
        deferred, self._deferred = self._deferred, None
        if deferred:
            steps, bonuses = zip(*deferred, strict=True)
            for bonus, paid in zip(bonuses, self._pay(steps), strict=True):
                bonus.copy_(paid)

    def novelties(self, steps: Sequence[Taken]) -> Tensor:
        """Return the novelties `[T, S, N]` of several steps, and learn from them."""
        parts: list[Tensor] = []
        for step in steps:
            parts.append(self._checked("novelty", self.novelty(step.seen, step.actions, step.valid), self.shape))
            self.begin(step.following, step.ends)
        return torch.stack(parts)

    def _checked(self, method: str, bonus: object, shape: tuple[int, ...]) -> Tensor:
        """Return the result of a method of a subclass if it is a float32 tensor of a shape."""
        if isinstance(bonus, Tensor) and bonus.dtype is torch.float32 and bonus.shape == shape:
            return bonus
        found = f"{bonus.dtype} {[*bonus.shape]}" if isinstance(bonus, Tensor) else f"{bonus!r:.80}"
        axes = "S, N" if len(shape) == 2 else "T, S, N"
        raise ValueError(
            f"{type(self).__name__}.{method} must return a tensor [{axes}], torch.float32 {[*shape]}, got {found}"
        )

    def _pay(self, steps: Sequence[Taken]) -> Tensor:
        """Return the bonuses `[T, B]` of several steps; 0 for those of NaN or Inf, which are not learned from."""
        steps, all_valid = self._without_gaps(steps)
        self._all_valid = all_valid
        paid = self._checked("novelties", self.novelties(steps), (len(steps), *self.shape))
        if not math.isfinite(float(paid.sum())):  # a sum is cheaper than a test of each number
            finite = paid.isfinite()
            self._report(finite | ~torch.stack([step.valid for step in steps]))
            steps, all_valid = [s._replace(valid=s.valid & f) for s, f in zip(steps, finite, strict=True)], False
        self._is_first = False
        if not all_valid:
            paid = paid.masked_fill(~torch.stack([step.valid for step in steps]), 0.0)
        if self.gamma is not None:
            valid = [None if all_valid else step.valid for step in steps]
            paid = torch.stack([self._normalized(*each, self.gamma) for each in zip(paid, valid, strict=True)])
        shares = (1 - DECAY) * DECAY ** torch.arange(len(steps) - 1, -1, -1, device=self.device)
        self.recent.mul_(DECAY ** len(steps)).add_(shares @ paid.mean(-1))
        self.averaged += len(steps)
        return paid.flatten(1)

    def _without_gaps(self, steps: Sequence[Taken]) -> tuple[Sequence[Taken], bool]:
        """Return steps in which observations with NaN or Inf are zeros and invalid, and whether all are valid."""
        if math.isfinite(float(sum(step.seen.sum() for step in steps))):
            return steps, self.always_valid
        finite = [step.seen.isfinite().all(-1) for step in steps]
        return [
            step._replace(seen=step.seen.masked_fill(~known.unsqueeze(-1), 0.0), valid=step.valid & known)
            for step, known in zip(steps, finite, strict=True)
        ], False

    def _report(self, finite: Tensor) -> None:
        """Name the class whose bonuses are NaN or Inf; an error if all of the first ones are."""
        if self._is_first and not bool(finite.any()):
            raise ValueError(f"{type(self).__name__}.novelty returned NaN or Inf for every observation")
        if not self._is_reported and not bool(finite.all()):
            self._is_reported = True
            logger.warning(
                "the bonus %s is NaN or Inf for some observations without NaN: it counts as 0 there",
                type(self).__name__,
            )

    def _normalized(self, bonus: Tensor, valid: Tensor | None, gamma: float) -> Tensor:
        """Divide the bonus `[S, N]` of a step by the standard deviation of its return."""
        self.returns.mul_(gamma).add_(bonus)
        if self.steps < WARMUP_STEPS or self.steps % UPDATE_INTERVAL == 0:
            self.moments.update(self.returns, valid)
            self.deviation.copy_((self.moments.variance() + 1e-8).sqrt_())
        self.steps += 1
        return (bonus / self.deviation).clamp(max=MOST)

    def load_state_dict(self, state: State) -> Tree:
        """Restore a state, and return the next observations."""
        obs = super().load_state_dict({"averaged": UNKNOWN, **state})  # older states lack the number
        if self.begins_anew:
            self.begin(self._see(obs), torch.ones(self.shape, dtype=torch.bool, device=self.device))
        return obs

    def metrics(self) -> Mapping[str, Tensor]:
        """Return a moving average of the bonus over about a hundred steps; at first the mean of all steps.

        Like that of Adam, the average begins at 0, so it is divided by the sum of its weights.
        """
        return {f"bonus/{self.channel}": self.recent / (1 - DECAY ** max(1, self.averaged))}
