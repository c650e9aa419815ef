"""The recurrent state-space model of DreamerV3 (Hafner et al. 2023, arXiv:2301.04104, equation 1).

A state has a deterministic part `h`, the hidden state of a gated recurrent unit, and a stochastic part `z`, a vector of
categorical variables. The sequence model computes the next `h` from a state and an action; the prior (the paper's
dynamics predictor) predicts `z` from `h`; the posterior (its encoder) infers it from `h` and the observation. The
weights of a large sequence model are block-diagonal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from operant import ops
from operant.nets import Slot, Slots, StackedNormedMLP, normed, shares


class State(NamedTuple):
    """States `[S, M, ...]` of `S` seeds.

    Attributes:
        deter: `[S, M, D]`, h.
        stoch: `[S, M, G * K]`, z: G one-hot vectors of size K.
    """

    deter: Tensor
    stoch: Tensor

    @property
    def features(self) -> Tensor:
        """`[S, M, D + G * K]`, the input of all predictions."""
        return torch.cat(self, -1)


@dataclass(frozen=True)
class RSSMShape:
    """Shape of the model.

    Attributes:
        actions: A, size of an encoded action.
        deter: D, size of h.
        stoch: G, number of categorical variables.
        classes: K, number of classes per variable.
        units: size of the hidden layers.
        blocks: number of blocks of the recurrent weights; divides D.
        prior_layers: number of hidden layers of the prior.
        unimix: share of the uniform distribution in each variable.
    """

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
        """Size of a state."""
        return self.deter + self.stoch * self.classes


class RSSM(Slots):
    """`S` models of one shape.

    Args:
        shape: shape of the model.
        encoded: E, size of an encoded observation.

    Attributes:
        shape: shape of the networks.
    """

    def __init__(self, shape: RSSMShape, encoded: int) -> None:
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
        both = shape.deter + encoded
        self.posterior = Slots(
            [
                Slot((shape.deter, units), both, 1.0),
                Slot((encoded, units), both, 1.0),
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
        model: shape of the models.
    """

    model: RSSM
    from_deter: Sequence[Tensor]
    from_stoch: Sequence[Tensor]
    from_action: Sequence[Tensor]
    core: Sequence[Tensor]
    prior: Sequence[Tensor]
    posterior: Sequence[Tensor]

    def start(self, seeds: int, rows: int) -> State:
        """Return the initial states of episodes: zeros."""
        shape, like = self.model.shape, self.core[0]
        return State(*(like.new_zeros(seeds, rows, n) for n in (shape.deter, shape.stoch * shape.classes)))

    def embed_action(self, actions: Tensor) -> Tensor:
        """Return the input `[S, M, U]` of the sequence model for actions `[S, M, A]`."""
        return self.model.from_action(self.from_action, actions)

    def sequence_model(self, state: State, action: Tensor) -> Tensor:
        """Return the next `h [S, M, D]` for a state and an action, embedded by `embed_action`."""
        deter, model = state.deter, self.model
        inputs = (
            model.from_deter(self.from_deter, deter),
            model.from_stoch(self.from_stoch, state.stoch),
            action,
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

    def prior_log_probs(self, deter: Tensor) -> Tensor:
        """Return the prior's log-probabilities `[S, M, G, K]` at `h [S, M, D]`."""
        return self._log_probs(self.model.prior(self.prior, deter))

    def embed_obs(self, encoded: Tensor) -> Tensor:
        """Return the contribution `[S, M, U]` of encoded observations `[S, M, E]` to the posterior's hidden layer."""
        return torch.bmm(encoded, self.posterior[1])

    def posterior_log_probs(self, deter: Tensor, obs: Tensor) -> Tensor:
        """Return the posterior's log-probabilities `[S, M, G, K]` for h and an observation, embedded by `embed_obs`."""
        from_deter, _, scale, shift, weight, bias = self.posterior
        hidden = normed(torch.baddbmm(obs, deter, from_deter), scale, shift)
        return self._log_probs(torch.baddbmm(bias, hidden, weight))

    def _log_probs(self, logits: Tensor) -> Tensor:
        shape = self.model.shape
        return ops.unimix(torch.unflatten(logits, -1, (shape.stoch, shape.classes)), shape.unimix)

    def observe(self, obs: Tensor, actions: Tensor, continues: Tensor, noise: Tensor) -> tuple[State, Tensor]:
        """Infer the states of observed sequences.

        Args:
            obs: `[L, S, M, U]` observations, embedded by `embed_obs`.
            actions: `[L, S, M, U]` previous actions, embedded by `embed_action`; actions of zeros in first frames.
            continues: `[L, S, M, 1]`, 0 in first frames, else 1.
            noise: `[L, S, M, G, K]` standard Gumbel noise.

        Returns:
            The states `[L, S, M, ...]`, and the posterior's log-probabilities `[L, S, M, G, K]`.
        """
        state = self.start(*obs.shape[1:3])
        states: list[State] = []
        posteriors: list[Tensor] = []
        for seen, action, mask, gumbel in zip(*(x.unbind(0) for x in (obs, actions, continues, noise)), strict=True):
            deter = self.sequence_model(State(state.deter * mask, state.stoch * mask), action)
            log_probs = self.posterior_log_probs(deter, seen)
            state = State(deter, sampled(log_probs, gumbel))
            states.append(state)
            posteriors.append(log_probs)
        return State(*(torch.stack(column) for column in zip(*states, strict=True))), torch.stack(posteriors)

    def imagine(self, state: State, actions: Tensor, noise: Tensor) -> State:
        """Sample the next state from the prior, given a state, actions `[S, M, A]`, and Gumbel noise `[S, M, G, K]`."""
        deter = self.sequence_model(state, self.embed_action(actions))
        return State(deter, sampled(self.prior_log_probs(deter), noise))


def sampled(log_probs: Tensor, noise: Tensor | None) -> Tensor:
    """Sample z `[S, M, G * K]` by Gumbel noise, with straight-through gradients; None gives the most likely classes."""
    choices = ops.categorical_mode(log_probs) if noise is None else ops.categorical_sample(log_probs, noise)
    return ops.straight_through(log_probs, choices).flatten(-2)
