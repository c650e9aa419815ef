"""Adam for networks that look up rows: `StackedLookupAdam`, whose steps take no longer with more rows."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from operant.nets.lookup import RowGradient, StackedLookup
from operant.nets.optim import StackedOptimizer, fused_adam
from operant.tensors import integers, linalg


class _Merged(NamedTuple):
    """A gradient whose rows are distinct.

    Attributes:
        places: indices of the rows among those of all networks, network after network, `[D]`.
        networks: indices of the networks of the rows, `[D]`.
        rows: gradients of the rows, `[D, W]`.
        rest: gradients of all other parameters, `[S, K R]`.
    """

    places: Tensor
    networks: Tensor
    rows: Tensor
    rest: Tensor


class StackedLookupAdam(StackedOptimizer):
    """Adam of stacks of `StackedLookup`, which steps only the rows that were looked up.

    The rows have no first moment, that is, a decay rate of 0: then a row without a gradient does not move, and its
    second moment decays by a known power until its next gradient. So the steps are exactly those of Adam with these
    rates for all parameters, at a cost that does not depend on the number of rows. All other parameters have both
    moments.

    Args:
        parameters: `[S, K P]` of K networks of each seed, stepped in place.
        lookup: shape of the networks, P parameters each.
        epsilon: constant added to the root of the second moment.
        betas: decay rates of the two moments.
        max_grad_norm: maximum norm of the gradient of one seed, all of its networks; None: no clipping.

    Attributes:
        row_second: second moments of the rows at their last gradient, `[S, K E, W]`.
        row_steps: numbers of the steps of these gradients, `[S, K E]`.
    """

    STATE = ("first", "row_second", "row_steps", *StackedOptimizer.STATE)

    def __init__(
        self,
        parameters: Tensor,
        lookup: StackedLookup,
        *,
        epsilon: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(parameters, epsilon=epsilon, max_grad_norm=max_grad_norm)
        self.lookup, self.betas = lookup, betas
        self._adam = fused_adam(betas=betas, epsilon=epsilon)
        self._adam_of_rows = fused_adam(betas=(0.0, betas[1]), epsilon=epsilon)
        seeds, self.networks = len(parameters), parameters.numel() // lookup.size
        self.each = self.networks // seeds
        self._rows = parameters.view(-1, lookup.width)
        self._rest = parameters.view(seeds, self.each, lookup.size)[..., lookup.rest]
        self.second = parameters.new_zeros(seeds, self._rest[0].numel())
        self.first = torch.zeros_like(self.second)
        self.row_second = parameters.new_zeros(seeds, self.each * lookup.entries, lookup.width)
        self.row_steps = parameters.new_zeros(seeds, self.each * lookup.entries)
        # Of parameters and target network, as steps and copies have left them; None: the next copy is a whole one.
        self._versions: tuple[int, int] | None = None
        self._stepped: list[Tensor] = []  # places of the rows since the last copy
        self._room = 0  # number of rows that can be added
        self._latest = torch.zeros(self.networks, lookup.entries, dtype=torch.int64, device=parameters.device)

    def _by_seed(self, gradient: RowGradient) -> _Merged:
        """Add up the gradients of the same rows."""
        numbers, rows, rest = gradient
        order = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
        self._latest.scatter_(1, numbers, order)
        latest = self._latest.gather(1, numbers)  # one of the lookups of the same row
        chosen = latest == order
        if rows.device.type == "cpu":
            ranks = chosen.flatten().cumsum(0).sub_(1).view_as(numbers).gather(1, latest).flatten()
            rows = rows.new_zeros(int(chosen.sum()), rows.shape[2]).index_add_(0, ranks, rows.flatten(0, 1))
        else:  # the order of sums by index differs from call to call there
            same = (numbers.unsqueeze(2) == numbers.unsqueeze(1)).to(rows.dtype)
            rows = torch.bmm(same, rows)[chosen]
        networks = torch.arange(self.networks, device=numbers.device).unsqueeze(1).expand_as(numbers)[chosen]
        places = numbers[chosen] + networks * self.lookup.entries
        return _Merged(places, networks, rows, rest.reshape(len(self.steps), -1))

    def _norm(self, gradient: _Merged) -> Tensor:
        squares = linalg.vector_norm(gradient.rest, dim=1).square()
        of_rows = linalg.vector_norm(gradient.rows, dim=1).square()
        return squares.index_add_(0, gradient.networks // self.each, of_rows).sqrt_()

    def _scale(self, gradient: _Merged, factors: Tensor) -> None:
        gradient.rest.mul_(factors.unsqueeze(1))
        gradient.rows.mul_(factors[gradient.networks // self.each].unsqueeze(1))

    def follow(self, target: Tensor, tau: float) -> None:
        """Move a target network's parameters `[S, K P]` in place towards the parameters by the fraction tau.

        A whole copy is one of the rows that were stepped since the last, if nothing else has written to either.
        """
        if tau == 1.0 and self._versions == (self.parameters._version, target._version):
            places = torch.cat((self._latest.new_zeros(0), *self._stepped))
            target.view_as(self._rows).index_copy_(0, places, self._rows.index_select(0, places))
            target.view(*self._rest.shape[:2], -1)[..., self.lookup.rest].copy_(self._rest)
        else:
            target.lerp_(self.parameters, tau)
        self._stepped, self._versions = [], (self.parameters._version, target._version)
        self._room = self.row_steps.numel()

    def _update(self, seeds: Sequence[int], gradient: _Merged, learning_rate: float) -> None:
        if self._versions is not None:
            self._room -= len(gradient.places)
            if self._room <= 0 or self._versions[0] != self.parameters._version:
                self._stepped, self._versions = [], None
        self._update_rest(seeds, gradient, learning_rate)
        counts = gradient.networks.div(self.each, rounding_mode="floor").bincount(minlength=len(self.steps))
        ends = [0, *integers(counts.cumsum(0))]
        for seed in seeds:
            self._update_rows(seed, gradient, slice(ends[seed], ends[seed + 1]), learning_rate)
        if self._versions is not None:
            self._versions = self.parameters._version, self._versions[1]

    def _update_rest(self, seeds: Sequence[int], gradient: _Merged, learning_rate: float) -> None:
        own = self._rest.clone(memory_format=torch.contiguous_format).flatten(1)
        columns = own, gradient.rest, self.first, self.second, self.steps
        parameters, gradients, first, second, steps = ([column[seed] for seed in seeds] for column in columns)
        self._adam(parameters, gradients, first, second, [], steps, lr=learning_rate)
        self._rest.copy_(own.view_as(self._rest))

    def _update_rows(self, seed: int, gradient: _Merged, part: slice, learning_rate: float) -> None:
        """Step rows of one seed."""
        lookup, step = self.lookup, self.steps[seed]
        places, networks, slope = gradient.places[part], gradient.networks[part], gradient.rows[part]
        row_second, row_steps = self.row_second.flatten(0, 1), self.row_steps.flatten()
        idle = (step - row_steps.index_select(0, places) - 1).clamp_(min=0)  # 32 bits count to 16 777 216
        second = row_second.index_select(0, places).mul_((self.betas[1] ** idle).unsqueeze(1))
        there = places + networks * (lookup.size // lookup.width - lookup.entries)
        own = self._rows.index_select(0, there)
        self._adam_of_rows([own], [slope], [torch.zeros_like(own)], [second], [], [step], lr=learning_rate)
        self._rows.index_copy_(0, there, own)
        if self._versions is not None:
            self._stepped.append(there)
        row_second.index_copy_(0, places, second)
        row_steps.index_fill_(0, places, float(step))
