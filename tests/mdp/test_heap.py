import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.mdp.heap import Heap, pop, push

CELLS = 12


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, CELLS - 1), st.integers(0, 5))), max_size=60))
def test_it_pops_the_largest_priority_of_a_dictionary(operations):
    heap, twin = Heap.new(2, CELLS), {}
    for operation in operations:
        if operation is None:
            if twin:
                cell = pop(heap, 1)
                assert twin[cell] == max(twin.values())
                del twin[cell]
        else:
            cell, priority = operation
            push(heap, 1, cell, float(priority))
            twin[cell] = max(priority, twin.get(cell, -1))
        assert heap.queued.tolist() == [0, len(twin)]
        queued = heap.cells[1, : len(twin)]
        assert set(queued) == set(twin)
        np.testing.assert_array_equal(heap.place[1, queued], np.arange(len(twin)))
        assert (heap.place[1] >= 0).sum() == len(twin)
