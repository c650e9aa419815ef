"""State-dependent exploration noise (gSDE; Raffin et al. 2021, arXiv:2005.05719): `StateNoise`.

Independent noise at every step averages out in tasks that need a consistent force over many steps, and makes real
robots shake. Here the noise is a product of random weights and the policy's last hidden layer, so similar states get
similar noise. What differs from the paper: the layer is scaled to length 1, so the noise of each action is standard
normal in every state, independent of the size of the layer; the standard deviation, log-probabilities, entropies and
losses of the algorithm do not change.
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
    """Hyperparameters of algorithms with optional state-dependent noise."""

    use_sde: bool = False
    """Whether to use state-dependent exploration (gSDE) for continuous actions."""
    sde_sample_freq: Annotated[int, Interval("[-1, inf)")] = -1
    """gSDE: resample the noise every n steps of a rollout; -1: only at its start. In SAC and TD3 a rollout has
    `train_freq` steps."""

    @property
    def sde_every(self) -> int | None:
        """The value of `sde_sample_freq` with state-dependent noise, else None.

        Raises:
            ValueError: if it is 0.
        """
        if self.sde_sample_freq == 0:
            raise ValueError("sde_sample_freq must be at least 1, or -1 for never within a rollout, got 0")
        return self.sde_sample_freq if self.use_sde else None


class StateNoise:
    """The noise of one rollout.

    Args:
        generators: one per seed.
        steps: T, of the rollout.
        rows: N, environments per seed.
        network: network whose last hidden layer is used.
        actions: A, dimensions of an action.
        every: steps after which the weights are resampled; -1: once, at the start.
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
        """Return the number of steps of the rollout."""
        return self.steps

    def at(self, hidden: Tensor, t: int) -> Tensor:
        """Return the noise `[S, N, A]` of step t, for the last hidden layer `hidden [S, N, L]`."""
        return ops.state_dependent_noise(hidden.float(), self.weights[t // self.every])


def require_state_noise(network: object, *, continuous: bool, algorithm: str) -> StackedMLP:
    """Return the network that provides the features of state-dependent noise.

    Raises:
        ValueError: if actions are not continuous, or the network has no such hidden layer.
    """
    if not continuous:
        raise ValueError(f"use_sde needs continuous actions, but {algorithm} has discrete ones here: leave it out")
    if not isinstance(network, StackedMLP) or len(network.shapes) < 2:
        raise ValueError(
            "use_sde reads the last hidden layer of a perceptron: leave out encoder, network and actor_network, and "
            "give hidden_sizes at least one"
        )
    return network
