from contextlib import nullcontext

import pytest

from operant import api, catalog
from operant.build import assemble, resolve
from operant.mdp.solving import METHODS
from operant.runtime.settings import Settings
from operant.web.taxonomy import taxonomy


def leaves(node):
    return [node] if "command" in node else [leaf for child in node["children"] for leaf in leaves(child)]


def test_every_algorithm_stands_in_it_once():
    names = [leaf["name"] for leaf in leaves(taxonomy()) if leaf["command"].startswith("operant train")]
    assert sorted(names) == sorted(entry.name for entry in catalog.ALGORITHMS)


def test_every_solver_stands_in_it():
    names = {leaf["name"] for leaf in leaves(taxonomy()) if leaf["command"].startswith("operant solve")}
    assert names == {*METHODS, "gauss-seidel"}


@pytest.mark.parametrize("leaf", leaves(taxonomy()), ids=lambda leaf: leaf["command"])
def test_a_command_names_its_algorithm(leaf):
    assert leaf["name"] in leaf["command"].split()
    assert leaf["idea"]


TRAINING = [leaf["command"] for leaf in leaves(taxonomy()) if leaf["command"].startswith("operant train")]


@pytest.mark.parametrize("command", TRAINING)
def test_a_command_names_a_task_of_its_algorithm(command):
    _, _, name, task, *options = command.split()
    entry = catalog.find(name)
    settings, config = Settings(name, task, budget=entry.budget_for(task), compile="off"), api.configure(name, task)
    missing = pytest.raises(ValueError, match=f"{name} needs .*: add {options[0]}") if options else nullcontext()
    with missing:
        assemble(entry, settings, config, resolve(entry, settings, config)).close()
