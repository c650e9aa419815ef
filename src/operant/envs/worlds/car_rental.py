"""Jack's car rental of Sutton and Barto (2018, example 4.2)."""

import numpy as np
from numpy.typing import NDArray

from operant.envs.finite import FiniteEnv, Transitions, uniform

Floats = NDArray[np.float64]


class CarRental(FiniteEnv):
    """Two car parks, between which cars are moved at night.

    With `n` and `m` cars in the evening the state is `n * (capacity + 1) + m`. Action `a` moves `a - most_moves` cars
    from the first park to the second, for 2 each; it is feasible if the park has them. During the day, customers pay 10
    for a car, if there is one, and others return cars, which can be rented out the next day. Requests and returns are
    Poisson with means 3 and 3 in the first park and 4 and 2 in the second. Cars beyond the capacity are given away.
    Episodes do not end; the book discounts by 0.9.

    The distributions are exact: all requests beyond the available cars are one outcome, and so are all returns beyond
    the capacity. The reward of a transition is its mean given the next evening's cars.
    """

    def __init__(
        self,
        capacity: int = 20,
        *,
        most_moves: int = 5,
        requests: tuple[float, float] = (3.0, 4.0),
        returns: tuple[float, float] = (3.0, 2.0),
        price: float = 10.0,
        move_cost: float = 2.0,
        render_mode: str | None = None,
    ) -> None:
        """Make the business.

        Args:
            capacity: number of cars that each park holds, at least 1.
            most_moves: maximum number of cars moved in a night.
            requests: mean number of customers a day in the two parks.
            returns: mean number of returned cars a day.
            price: income from renting a car for a day.
            move_cost: cost of moving a car.
            render_mode: "ansi" or None.

        Raises:
            ValueError: the capacity is not positive, or another number is negative.
        """
        if capacity < 1 or min(most_moves, *requests, *returns) < 0:
            raise ValueError(
                f"the capacity must be positive and the others not negative, got capacity={capacity}, "
                f"most_moves={most_moves}, requests={requests} and returns={returns}"
            )
        days = [_day(capacity, request, back) for request, back in zip(requests, returns, strict=True)]
        model = _nights(days, price, move_cost, most_moves)
        super().__init__(model, render_mode=render_mode)


def _day(capacity: int, requests: float, returns: float) -> tuple[Floats, Floats]:
    """Return the distribution of a day in one park.

    Returns:
        The probability `[n, m]` of `m` cars in the evening after `n` in the morning, and the mean number of cars
        rented out in that event.
    """
    evening, rented = np.zeros((2, capacity + 1, capacity + 1))
    for cars in range(capacity + 1):
        for rent, chance in enumerate(_at_most(cars, requests)):
            left = cars - rent
            arrivals = chance * _at_most(capacity - left, returns)
            evening[cars, left:] += arrivals
            rented[cars, left:] += rent * arrivals
    return evening, np.divide(rented, evening, out=np.zeros_like(rented), where=evening > 0.0)


def _at_most(most: int, mean: float) -> Floats:
    """Return the distribution `[most + 1]` of `min(Poisson(mean), most)`."""
    chances = np.exp(-mean) * np.cumprod(np.concatenate([[1.0], mean / np.arange(1, most + 1)]))
    chances[most] = max(0.0, 1.0 - chances[:most].sum())
    return chances


def _nights(days: list[tuple[Floats, Floats]], price: float, move_cost: float, most_moves: int) -> Transitions:
    """Combine the two parks."""
    (first, first_rented), (second, second_rented) = days
    side = len(first)
    states, actions = side * side, 2 * most_moves + 1
    n, m, action = (part.ravel() for part in np.indices((side, side, actions)))
    moves = action - most_moves
    feasible = (moves <= n) & (-moves <= m)
    n, m, moves = n[feasible], m[feasible], moves[feasible]
    mornings = ((n - moves).clip(max=side - 1), (m + moves).clip(max=side - 1))
    probabilities = first[mornings[0], :, None] * second[mornings[1], None, :]
    rented = first_rented[mornings[0], :, None] + second_rented[mornings[1], None, :]
    rewards = price * rented - move_cost * np.abs(moves)[:, None, None]
    keep = probabilities > 0.0
    counts = np.zeros(states * actions, np.int64)
    counts[feasible] = keep.sum(axis=(1, 2))
    return Transitions(
        states=states,
        actions=actions,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        successors=np.broadcast_to(np.arange(states).reshape(side, side), keep.shape)[keep],
        probabilities=probabilities[keep],
        rewards=rewards[keep],
        terminates=np.zeros(int(keep.sum()), np.bool_),
        start=uniform(states, range(states)),
    )
