"""Targets beyond the atoms of networks, which are clipped: `Clipping`."""

import logging

from torch import Tensor

from operant.worlds.latent_model import LatentShape
from operant.worlds.unrolling import Unroll

logger = logging.getLogger(__name__)


class Clipping:
    """Counter of the returns and rewards beyond the largest number that networks can represent.

    Args:
        shape: shape of the networks.
    """

    def __init__(self, shape: LatentShape) -> None:
        self.support_size, self.bound = shape.support_size, shape.bound
        self._warned = False

    def count(self, batch: Unroll) -> Tensor:
        """Return the number `[S]` of clipped returns and rewards in a batch."""
        returns, rewards = (
            ((targets.abs() > self.bound) & (batch.known[: len(targets)] > 0)).sum((0, 2))
            for targets in (batch.returns, batch.rewards)
        )
        return returns + rewards

    def reported(self, clipped: Tensor) -> Tensor:
        """Return the numbers `[S]` of an iteration, after a warning about the first ones."""
        if not self._warned and bool(clipped.any()):
            self._warned = True
            logger.warning(
                "returns or rewards are beyond %.0f, the largest number that support_size %d can represent, and are "
                "clipped: raise support_size, or scale the rewards",
                self.bound,
                self.support_size,
            )
        return clipped
