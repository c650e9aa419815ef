"""The recurrent state-space model of DreamerV3 (Hafner et al. 2023, arXiv:2301.04104, equation 1).

A state is a deterministic part `h`, which a gated recurrent unit carries from step to step, and a stochastic part `z`,
a vector of categorical variables. The prior tells `z` from `h` alone; the posterior from `h` and what was seen. Where
the recurrent part is wide, its weights are block-diagonal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from operant import ops
from operant.nets import Slot, Slots, StackedNormedMLP, normed, shares


class State(NamedTuple):
    """States of `M` rows of `S` seeds.

    Attributes:
        deter: `[S, M, D]`, h.
        stoch: `[S, M, G * K]`, z: G one-hot vectors of K numbers each.
    """

    deter: Tensor
    stoch: Tensor

    @property
    def features(self) -> Tensor:
        """`[S, M, D + G * K]`, what all predictions are made from."""
        return torch.cat(self, -1)


@dataclass(frozen=True)
class RSSMShape:
    """Shape of the model.

    Attributes:
        embedding: E, numbers of an encoded observation.
        actions: A, numbers of an action.
        deter: D.
        stoch: G, categorical variables.
        classes: K, classes of each.
        units: width of the hidden layers.
        blocks: blocks of the recurrent weights; divides D.
        prior_layers: hidden layers of the prior.
        unimix: share of the uniform distribution in each variable.
    """

    embedding: int
    actions: int
    deter: int
    stoch: int
    classes: int
    units: int
    blocks: int
    prior_layers: int
    unimix: float

    @property
    def features(self) -> int:
        """Numbers of a state."""
        return self.deter + self.stoch * self.classes


class RSSM(Slots):
    """`S` models of one shape.

    Args:
        shape: shape of the model.

    Attributes:
        shape: as given.
    """

    def __init__(self, shape: RSSMShape) -> None:
        self.shape = shape
        units, flat, blocks = shape.units, shape.stoch * shape.classes, shape.blocks
        if shape.deter % blocks:
            raise ValueError(f"blocks must divide deter, which is {shape.deter}, got {blocks}")
        width, inputs = shape.deter // blocks, shape.deter // blocks + 3 * units
        self.from_deter = StackedNormedMLP(shape.deter, (units,))
        self.from_stoch = StackedNormedMLP(flat, (units,))
        self.from_action = StackedNormedMLP(shape.actions, (units,))
        grouped = () if blocks == 1 else (blocks,)
        self.core = Slots(
            [
                Slot((*grouped, inputs, width), inputs, 1.0),
                Slot((1, shape.deter), gain=1.0),
                Slot((1, shape.deter)),
                Slot((*grouped, width, 3 * width), width, 1.0),
                Slot((*grouped, 1, 3 * width)),
            ]
        )
        self.prior = StackedNormedMLP(shape.deter, (units,) * shape.prior_layers, flat)
        both = shape.deter + shape.embedding
        self.posterior = Slots(
            [
                Slot((shape.deter, units), both, 1.0),
                Slot((shape.embedding, units), both, 1.0),
                Slot((1, units), gain=1.0),
                Slot((1, units)),
                Slot((units, flat), units, 1.0),
                Slot((1, flat)),
            ]
        )
        self.parts = (self.from_deter, self.from_stoch, self.from_action, self.core, self.prior, self.posterior)
        super().__init__([slot for part in self.parts for slot in part.slots])

    def bind(self, views: Sequence[Tensor]) -> "BoundRSSM":
        """Return the models that compute with `views` of their parameters."""
        return BoundRSSM(self, *shares(self.parts, views))


@dataclass(frozen=True)
class BoundRSSM:
    """The models with one set of parameters.

    Attributes:
        model: their shape.
    """

    model: RSSM
    from_deter: Sequence[Tensor]
    from_stoch: Sequence[Tensor]
    from_action: Sequence[Tensor]
    core: Sequence[Tensor]
    prior: Sequence[Tensor]
    posterior: Sequence[Tensor]

    def start(self, seeds: int, rows: int) -> State:
        """Return the states from which episodes begin: zeros."""
        shape, like = self.model.shape, self.core[0]
        return State(*(like.new_zeros(seeds, rows, n) for n in (shape.deter, shape.stoch * shape.classes)))

    def drive(self, actions: Tensor) -> Tensor:
        """Return the input of the recurrent part from actions `[S, M, A]`, `[S, M, U]`."""
        return self.model.from_action(self.from_action, actions)

    def advance(self, state: State, driven: Tensor) -> Tensor:
        """Return `h [S, M, D]` after a state and an action, given as `drive` returns it."""
        deter, model = state.deter, self.model
        inputs = (
            model.from_deter(self.from_deter, deter),
            model.from_stoch(self.from_stoch, state.stoch),
            driven,
        )
        first, scale, shift, second, bias = self.core
        seeds, rows, width = deter.shape
        if model.shape.blocks == 1:
            hidden = normed(torch.bmm(torch.cat((deter, *inputs), -1), first), scale, shift)
            reset, candidate, update = torch.baddbmm(bias, hidden, second).chunk(3, -1)
        else:
            shared = torch.cat(inputs, -1).unsqueeze(2).expand(-1, -1, model.shape.blocks, -1)
            grouped = torch.cat((deter.view(seeds, rows, model.shape.blocks, -1), shared), -1)
            hidden = torch.matmul(grouped.transpose(1, 2), first).transpose(1, 2).reshape(seeds, rows, width)
            hidden = normed(hidden, scale, shift).view(seeds, rows, model.shape.blocks, -1).transpose(1, 2)
            gates = (torch.matmul(hidden, second) + bias).transpose(1, 2)
            reset, candidate, update = (gate.reshape(seeds, rows, width) for gate in gates.chunk(3, -1))
        return torch.lerp(deter, (reset.sigmoid() * candidate).tanh(), (update - 1).sigmoid())

    def expect(self, deter: Tensor) -> Tensor:
        """Return the prior's log-probabilities `[S, M, G, K]` at `h [S, M, D]`."""
        return self._log_probs(self.model.prior(self.prior, deter))

    def look(self, embedded: Tensor) -> Tensor:
        """Return the share `[S, M, U]` that encoded observations `[S, M, E]` have in the posterior's hidden layer."""
        return torch.bmm(embedded, self.posterior[1])

    def recognize(self, deter: Tensor, looked: Tensor) -> Tensor:
        """Return the posterior's log-probabilities `[S, M, G, K]` at h and an observation, given as by `look`."""
        from_deter, _, scale, shift, weight, bias = self.posterior
        hidden = normed(torch.baddbmm(looked, deter, from_deter), scale, shift)
        return self._log_probs(torch.baddbmm(bias, hidden, weight))

    def _log_probs(self, logits: Tensor) -> Tensor:
        shape = self.model.shape
        return ops.unimix(torch.unflatten(logits, -1, (shape.stoch, shape.classes)), shape.unimix)

    def observe(self, looked: Tensor, driven: Tensor, goes_on: Tensor, noise: Tensor) -> tuple[State, Tensor]:
        """Follow sequences that were seen.

        Args:
            looked: `[L, S, M, U]` of the observations (see `look`).
            driven: `[L, S, M, U]` of the actions before them (see `drive`); in first frames of an action of zeros.
            goes_on: `[L, S, M, 1]`, 0 where a frame is the first, else 1.
            noise: `[L, S, M, G, K]` standard Gumbel noise.

        Returns:
            The states `[L, S, M, ...]`, and the posterior's log-probabilities `[L, S, M, G, K]`.
        """
        state = self.start(*looked.shape[1:3])
        states: list[State] = []
        found: list[Tensor] = []
        for seen, action, mask, gumbel in zip(*(x.unbind(0) for x in (looked, driven, goes_on, noise)), strict=True):
            deter = self.advance(State(state.deter * mask, state.stoch * mask), action)
            log_probs = self.recognize(deter, seen)
            state = State(deter, sampled(log_probs, gumbel))
            states.append(state)
            found.append(log_probs)
        return State(*(torch.stack(column) for column in zip(*states, strict=True))), torch.stack(found)

    def imagine(self, state: State, actions: Tensor, noise: Tensor) -> State:
        """Return the prior's sample after a state and actions `[S, M, A]`, with Gumbel noise `[S, M, G, K]`."""
        deter = self.advance(state, self.drive(actions))
        return State(deter, sampled(self.expect(deter), noise))


def sampled(log_probs: Tensor, noise: Tensor | None) -> Tensor:
    """Draw z `[S, M, G * K]` by Gumbel noise, with straight-through gradients; None takes the most likely classes."""
    choices = ops.categorical_mode(log_probs) if noise is None else ops.categorical_sample(log_probs, noise)
    return ops.straight_through(log_probs, choices).flatten(-2)
