from graphlib import TopologicalSorter

from operant import catalog
from operant.web.lineage import BUILDS_ON
from operant.web.taxonomy import KNOWN

NAMES = {f"train:{entry.name}" for entry in catalog.ALGORITHMS} | {f"solve:{name}" for name, *_ in KNOWN}


def test_all_of_it_is_in_the_catalog():
    assert set(BUILDS_ON) <= NAMES
    assert {base for bases in BUILDS_ON.values() for base in bases} <= NAMES


def test_nothing_builds_on_itself():
    assert set(TopologicalSorter(BUILDS_ON).static_order()) <= NAMES  # raises CycleError for a cycle


def test_algorithms_without_relations_are_starting_points():
    known = set(BUILDS_ON) | {base for bases in BUILDS_ON.values() for base in bases}
    assert NAMES - known == {
        *("train:random", "train:epsilon-greedy", "train:thompson", "train:pets", "solve:linear-programming"),
    }
