"""A priority queue of table cells for each seed, inside kernels: a binary heap with positions of the cells."""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from operant.tabular.numba_config import compiled


class Heap(NamedTuple):
    """The queues of `S` seeds.

    Attributes:
        cells: `[S, n]`, the heap; no priority is above that of its parent, `(k - 1) // 2`.
        priority: `[S, n]`, by cell.
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
def _put(heap: Heap, i: int, place: int, cell: int) -> None:
    heap.cells[i, place] = cell
    heap.place[i, cell] = place


@compiled
def _rise(heap: Heap, i: int, place: int) -> None:
    cell = heap.cells[i, place]
    while place > 0:
        parent = (place - 1) // 2
        if heap.priority[i, heap.cells[i, parent]] >= heap.priority[i, cell]:
            break
        _put(heap, i, place, heap.cells[i, parent])
        place = parent
    _put(heap, i, place, cell)


@compiled
def _sink(heap: Heap, i: int, place: int) -> None:
    cell, count = heap.cells[i, place], heap.queued[i]
    while 2 * place + 1 < count:
        child = 2 * place + 1
        if child + 1 < count and (heap.priority[i, heap.cells[i, child + 1]] > heap.priority[i, heap.cells[i, child]]):
            child += 1
        if heap.priority[i, heap.cells[i, child]] <= heap.priority[i, cell]:
            break
        _put(heap, i, place, heap.cells[i, child])
        place = child
    _put(heap, i, place, cell)


@compiled
def push(heap: Heap, i: int, cell: int, priority: float) -> None:
    """Queue a cell, or raise its priority; a higher existing priority stays."""
    place = heap.place[i, cell]
    if place < 0:
        place = heap.queued[i]
        heap.queued[i] += 1
        heap.priority[i, cell] = priority
        _put(heap, i, place, cell)
        _rise(heap, i, place)
    elif priority > heap.priority[i, cell]:
        heap.priority[i, cell] = priority
        _rise(heap, i, place)


@compiled
def pop(heap: Heap, i: int) -> int:
    """Remove and return the cell of highest priority; the queue must not be empty."""
    top = heap.cells[i, 0]
    heap.place[i, top] = -1
    heap.queued[i] -= 1
    if heap.queued[i] > 0:
        _put(heap, i, 0, heap.cells[i, heap.queued[i]])
        _sink(heap, i, 0)
    return top
