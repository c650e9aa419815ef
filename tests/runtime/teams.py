"""Several ranks in threads of one process, for tests of shards: `team`."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from operant.state import clone


class Rank:
    """Member of a team; members exchange data by a shared list."""

    sharded = False

    def __init__(self, rank, size, board, barrier):
        self.rank, self.size, self.board, self.barrier = rank, size, board, barrier

    def _exchange(self, own):
        self.board[self.rank] = own
        self.barrier.wait()
        every = list(self.board)
        self.barrier.wait()
        return every

    def gather(self, states, count):
        return [clone(state) for states in self._exchange(states) for state in states]

    def gather_tensors(self, tensors, count):
        return torch.cat(self._exchange(tensors))


def ranks(size):
    """Return the members of a team."""
    board, barrier = [None] * size, threading.Barrier(size, timeout=60)
    return [Rank(rank, size, board, barrier) for rank in range(size)]


def team(size, work, members=None):
    """Return the results of `work(rank)` for each of `size` ranks."""

    def member(rank):
        try:
            return work(rank)
        except BaseException:
            rank.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, members or ranks(size)))
