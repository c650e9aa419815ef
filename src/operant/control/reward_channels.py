"""Several reward channels, such as the environment's and an exploration bonus, with separate discounts and value heads.

The critic predicts the return of every channel (Burda et al. 2018, arXiv:1810.12894, section 2.3). Advantages are
estimated per channel, and the policy maximizes their weighted sum.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from operant import ops
from operant.ops.returns import Ends
from operant.runtime.bounds import UnitFloat, require
from operant.runtime.rollouts import Rollout

REWARD = "reward"
"""Name of the channel of the environment's reward."""

EXPLAINED_VARIANCE = "value/explained_variance"
"""Name of the metric of the environment's own reward."""


@dataclass(frozen=True)
class RewardChannel:
    """Options of one reward channel."""

    gamma: UnitFloat
    """Discount factor."""
    gae_lambda: UnitFloat
    """λ of generalized advantage estimation."""
    weight: float = 1.0
    """Weight of its advantages in the sum; 0: the critic predicts the return, but the policy ignores it."""
    episodic: bool = True
    """Whether its return ends with the episode. Otherwise it continues into the next episode, as if the first
    observation of that followed the last one of this (Burda et al. 2018), unless a transition between them is invalid.
    """

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if not self.episodic and self.gamma == 1:
            raise ValueError("gamma must be below 1 if episodic is false, because such a return never ends, got 1")


class Channeled(NamedTuple):
    """Rewards and values of a rollout, `[T, S, N]`, or `[T, S, N, K]` for several channels.

    Attributes:
        rewards: rewards of every channel.
        values: predictions of the critic in every state.
        next_values: predictions in the true successor; for a non-episodic channel, in the next observed state.
        gae_lambda: λ; `[K]` for several channels.
        ends: the keyword arguments `terminated`, `truncated` and `gamma` of `operant.ops`.
    """

    rewards: Tensor
    values: Tensor
    next_values: Tensor
    gae_lambda: float | Tensor
    ends: Ends


