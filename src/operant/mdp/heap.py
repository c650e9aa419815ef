"""A priority queue of cells, or states, per seed for use in kernels: a binary heap with the positions of the cells."""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from operant.mdp.bellman_kernels import compiled

__all__ = ["Heap", "pop", "push"]


class Heap(NamedTuple):
    """The queues of `S` seeds.

    Attributes:
        cells: `[S, n]`, the heap; no cell has a higher priority than its parent, `(k - 1) // 2`.
        priority: `[S, n]`, priority of each cell, which only `push` may change while it is queued.
        place: `[S, n]`, position of each cell in the heap; -1 if not queued.
        queued: `[S]`, number of queued cells.
    """

    cells: NDArray[np.int64]
    priority: NDArray[np.float64]
    place: NDArray[np.int64]
    queued: NDArray[np.int64]

    @classmethod
    def new(cls, seeds: int, cells: int) -> Self:
        """Return empty queues."""
        shape = (seeds, cells)
        return cls(np.zeros(shape, np.int64), np.zeros(shape), np.full(shape, -1, np.int64), np.zeros(seeds, np.int64))


@compiled
def _put(heap: Heap, i: int, position: int, cell: int) -> None:
    heap.cells[i, position] = cell
    heap.place[i, cell] = position


@compiled
def _rise(heap: Heap, i: int, position: int) -> None:
    cell = heap.cells[i, position]
    while position > 0:
        parent = (position - 1) // 2
        if heap.priority[i, heap.cells[i, parent]] >= heap.priority[i, cell]:
            break
        _put(heap, i, position, heap.cells[i, parent])
        position = parent
    _put(heap, i, position, cell)


@compiled
def _sink(heap: Heap, i: int, position: int) -> None:
    cell, count = heap.cells[i, position], heap.queued[i]
    while 2 * position + 1 < count:
        child = 2 * position + 1
        if child + 1 < count and (heap.priority[i, heap.cells[i, child + 1]] > heap.priority[i, heap.cells[i, child]]):
            child += 1
        if heap.priority[i, heap.cells[i, child]] <= heap.priority[i, cell]:
            break
        _put(heap, i, position, heap.cells[i, child])
        position = child
    _put(heap, i, position, cell)


@compiled
def push(heap: Heap, i: int, cell: int, priority: float) -> None:
    """Queue a cell, or raise its priority; a higher existing priority is kept."""
    position = heap.place[i, cell]
    if position < 0:
        position = heap.queued[i]
        heap.queued[i] += 1
        heap.priority[i, cell] = priority
        _put(heap, i, position, cell)
        _rise(heap, i, position)
    elif priority > heap.priority[i, cell]:
        heap.priority[i, cell] = priority
        _rise(heap, i, position)


@compiled
def pop(heap: Heap, i: int) -> int:
    """Remove and return the cell with the highest priority; the queue must not be empty."""
    top = heap.cells[i, 0]
    heap.place[i, top] = -1
    heap.queued[i] -= 1
    if heap.queued[i] > 0:
        _put(heap, i, 0, heap.cells[i, heap.queued[i]])
        _sink(heap, i, 0)
    return top
