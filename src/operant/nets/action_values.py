"""Q-networks of `S` seeds, with one vector of parameters per seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant import ops
from operant.nets.factory import Encoder, network_for, whole_network
from operant.nets.lookup import RowGradient, StackedLookup, rows_of
from operant.nets.lookup_adam import StackedLookupAdam
from operant.nets.mlp import Activation, Layers
from operant.nets.module import StackedModule
from operant.nets.network import MakeNetwork, StackedNetwork
from operant.nets.optim import StackedAdam
from operant.nets.tracing import tracing


class ActionValues:
    """Q-networks for `A` actions: parameters `[S, P]`, observations `[S, M, D]` or `[S, M, C, H, W]`.

    A dueling network (Wang et al. 2016) replaces the last hidden layer by two streams of the same size, one for the
    value of the state and one for the advantages of the actions. The streams are the halves of one layer, and weights
    between a half and the outputs of the other are fixed at zero.

    Args:
        inputs: shape of an observation, `(D,)` or `(C, H, W)`; D alone is allowed.
        actions: A.
        hidden: sizes of the hidden layers.
        activation: activation function of the hidden layers.
        dueling: whether value and advantages are separate streams.
        encoder: the convolutions for images, or a custom module with its own initialization.
        bounds: bounds of the observations, `[D]` each; intervals of finite width are mapped onto [-1, 1].
        network: a custom network that replaces all layers and returns the values (see `StackedNetwork`).
        one_hot: whether observations are one-hot vectors of D entries, given as indices `[S, M, 1]`.

    Raises:
        ValueError: if a dueling network has no hidden layer, bounds are given for images, which are always scaled, or a
            custom network is given with an encoder or a dueling network.
    """

    def __init__(
        self,
        inputs: int | Sequence[int],
        actions: int,
        *,
        hidden: Sequence[int],
        activation: Activation,
        dueling: bool = False,
        encoder: Encoder = "auto",
        bounds: tuple[Tensor, Tensor] | None = None,
        network: str | MakeNetwork | None = None,
        one_hot: bool = False,
    ) -> None:
        given = [*([] if encoder == "auto" else [f"encoder={encoder!r}"]), *(["dueling=True"] if dueling else [])]
        if network is not None and given:
            raise ValueError(f"network {network!r} replaces all layers: leave out {' and '.join(given)}")
        if dueling and not hidden:
            raise ValueError("hidden must have at least one layer for the two streams of a dueling network, got ()")
        observed = (inputs,) if isinstance(inputs, int) else tuple(inputs)
        if bounds is not None and len(observed) > 1:
            raise ValueError(f"scale_obs is for vectors; images {observed} are always scaled")
        self.actions, self.dueling = actions, dueling
        self.affine: tuple[Tensor, Tensor] | None = None
        if bounds is not None:
            low, high = bounds
            width = high - low  # also infinite for bounds of the largest float, which means unbounded
            bounded = width.isfinite() & (width > 0.0)
            scale = torch.where(bounded, 2.0 / width, 1.0)
            self.affine = torch.where(bounded, -1.0 - low * scale, 0.0), scale
        if dueling:
            hidden = [*hidden[:-1], 2 * hidden[-1]]
        sizes = [*hidden, actions + dueling]
        if network is not None:
            self.mlp = whole_network(network, observed, (actions,))
        elif one_hot:
            self.mlp = StackedLookup([*observed, *sizes], activation=activation)
        else:
            self.mlp = network_for(observed, sizes, activation=activation, encoder=encoder)
        self.size = self.mlp.size

    def initial(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the initial parameters `[S, P]`, one row per generator.

        Weights and biases are uniform within `1 / √inputs` of their layer, as in the paper's code; the last layers of
        the two streams of a dueling network are one layer, with the inputs of both. Different biases give ReLUs
        different kinks, even for small observations. A one-hot vector counts as one input, so initial values differ
        between observations for any number of them. A custom network initializes itself.
        """
        if isinstance(self.mlp, StackedNetwork):
            return torch.stack([self.mlp.initial(generator) for generator in generators])
        rows = torch.zeros(len(generators), self.size)
        for row, generator in zip(rows, generators, strict=True):
            layers = self.mlp.layers(row.unsqueeze(0))
            if isinstance(self.mlp, StackedModule):
                layers.pop(0)[0].copy_(self.mlp.initial_module(generator))
            for weight, bias in layers:
                inputs = weight[0, 0].numel() if weight.dim() > 3 else weight.shape[1]
                if isinstance(self.mlp, StackedLookup) and weight is layers[0][0]:
                    inputs = 1
                bound = inputs**-0.5
                weight.uniform_(-bound, bound, generator=generator)
                bias.uniform_(-bound, bound, generator=generator)
        return rows if self.mask is None else rows * self.mask

    @property
    def mask(self) -> Tensor | None:
        """Mask `[P]`: 0 for parameters that are fixed at zero, else 1; None if there are none."""
        if not self.dueling:
            return None
        mask = torch.ones(1, self.size)
        last, _ = self.mlp.layers(mask)[-1]
        half = last.shape[1] // 2
        last[:, :half, 1:] = 0.0
        last[:, half:, :1] = 0.0
        return mask[0]

    def bind(self, parameters: Tensor) -> "BoundActionValues":
        """Return the networks that compute with `parameters [S, P]`, sharing their memory."""
        mask = self.mask
        return BoundActionValues(
            self, self.mlp.layers(parameters), mask if mask is None else mask.to(parameters.device)
        )

    def optimizer(
        self, parameters: Tensor, *, epsilon: float, max_grad_norm: float | None
    ) -> StackedAdam | StackedLookupAdam:
        """Return Adam for the gradients of `ValuePass`, of parameters `[S, K P]` of K networks of each seed.

        Args:
            parameters: parameters, updated in place.
            epsilon: epsilon of Adam.
            max_grad_norm: maximum gradient norm per seed; None: no clipping.
        """
        if isinstance(self.mlp, StackedLookup):
            return StackedLookupAdam(parameters, self.mlp, epsilon=epsilon, max_grad_norm=max_grad_norm)
        return StackedAdam(parameters, epsilon=epsilon, max_grad_norm=max_grad_norm)

    def fixed(self, parameters: Tensor) -> "FixedValues | BoundActionValues":
        """Return the networks with `parameters [S, P]` that are not trained."""
        bound = self.bind(parameters)
        return FixedValues(bound, parameters) if isinstance(self.mlp, StackedLookup) else bound

    def scaled(self, obs: Tensor) -> Tensor:
        """Return the inputs of the networks for observations."""
        return obs if self.affine is None else torch.addcmul(self.affine[0], obs, self.affine[1])


