"""Exploration noise that is a function of the state (gSDE; Raffin et al. 2021, arXiv:2005.05719): `StateNoise`.

Noise that is drawn again at every step averages out where a task needs a push over many steps, and shakes a real
machine. Here weights are drawn, and the noise is what they make of the last hidden layer of the policy, so that
neighboring states get nearly the same noise. What differs from the paper: the layer is scaled to length 1, so that the
noise of each action is standard normal in every state, whatever the size of the layer; its standard deviation stays
what the algorithm has, and so do log-probabilities, entropies and losses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from operant import ops, streams
from operant.nets import StackedMLP
from operant.runtime.bounds import Interval


@dataclass(frozen=True, kw_only=True)
class StateNoiseConfig:
    """Hyperparameters of algorithms whose noise may be a function of the state."""

    use_sde: bool = False
    """Whether the noise of continuous actions is a function of the state (gSDE), so that it does not average out."""
    sde_sample_freq: Annotated[int, Interval("[-1, inf)")] = -1
    """Steps of every environment after which that function is drawn again within those that are collected at once; -1:
    only when they begin."""

    @property
    def sde_every(self) -> int | None:
        """What `sde_sample_freq` says, if noise depends on the state.

        Raises:
            ValueError: it is 0.
        """
        if self.sde_sample_freq == 0:
            raise ValueError("sde_sample_freq must be at least 1, or -1 for never within a rollout, got 0")
        return self.sde_sample_freq if self.use_sde else None


class StateNoise:
    """The noise of one rollout.

    Args:
        generators: one for each of the S seeds.
        steps: T, of the rollout.
        rows: N, environments of a seed.
        network: whose last hidden layer is read.
        actions: A, dimensions of an action.
        every: steps after which the weights are drawn again; -1: once, at the beginning.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        *,
        steps: int,
        rows: int,
        network: StackedMLP,
        actions: int,
        every: int,
    ) -> None:
        self.steps, self.every = steps, steps if every < 0 else every
        width = network.shapes[-1][0]
        shape = (-(-steps // self.every), rows, width, actions)
        self.weights = streams.draw(generators, lambda s: torch.randn(shape, generator=s, device=s.device), dim=1)

    def __len__(self) -> int:
        """The steps of the rollout."""
        return self.steps

    def at(self, hidden: Tensor, t: int) -> Tensor:
        """Return the noise `[S, N, A]` of step t, where the last hidden layer is `hidden [S, N, L]`."""
        return ops.state_dependent_noise(hidden.float(), self.weights[t // self.every])


def require_state_noise(network: object, *, continuous: bool, algorithm: str) -> StackedMLP:
    """Return the network that state-dependent noise is read from.

    Raises:
        ValueError: actions are not continuous, or the network has no such hidden layer.
    """
    if not continuous:
        raise ValueError(f"use_sde is noise on continuous actions, and {algorithm} chooses among finitely many here")
    if not isinstance(network, StackedMLP) or len(network.shapes) < 2:
        raise ValueError(
            "use_sde reads the last hidden layer of a perceptron: leave out encoder, network and actor_network, and "
            "give hidden_sizes at least one"
        )
    return network
