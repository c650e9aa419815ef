"""Test whether two computations of the same numbers round alike: `Agreement`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ENOUGH = 10_000
"""Number of equal nonzero values after which two computations count as identical."""


@dataclass
class Agreement:
    """Test whether a faster computation returns the same bits as a reference.

    Kernels differ by shape and processor, and two with different orders of summation round most results alike, so a few
    equal numbers are no proof. Results are compared until `ENOUGH` numbers were equal, and never again after a
    difference.

    Attributes:
        equal: number of equal values so far.
        differs: whether a value differed.
    """

    equal: int = 0
    differs: bool = False

    @property
    def certain(self) -> bool:
        """Whether the faster computation can be used alone."""
        return not self.differs and self.equal >= ENOUGH

    def compare(self, faster: Sequence[Tensor], other: Sequence[Tensor]) -> None:
        """Compare results of both computations."""
        self.differs = not all(map(torch.equal, faster, other))
        self.equal += sum(int(result.count_nonzero()) for result in other)
