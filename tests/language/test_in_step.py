import contextlib
import threading

import pytest
import torch
from tests.runtime.teams import Rank, team

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


class Model:
    """A model whose passes need all ranks, which meet at a barrier."""

    def __init__(self, number, rank, barrier):
        self.number, self.rank, self.barrier, self.joined = number, rank, barrier, 0

    @contextlib.contextmanager
    def announced(self):
        yield

    def run(self):
        assert self.rank.busy(self.number) == self.number
        self.barrier.wait()

    def attend(self):
        self.joined += 1
        self.barrier.wait()


class Sharing(Rank):
    def busy(self, model=-1):
        return max(self._exchange(model))


@pytest.mark.parametrize("passes", [(0, 0, 0), (3, 0, 1), (0, 2, 2)])
def test_a_process_joins_the_passes_of_others_through_one_of_the_models(passes):
    board, meeting, barrier = [None] * 3, threading.Barrier(3, timeout=60), threading.Barrier(3, timeout=60)
    ranks = [Sharing(rank, 3, board, meeting) for rank in range(3)]

    def joined(rank):
        rank.models = [Model(number, rank, barrier) for number in range(3)]
        with InStep(3, rank).uneven():
            for _ in range(passes[rank.rank]):
                rank.models[1].run()
        return [model.joined for model in rank.models]

    assert team(3, joined, ranks) == [[0, max(passes) - own, 0] for own in passes]


def test_a_plain_tensor_is_not_sharded():
    assert not is_sharded(torch.zeros(1))
