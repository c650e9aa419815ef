"""CMA-ES (Hansen & Ostermeier 2001) by the package `cma`, with a stream of operant: `strategy_of`."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Strategy(Protocol):
    """The used parts of `cma.CMAEvolutionStrategy`, which minimizes a cost.

    Attributes:
        mean: `[P]`, mean of the distribution.
        sigma: step size.
    """

    mean: NDArray[np.float64]
    sigma: float

    def ask(self) -> list[NDArray[np.float64]]:
        """Return the candidates `[P]` of a generation."""
        ...

    def tell(self, solutions: Sequence[NDArray[np.float64]], function_values: Sequence[float], /) -> None:
        """Update the distribution by the costs of the candidates."""
        ...

    def stop(self) -> dict[str, Any]:
        """Return the reasons to stop; empty if there are none."""
        ...


def require_cma(who: str) -> None:
    """Check that the package `cma` is installed.

    Args:
        who: subject and verb of the message, such as `"world models need"`.

    Raises:
        ModuleNotFoundError: if it is not.
    """
    if find_spec("cma") is None:
        raise ModuleNotFoundError(f'{who} the package cma: pip install "operant[worlds]"')


def strategy_of(start: NDArray[np.float64], sigma: float, generator: np.random.Generator, **options: float) -> Strategy:
    """Return a strategy, silent and without files, all of whose random numbers are the generator's.

    Args:
        start: `[P]`, initial mean.
        sigma: initial standard deviation.
        generator: source of the random numbers.
        **options: options of the package, such as `popsize` or `maxiter`.
    """
    cma: Any = import_module("cma")  # importing it takes a second, and few algorithms need it
    always: dict[str, Any] = {
        "randn": partial(_normal, generator),
        "seed": np.nan,  # no seed for the global generator
        "verbose": -9,
        "verb_log": 0,
    }
    return cma.CMAEvolutionStrategy(start, sigma, {**always, **options})


def _normal(generator: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Draw numbers in place of `numpy.random.randn`."""
    return generator.standard_normal(shape)
