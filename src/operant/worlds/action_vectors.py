"""Actions of deterministic policies as vectors: in [-1, 1] by tanh, or one-hot by the largest output.

World Models acts by the vectors as they are; MR.Q also explores with noise, and differentiates through relaxed choices.
"""

from typing import Any, Protocol

import gymnasium
import torch
from torch import Tensor

from operant import ops, streams
from operant.nets import Bounded


class ActionVectors(Protocol):
    """Actions as vectors, the outputs of a deterministic policy and inputs of a critic.

    Attributes:
        width: A, size of an action and of the policy's outputs.
    """

    width: int

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample actions `[*shape, A]` uniformly."""
        ...

    def greedy(self, outputs: Tensor) -> Tensor:
        """Return the vectors `[..., A]` for the policy's outputs `[..., A]`."""
        ...

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample the noise of `relaxed` and `perturbed`, `[*shape, ...]`."""
        ...

    def relaxed(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """Return differentiable vectors `[..., A]` for the policy's outputs; without noise the most likely ones."""
        ...

    def perturbed(self, outputs: Tensor, noise: Tensor | None, *, std: float, clip: float | None = None) -> Tensor:
        """Return the vectors of `relaxed` with additional normal noise, if there is noise.

        `std` and `clip` are in half ranges of an entry: 1 for actions in [-1, 1], 0.5 for one-hot vectors.
        """
        ...

    def to_env(self, actions: Tensor) -> Tensor:
        """Convert actions to members of the action space."""
        ...


class BoxActions(Bounded):
    """Vectors in [-1, 1], the tanh of the policy's outputs."""

    draw, noise = Bounded.uniform, Bounded.normal

    def __init__(self, space: gymnasium.Space[Any], *, device: torch.device) -> None:
        super().__init__(space, device=device)
        self.width = self.dimensions

    def greedy(self, outputs: Tensor) -> Tensor:
        """Return the vectors."""
        return outputs.tanh()

    def relaxed(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """Return the vectors."""
        return outputs.tanh()

    def perturbed(self, outputs: Tensor, noise: Tensor | None, *, std: float, clip: float | None = None) -> Tensor:
        """Return the vectors with normal noise, in [-1, 1]."""
        actions = outputs.tanh()
        return actions if noise is None else ops.perturbed_action(actions, noise, std=std, clip=clip)


HALF_RANGE = 0.5
"""Half the range of an entry of a one-hot vector."""


class OneHotActions:
    """One of A actions, as one-hot vectors; the policy's outputs are logits.

    Args:
        space: space of the actions.
        temperature: temperature of the relaxed choice.
        device: device of the actions.
    """

    def __init__(self, space: gymnasium.spaces.Discrete, *, device: torch.device, temperature: float = 1.0) -> None:
        self.width, self.start, self.temperature = int(space.n), int(space.start), temperature
        self.device = device

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample one-hot vectors uniformly."""
        return ops.one_hot(torch.randint(self.width, shape, generator=generator, device=self.device), self.width)

    def greedy(self, outputs: Tensor) -> Tensor:
        """Return one-hot vectors of the largest outputs."""
        return ops.one_hot(outputs.argmax(-1), self.width)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample Gumbel noise followed by normal noise, `[*shape, 2 A]`."""
        gumbel = streams.gumbel((*shape, self.width), generator)
        normal = torch.empty((*shape, self.width), device=self.device).normal_(generator=generator)
        return torch.cat((gumbel, normal), -1)

    def relaxed(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """Return the probabilities of the relaxed choice."""
        gumbel = torch.zeros_like(outputs) if noise is None else noise[..., : self.width]
        return ops.gumbel_softmax(outputs, gumbel, temperature=self.temperature)

    def perturbed(self, outputs: Tensor, noise: Tensor | None, *, std: float, clip: float | None = None) -> Tensor:
        """Return one-hot vectors of the largest entries, after adding normal noise."""
        actions = self.relaxed(outputs, noise)
        if noise is not None:
            shift = std * noise[..., self.width :]
            actions = actions + HALF_RANGE * (shift if clip is None else shift.clamp(-clip, clip))
        return self.greedy(actions)

    def to_env(self, actions: Tensor) -> Tensor:
        """Convert actions to members of the space."""
        return actions.argmax(-1) + self.start


def action_vectors(space: gymnasium.Space[Any], *, device: torch.device, temperature: float = 1.0) -> ActionVectors:
    """Return the action vectors of a space; the temperature applies to relaxed choices."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return OneHotActions(space, temperature=temperature, device=device)
    return BoxActions(space, device=device)