class OwnReward:
    """The reward of the environment alone, with a return that ends with the episode: one value, and nothing to mix.

    Args:
        gamma: discount.
        gae_lambda: λ.

    Attributes:
        count: K, 1.
    """

    count = 1

    def __init__(self, *, gamma: float, gae_lambda: float) -> None:
        self.gamma, self.gae_lambda = gamma, gae_lambda

    def read(self, rollout: Rollout, value: Callable[[Tensor], Tensor]) -> Channeled:
        """Return the rewards and values of a rollout; `value` maps observations `[S, M, ...]` to values `[S, M]`."""
        values = rollout.values(value)
        ends = Ends(terminated=rollout.terminated, truncated=rollout.truncated, gamma=self.gamma)
        return Channeled(rollout.rewards, values[:-1], rollout.true_successors(values, value), self.gae_lambda, ends)

    def mix(self, advantages: Tensor) -> Tensor:
        """Return the advantages."""
        return advantages

    def explained_variance(self, values: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """Return the critic's explained variance of the targets `[S, M]`, by name of the metric."""
        return {EXPLAINED_VARIANCE: ops.explained_variance(values, targets, weights)}


class RewardChannels:
    """Several reward channels: the environment's reward, and some extra tensors of its steps.

    It is also used for the environment's reward alone if that has a weight, or a return that does not end with the
    episode.

    Args:
        options: by name of the extra tensor, the fields of `RewardChannel` that differ from the defaults. `"reward"` is
            the environment's own, which is always included.
        gamma: default discount.
        gae_lambda: default λ.

    Attributes:
        count: K.

    Raises:
        ValueError: if there is no such field, or a value is out of its range.
    """

    def __init__(self, options: Mapping[str, Mapping[str, Any]], *, gamma: float, gae_lambda: float) -> None:
        names = [field.name for field in fields(RewardChannel)]
        self.channels: dict[str, RewardChannel] = {}
        own: Mapping[str, Any] = {}
        for name, values in ({REWARD: own} | dict(options)).items():
            if not isinstance(values, Mapping) or values.keys() - {*names}:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"reward_channels.{name} must be a table of {', '.join(names)}, got {values!r}")
            every: dict[str, Any] = {"gamma": gamma, "gae_lambda": gae_lambda, **values}
            try:
                self.channels[name] = RewardChannel(**every)
            except ValueError as error:
                raise ValueError(f"reward_channels.{name}: {error}") from error
        self.count = len(self.channels)

    def read(self, rollout: Rollout, value: Callable[[Tensor], Tensor]) -> Channeled:
        """Return the rewards and values for advantage estimation.

        Args:
            rollout: the experience.
            value: function from observations `[S, M, ...]` to values `[S, M]`, or `[S, M, K]` for several channels.

        Raises:
            ValueError: if the rollout has no extra tensor for a channel, or not one number per environment.
        """
        values = rollout.values(value)
        after = rollout.true_successors(values, value)
        terminated, truncated, own = rollout.terminated, rollout.truncated, self.channels[REWARD]
        cut = _before_invalid(rollout)
        if self.count == 1:
            if not own.episodic:
                after = torch.where(cut, after, values[1:])
                terminated, truncated = torch.zeros_like(terminated), cut
            ends = Ends(terminated=terminated, truncated=truncated, gamma=own.gamma)
            return Channeled(rollout.rewards, values[:-1], after, own.gae_lambda, ends)
        episodic = self._column("episodic", values)
        ends = Ends(
            terminated=terminated.unsqueeze(-1) & episodic,
            truncated=torch.where(episodic, truncated.unsqueeze(-1), cut.unsqueeze(-1)),
            gamma=self._column("gamma", values),
        )
        rewards = torch.stack([self._rewards(rollout, name) for name in self.channels], dim=-1)
        after = torch.where(episodic | cut.unsqueeze(-1), after, values[1:])
        return Channeled(rewards, values[:-1], after, self._column("gae_lambda", values), ends)

    def _rewards(self, rollout: Rollout, name: str) -> Tensor:
        """Return the rewards `[T, S, N]` of a channel; 0 at invalid steps."""
        if name == REWARD:
            return rollout.rewards
        rewards = rollout.extras.get(name)
        if rewards is None:
            raise ValueError(
                f"reward channel {name!r} is not among the extra tensors of the environment's steps, which are "
                f"{sorted(rollout.extras) or 'none'}: add a wrapper that provides {name!r}, or remove the channel"
            )
        if rewards.shape != rollout.rewards.shape:
            raise ValueError(
                f"reward channel {name!r} needs one number per step, but its extras have shape {[*rewards.shape[3:]]}"
            )
        rewards = rewards.to(rollout.rewards.dtype)
        return rewards if rollout.valid is None else rewards.masked_fill(~rollout.valid, 0.0)

    def _column(self, name: str, like: Tensor) -> Tensor:
        """Return a field of all channels, `[K]`."""
        numbers = torch.tensor([getattr(channel, name) for channel in self.channels.values()], device=like.device)
        return numbers if numbers.dtype is torch.bool else numbers.to(like.dtype)

    def mix(self, advantages: Tensor) -> Tensor:
        """Return the weighted sum `[...]` of advantages `[..., K]`, or the advantages `[...]` of one channel."""
        if self.count > 1:
            return advantages @ self._column("weight", advantages)
        weight = self.channels[REWARD].weight
        return advantages if weight == 1 else weight * advantages

    def explained_variance(self, values: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """Return the critic's explained variance of the targets, `[S]` by name of the metric.

        Args:
            values: `[S, M]`, or `[S, M, K]` of several channels.
            targets: `[S, M]`, or `[S, M, K]` of several channels.
            weights: `[S, M]`; None: all are 1.
        """
        if self.count == 1:
            return {EXPLAINED_VARIANCE: ops.explained_variance(values, targets, weights)}
        kind, measure = EXPLAINED_VARIANCE.split("/")
        names = [EXPLAINED_VARIANCE if name == REWARD else f"{kind}/{name}/{measure}" for name in self.channels]
        return {
            name: ops.explained_variance(value, target, weights)
            for name, value, target in zip(names, values.unbind(-1), targets.unbind(-1), strict=True)
        }


def _before_invalid(rollout: Rollout) -> Tensor:
    """Return the steps `[T, S, N]` before invalid ones, where returns that do not end with the episode bootstrap."""
    if rollout.valid is None:
        return torch.zeros_like(rollout.truncated)
    return torch.cat((~rollout.valid[1:], torch.zeros_like(rollout.valid[:1])))


def channels_of(
    given: Mapping[str, Mapping[str, Any]], *, gamma: float, gae_lambda: float
) -> OwnReward | RewardChannels:
    """Return the environment's own reward, or with settings of channels the channels (see `RewardChannels`).

    Raises:
        ValueError: if the settings are no table, or `RewardChannels` raises it.
    """
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - from a user
        raise ValueError(f"reward_channels must be a table of channels by name, got {given!r}")
    if given:
        return RewardChannels(given, gamma=gamma, gae_lambda=gae_lambda)
    return OwnReward(gamma=gamma, gae_lambda=gae_lambda)