@dataclass(frozen=True)
class BoundActionValues:
    """Networks with one set of parameters, sliced once for many calls.

    Attributes:
        shape: shape of the networks.
        layers: weights and biases.
        mask: see `ActionValues.mask`.
        prior: fixed networks whose values are added, or None.
        prior_scale: factor of their values.
    """

    shape: ActionValues
    layers: Layers
    mask: Tensor | None
    prior: "Callable[[Tensor], Tensor] | None" = None
    prior_scale: float = 0.0

    def __call__(self, obs: Tensor) -> Tensor:
        """Return the values `[S, M, A]`."""
        return self.combine(self.shape.mlp(self.layers, self.shape.scaled(obs)), obs)

    def combine(self, outputs: Tensor, obs: Tensor) -> Tensor:
        """Return the values `[S, M, A]` from the last layer's outputs `[S, M, out]` for observations."""
        values = ops.dueling(outputs[..., :1], outputs[..., 1:]) if self.shape.dueling else outputs
        return values if self.prior is None else values + self.prior_scale * self.prior(obs)


class FixedValues:
    """Values of fixed networks, tabulated for all one-hot observations.

    Args:
        bound: networks with one-hot inputs.
        parameters: their parameters, `[S, P]`; an update in place, such as a resume, updates the table.
    """

    CHUNK = 256

    def __init__(self, bound: BoundActionValues, parameters: Tensor) -> None:
        self._bound, self._parameters, self._version = bound, parameters, parameters._version
        self.table = self._values()

    def _values(self) -> Tensor:
        """Return the values `[S, E, A]` of all entries."""
        weight, _ = self._bound.layers[0]
        entries = torch.arange(weight.shape[1], device=weight.device).view(1, -1, 1)
        chunks = torch.split(entries.expand(len(weight), -1, -1), self.CHUNK, dim=1)
        return torch.cat([self._bound(chunk) for chunk in chunks], 1)

    def __call__(self, obs: Tensor) -> Tensor:
        """Return the values `[S, M, A]` for entries `[S, M, 1]`."""
        if not tracing() and self._version != self._parameters._version:
            self.table.copy_(self._values())
            self._version = self._parameters._version
        return rows_of(self.table, obs)


class ValuePass:
    """One forward pass of the action values, and its backward pass.

    A loss is computed from `values` and differentiated by autograd to the outputs of the last layer; from there the
    gradient is propagated through the networks by hand, which avoids most of autograd's overhead.

    Args:
        bound: networks and parameters.
        obs: `[S, M, D]`.

    Attributes:
        values: `[S, M, A]`.
    """

    def __init__(self, bound: BoundActionValues, obs: Tensor) -> None:
        self.bound, shape = bound, bound.shape
        with torch.no_grad():
            self.trace = shape.mlp.trace(bound.layers, shape.scaled(obs))
        self.outputs = self.trace[-1].requires_grad_()
        self.values = bound.combine(self.outputs, obs)

    def gradient(self, loss: Tensor) -> Tensor | RowGradient:
        """Return the gradient of a scalar function of `values`: `[S, P]`, or that of the looked-up rows."""
        (outputs,) = torch.autograd.grad(loss, self.outputs)
        mlp, mask = self.bound.shape.mlp, self.bound.mask
        with torch.no_grad():
            if isinstance(mlp, StackedLookup):
                gradient = mlp.row_gradient(self.bound.layers, self.trace, outputs)
                if mask is not None:
                    gradient.rest.mul_(mask[mlp.rest])
                return gradient
            gradient = torch.cat(mlp.pullback(self.bound.layers, self.trace, outputs), dim=1)
            return gradient if mask is None else gradient.mul_(mask)
