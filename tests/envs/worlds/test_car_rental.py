import math
import warnings

import numpy as np
import pytest

from operant.envs.worlds.car_rental import CarRental


def poisson(count, mean):
    return math.exp(-mean) * mean**count / math.factorial(count)


def brute_force(cars, requests, returns, capacity):
    """Return {evening: (probability, mean of cars rented times probability)} of one day at one location."""
    table = np.zeros((capacity + 1, 2))
    for asked in range(60):
        for back in range(60):
            probability = poisson(asked, requests) * poisson(back, returns)
            rented = min(asked, cars)
            evening = min(cars - rented + back, capacity)
            table[evening] += probability, probability * rented
    return table


@pytest.mark.parametrize(("state", "action"), [((4, 2), 0), ((4, 2), 2), ((0, 5), -3), ((5, 5), 1)])
def test_a_transition_is_what_a_day_does(state, action):
    capacity = 5
    model = CarRental(capacity).transitions
    mornings = min(state[0] - action, capacity), min(state[1] + action, capacity)
    first, second = brute_force(mornings[0], 3, 3, capacity), brute_force(mornings[1], 4, 2, capacity)
    outcomes = model.outcomes(state[0] * (capacity + 1) + state[1], action + 5)
    assert len(outcomes) == (capacity + 1) ** 2
    for probability, successor, reward, terminated in outcomes:
        n, m = divmod(successor, capacity + 1)
        assert probability == pytest.approx(first[n, 0] * second[m, 0], abs=1e-12)
        rented = first[n, 1] / first[n, 0] + second[m, 1] / second[m, 0]
        assert reward == pytest.approx(10 * rented - 2 * abs(action), abs=1e-9)
        assert not terminated


def test_cars_that_are_not_there_cannot_be_moved():
    feasible = CarRental().transitions.feasible().reshape(21, 21, 11)
    assert feasible[0, 0].tolist() == [False] * 5 + [True] + [False] * 5
    assert feasible[2, 20].tolist() == [True] * 8 + [False] * 3
    assert feasible[20, 20].all()


def test_best_values_and_policy():
    model = CarRental().transitions
    from scipy.sparse import csr_array

    matrix = csr_array((model.probabilities, model.successors, model.indptr), shape=(441 * 11, 441))
    assert np.abs(matrix.sum(axis=1) - model.feasible().ravel()).max() < 1e-12
    gains = csr_array((model.probabilities * model.rewards, model.successors, model.indptr), shape=matrix.shape)
    rewards = np.where(model.feasible().ravel(), gains.sum(axis=1), -np.inf)
    values = np.zeros(441)
    for _ in range(250):
        backups = (rewards + 0.9 * (matrix @ values)).reshape(441, 11)
        values = backups.max(axis=1)
    assert values.min() == pytest.approx(421.414, abs=1e-3)
    assert values.max() == pytest.approx(636.990, abs=1e-3)
    policy = backups.argmax(axis=1).reshape(21, 21) - 5
    assert policy[20, 0] == 5, "many cars at the first location, none at the second"
    assert policy[0, 20] == -4
    assert policy[20, 20] == 0
    assert policy[0, 0] == 0
    assert (np.diff(policy, axis=0) >= 0).all()


def test_a_park_may_have_no_customers_and_no_returns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = CarRental(3, requests=(0.0, 2.0), returns=(0.0, 0.0)).transitions
    assert np.isfinite(model.rewards).all()


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"most_moves": -1}, {"requests": (3.0, -1.0)}])
def test_wrong_numbers_are_rejected(wrong):
    with pytest.raises(ValueError, match="the capacity must be positive and the others not negative"):
        CarRental(**wrong)
