"""Experiments in environments: what evaluations of a task that changes over time get."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from operant.runtime.experiment import InEnvironments
from operant.runtime.settings import Settings


@dataclass(frozen=True)
class Two(InEnvironments):
    """Experiment with two environments per seed."""

    @property
    def environments(self):
        return 2


@pytest.mark.parametrize(("kind", "frozen_at"), [(InEnvironments, 300), (Two, 150)])
def test_a_changing_task_stays_as_it_is(kind, frozen_at):
    made = kind(SimpleNamespace(consumed=300), Settings("ppo", "operant/BlockingMaze-v0"))
    assert made.evaluation_kwargs == {"frozen_at": frozen_at}
    assert made.evaluation_kwargs_at(100) == {"frozen_at": 100 * frozen_at // 300}


def test_other_tasks_keep_their_arguments():
    settings = Settings("ppo", "FrozenLake-v1", env_kwargs={"is_slippery": False})
    assert InEnvironments(SimpleNamespace(consumed=300), settings).evaluation_kwargs == {"is_slippery": False}
