"""Potential-based reward shaping (Ng, Harada and Russell 1999), which preserves optimal policies.

A potential Φ estimates the value of a state. The difference `γ Φ(s') - Φ(s)` (`operant.ops.potential_shaping`) is added
to the rewards. Its discounted sum over an episode that terminates is -Φ of the first state, so cycles have no benefit,
as they can have with other bonuses. An episode that is truncated after T steps adds `γ^T Φ` of its last state, which
the bootstrapped value of that state contains with the opposite sign.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from operant import doors, ops
from operant.control.reward_channels import REWARD
from operant.envs.base import BatchEnv, Step, Tree
from operant.envs.wrapper import ENTRY_POINTS, Wrapper
from operant.explore.bonus import warn_of_hindsight
from operant.mdp.model import MDP
from operant.state import State
from operant.tensors import from_numpy

logger = logging.getLogger(__name__)


class Shaping(Wrapper, ABC):
    """Environments with rewards shaped by a potential; evaluations do not use it.

        class Height(Shaping):
            def potential(self, obs):
                return torch.sin(3 * obs[:, 0])

    Args:
        env: the wrapped environment.
        gamma: discount of the algorithm; another one may change the optimal policies.
        scale: factor of the potential.

    Raises:
        ValueError: if `gamma` lies outside [0, 1].
    """

    in_evaluation = False

    def __init__(self, env: BatchEnv, gamma: float = 0.99, scale: float = 1.0) -> None:
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma of {type(self).__name__} is {gamma}, expected that of the algorithm, in [0, 1]")
        super().__init__(env)
        self.gamma, self.scale = gamma, scale

    @abstractmethod
    def potential(self, obs: Tree) -> Tensor:
        """Return the potentials `[B]` of observations `[B, ...]`; those of terminal states are ignored."""

    def check_config(self, config: object) -> None:
        """Log a warning if the algorithm has another discount than this wrapper, or hindsight relabels transitions."""
        warn_of_hindsight(self, config)
        channels: Mapping[str, Mapping[str, Any]] = getattr(config, "reward_channels", None) or {}
        gamma = channels.get(REWARD, {}).get("gamma", getattr(config, "gamma", None))
        if gamma is not None and gamma != self.gamma:
            logger.warning(
                "gamma of the wrapper %s is %s, but that of the algorithm is %s, so the shaped rewards may change the "
                "optimal policies: set both to the same value, as in --gamma %s%s",
                *(type(self).__name__, self.gamma, gamma, self.gamma),
                f", and of the reward channel {REWARD}" if "gamma" in channels.get(REWARD, {}) else "",
            )

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every environment."""
        return self._seen(super().reset(seeds))

    def step(self, actions: Tensor) -> Step:
        """Apply one action per environment, and shape the rewards; the score is the environment's."""
        before, step = self._potential, super().step(actions)
        self._seen(step.obs)
        after = self._potential if step.final_obs is step.obs else self._scaled(step.final_obs)
        shaping = ops.potential_shaping(before, after, terminated=step.terminated, gamma=self.gamma)
        return step._replace(reward=step.reward + torch.where(step.valid, shaping, 0.0))

    def load_state_dict(self, state: State) -> Tree:
        """Restore a state; the potential follows from the observation."""
        return self._seen(super().load_state_dict(state))

    def _seen(self, obs: Tree) -> Tree:
        self._potential = self._scaled(obs)
        return obs

    def _scaled(self, obs: Tree) -> Tensor:
        values = cast(object, self.potential(obs))
        if not isinstance(values, Tensor) or values.shape != (self.rows,):
            found = f"numbers of shape {[*values.shape]}" if isinstance(values, Tensor) else f"{values!r:.80}"
            raise ValueError(
                f"{type(self).__name__}.potential returned {found}, expected a tensor [{self.rows}], one number per "
                "observation"
            )
        return (self.scale * values).to(torch.float32)


def is_shaping(name: str) -> bool:
    """Return whether the wrapper with a name, in the form of `Settings.wrappers`, is a subclass of `Shaping`.

    Args:
        name: the name.

    Raises:
        ValueError: if there is no such wrapper, or its parameters are wrong.
    """
    make = doors.Call.of(name).load(expected="a class derived from operant.envs.Wrapper", group=ENTRY_POINTS)
    kind = getattr(make, "func", make)
    return isinstance(kind, type) and issubclass(kind, Shaping)


def shaped(mdp: MDP, potential: ArrayLike, *, gamma: float) -> MDP:
    """Return a model with rewards shaped by a potential.

    Args:
        mdp: the model.
        potential: `[S]`, potential of each state; that of terminal states is set to 0.
        gamma: discount, in [0, 1].

    Raises:
        ValueError: if there is not one finite number for each state, or `gamma` lies outside [0, 1].
    """
    values = np.asarray(potential, np.float64)
    if values.shape != (mdp.states,) or not np.isfinite(values).all():
        raise ValueError(f"potential must be {mdp.states} finite numbers, one per state, got {potential!r:.80}")
    origins = np.repeat(np.arange(mdp.states), np.diff(mdp.indptr).reshape(mdp.states, mdp.actions).sum(axis=1))
    tensor = from_numpy(values)
    extra = ops.potential_shaping(
        tensor[origins], tensor[mdp.successors], terminated=from_numpy(mdp.terminates), gamma=gamma
    )
    return replace(mdp, rewards=mdp.rewards + extra.numpy())
