import pytest
import torch
from tests.runtime.teams import team

from operant.language.in_step import InStep, is_sharded


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8])
def test_every_item_counts_once_and_all_processes_take_as_many_turns(count):
    found = team(3, lambda rank: InStep(3, rank).turns(list(range(count))))
    assert [item for turns in found for item, counts in turns if counts] == list(range(count))
    assert len({len(turns) for turns in found}) == 1
    assert all(item in range(count) for turns in found for item, _ in turns)


def test_the_results_of_all_processes_are_in_the_order_of_the_items():
    found = team(2, lambda rank: InStep(2, rank).map(lambda item: item * item, [1, 2, 3, 4, 5]))
    assert found == [[1, 4, 9, 16, 25]] * 2


def test_a_plain_tensor_is_not_sharded():
    assert not is_sharded(torch.zeros(1))
