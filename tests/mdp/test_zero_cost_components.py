import numpy as np

from operant.mdp import MDP
from operant.mdp.zero_cost_components import free_groups


def test_states_that_lead_to_each_other_at_no_cost_are_one_group():
    # 0 and 1 go back and forth for free; leaving to 2 costs; 3 is reached from 2, and terminal.
    rows = [[0, 0, 1, 1.0, 0.0], [1, 0, 0, 1.0, 0.0], [1, 1, 2, 1.0, -1.0], [2, 0, 3, 1.0, 0.0]]
    groups = free_groups(MDP.from_table(rows))
    assert groups.labels[0] == groups.labels[1]
    assert len({groups.labels[0], groups.labels[2], groups.labels[3]}) == 3
    assert groups.count == 3
    inner = groups.inner.reshape(4, 2)
    assert inner[0, 0]
    assert inner[1, 0]
    assert not inner[1, 1]


def test_a_free_move_that_may_leave_the_group_is_not_inside():
    rows = [[0, 0, 1, 1.0, 0.0], [1, 0, 0, 0.5, 0.0], [1, 0, 2, 0.5, 0.0]]
    groups = free_groups(MDP.from_table(rows))
    assert len(set(groups.labels)) == 3


def test_a_move_that_may_terminate_is_not_inside():
    rows = [[0, 0, 0, 0.5, 0.0, 0], [0, 0, 1, 0.5, 0.0, 1]]
    assert not free_groups(MDP.from_table(rows)).inner.any()


def test_the_greatest_value_of_each_group():
    groups = free_groups(MDP.from_table([[0, 0, 1, 1.0, 0.0], [1, 0, 0, 1.0, 0.0], [1, 1, 2, 1.0, 3.0]]))
    values = groups.maximum(np.array([1.0, 4.0, 0.0]))
    assert values[groups.labels[0]] == 4.0
    assert values[groups.labels[2]] == 0.0
