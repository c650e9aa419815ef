import numpy as np
import pytest

from operant.tabular.acting import Choices
from operant.tabular.configs import BaseConfig
from operant.tabular.count_model import Counts, expected_backup, observe


def test_frequencies_become_expectations():
    model = Counts.new(1, 3, 2)
    for reward, outcome in ((1.0, 2), (0.0, 2), (5.0, 3), (2.0, 0)):  # 3 is terminal
        while model.full[0]:
            model = model.with_room()
        observe(model, 0, (1, 0), reward, outcome)
    q = np.array([[[4.0, 1.0], [0.0, 0.0], [-1.0, 8.0]]])
    rule = BaseConfig(gamma=0.5).rule(np.ones((3, 2), bool))
    expected = (8.0 + 0.5 * (2 * 8.0 + 1 * 4.0)) / 4
    assert expected_backup(rule, model, q, 0, (1, 0)) == pytest.approx(expected)
    masked = rule._replace(choices=Choices.of(np.array([[True, True], [True, True], [True, False]])))
    assert expected_backup(masked, model, q, 0, (1, 0)) == pytest.approx((8.0 + 0.5 * (2 * -1.0 + 4.0)) / 4)


def test_slots_are_named_in_the_order_of_their_first_time():
    model = Counts.new(2, 4, 1, slots=4)
    assert [observe(model, 1, (2, 0), 0.0, outcome) for outcome in (3, 1, 3)] == [(0, True), (1, True), (0, False)]
    assert model.counts[1, 2, 0].tolist() == [2, 1, 0, 0]
    assert model.tries[0].sum() == 0


def test_room_is_made_when_the_last_slot_is_taken():
    model = Counts.new(2, 4, 1)
    observe(model, 1, (0, 0), 0.0, 1)
    assert model.with_room() is model
    observe(model, 1, (0, 0), 0.0, 2)
    assert model.full.tolist() == [False, True]
    larger = model.with_room()
    assert larger.successors.shape[3] == 4
    assert not larger.full.any()
    assert larger.successors[1, 0, 0].tolist() == [1, 2, -1, -1]
    assert larger.counts[1, 0, 0].tolist() == [1, 1, 0, 0]
