"""Several ranks in threads of one process, for tests of shards: `team`."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from operant.state import clone


class Rank:
    """Member of a team; members exchange data by a shared list.

    Those of `ranks` compute in turn: the library that multiplies matrices is a setting of the process, so that threads
    that compute at the same time may change the last bits of each other.
    """

    sharded = False

    def __init__(self, rank, size, board, barrier, turn=None):
        self.rank, self.size, self.board, self.barrier = rank, size, board, barrier
        self.turn = turn or threading.Semaphore()

    def _exchange(self, own):
        self.board[self.rank] = own
        self.turn.release()
        try:
            self.barrier.wait()
            every = list(self.board)
            self.barrier.wait()
        finally:
            self.turn.acquire()
        return every

    def gather(self, states, count):
        return [clone(state) for states in self._exchange(states) for state in states]

    def gather_tensors(self, tensors, count):
        return torch.cat(self._exchange(tensors))


def ranks(size):
    """Return the members of a team."""
    board, barrier = [None] * size, threading.Barrier(size, timeout=60)
    turn = threading.Semaphore()
    return [Rank(rank, size, board, barrier, turn) for rank in range(size)]


def team(size, work, members=None):
    """Return the results of `work(rank)` for each of `size` ranks."""

    def member(rank):
        rank.turn.acquire()
        try:
            return work(rank)
        except BaseException:
            rank.barrier.abort()
            raise
        finally:
            rank.turn.release()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, members or ranks(size)))
