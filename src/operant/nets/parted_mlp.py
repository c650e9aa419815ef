"""Perceptrons whose samples come in parts, each computed with the bits that it has alone: `PartedMLP`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.nets.agreement import Agreement
from operant.nets.matmul import product, rounds
from operant.nets.mlp import MANY, NARROW, StackedMLP


@dataclass
class _Way(Agreement):
    """Whether the parts of a product can be computed together.

    Attributes:
        seeds: S.
        size: M.
        width: of the samples.
    """

    seeds: int = 0
    size: int = 0
    width: int = 0

    @property
    def like(self) -> tuple[int, int, int]:
        """The shape of the samples of one part."""
        return self.seeds, self.size, self.width


class PartedMLP(StackedMLP):
    """`StackedMLP` for samples `[S, P * M, ...]` in P consecutive parts of M, which share the parameters of a seed.

    The parts are multiplied together where that changes no bit against each alone, and one by one elsewhere. Libraries
    decide by the shape of a product in which order they add, so that this is tested for each shape with its first
    numbers (see `Agreement`). The gradients of parameters are those of each part, `[S * P, ...]`.

    Args:
        mlp: for the samples of one part.
        parts: P.
    """

    def __init__(self, mlp: StackedMLP, parts: int) -> None:
        super().__init__([mlp.shapes[0][0], *(columns for _, columns in mlp.shapes)], activation=mlp.activation)
        self.alone, self.parts = mlp, parts
        self._ways: dict[tuple[str, torch.Size, torch.Size], _Way] = {}

    def by_part(self, outputs: Tensor) -> Tensor:
        """View outputs `[S, P * M, N]` as `[S, P, M, N]`, narrow ones in the layout of a part alone."""
        seeds, _, width = outputs.shape
        if outputs.is_contiguous():
            return outputs.view(seeds, self.parts, -1, width)
        return outputs.mT.reshape(seeds, width, self.parts, -1).transpose(1, 2).contiguous().mT

    def _way(self, kind: str, samples: Tensor, other: Tensor) -> _Way:
        """Return how to multiply samples with weights, or with other samples."""
        key = kind, samples.shape, other.shape
        way = self._ways.get(key)
        if way is None:
            seeds, count, width = samples.shape
            way = self._ways[key] = _Way(seeds=seeds, size=count // self.parts, width=width)
        return way

    def _exact(self, way: _Way, together: Callable[[], Tensor], part: Callable[[int], Tensor], dim: int = 1) -> Tensor:
        """Return the results of all parts.

        Args:
            way: of the product.
            together: returns the results of all parts.
            part: returns that of one, `[S, ...]`.
            dim: the dimension of the results in which the parts follow each other.
        """
        if way.certain:
            return together()
        faster = None if way.differs else together()
        exact = torch.stack([part(number) for number in range(self.parts)], 1).flatten(dim, dim + 1)
        if faster is not None:
            way.compare([faster], [exact])
        return exact

    def _part(self, samples: Tensor, number: int) -> Tensor:
        """Return the samples `[S, M, ...]` of one part, laid out as alone."""
        size = samples.shape[1] // self.parts
        return samples[:, number * size : (number + 1) * size].contiguous()

    def _apart(self, samples: Tensor) -> Tensor:
        """Return the samples `[S * P, M, ...]` of all parts."""
        seeds, _, width = samples.shape
        return samples.reshape(seeds * self.parts, -1, width)

    def _rounds(self, hidden: Tensor, weight: Tensor) -> bool:
        return rounds(hidden, weight, self._way("affine", hidden, weight).like)

    def _affine(
        self, bias: Tensor, inputs: Tensor, weight: Tensor, *, scale: float = 1, out: Tensor | None = None
    ) -> Tensor:
        way = self._way("affine", inputs, weight)
        return self._exact(
            way,
            lambda: product(inputs, weight, bias=bias, scale=scale, out=out, like=way.like),
            lambda part: self.alone._affine(bias, self._part(inputs, part), weight, scale=scale),
        )

    def _outputs(self, bias: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        way = self._way("outputs", inputs, weight)

        def together() -> Tensor:
            if weight.shape[2] < NARROW and way.size >= MANY:
                return torch.baddbmm(bias.mT, weight.mT, inputs.mT).mT
            return product(inputs, weight, bias=bias, like=way.like)

        return self._exact(way, together, lambda part: self.alone._outputs(bias, self._part(inputs, part), weight))

    def _back(self, gradient: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        if weight.shape[2] == 1:  # nothing is added
            return super()._back(gradient, weight, out)
        way = self._way("back", gradient, weight)
        return self._exact(
            way,
            lambda: product(gradient, weight.mT, out=out, like=way.like),
            lambda part: self.alone._back(self._part(gradient, part), weight),
        )

    def _first_back(self, gradient: Tensor, weight: Tensor) -> Tensor:
        if weight.shape[1] >= NARROW or gradient.shape[1] < MANY * self.parts:
            return self._back(gradient, weight)
        way = self._way("first back", gradient, weight)
        return self._exact(
            way,
            lambda: torch.bmm(weight, gradient.mT).mT,
            lambda part: self.alone._first_back(self._part(gradient, part), weight),
        )

    def _outer(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        way = self._way("outer", inputs, gradient)

        def together() -> Tensor:
            left, right = self._apart(inputs), self._apart(gradient)
            if right.shape[2] < NARROW and way.size >= MANY:
                return torch.bmm(right.mT, left).mT
            return product(left.mT, right, like=(way.seeds, way.width, way.size))

        return self._exact(
            way,
            together,
            lambda part: self.alone._outer(self._part(inputs, part), self._part(gradient, part)),
            dim=0,
        )

    def _sum(self, gradient: Tensor) -> Tensor:
        return self._apart(gradient).sum(1)
