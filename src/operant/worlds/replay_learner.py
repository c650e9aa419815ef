"""Learners with one collector and one replay buffer of whole episodes: `ReplayLearner`; windows of their steps."""

import torch

from operant.envs import begins_anew
from operant.runtime.budget import iterations
from operant.runtime.priorities import Priorities
from operant.runtime.replay import Replay
from operant.runtime.rollouts import Collector
from operant.state import Resumable, State


class ReplayLearner(Resumable):
    """Base class of learners that read sequences of steps from a replay buffer.

    Attributes:
        collector: collector of the environments.
        replay: replay buffer of their steps.
    """

    collector: Collector
    replay: Replay

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly, or with new episodes (`operant.envs.begins_anew`); an invalid one changes nothing.

        No sequence then continues from the last stored steps to the first new ones.
        """
        super().load_state_dict(state)
        if begins_anew(self.collector.env):
            self.replay.cut()
            self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the episodes in progress. Default: the learner remembers nothing of them."""


def insert_windows(priorities: Priorities, replay: Replay, *, steps: int, window: int) -> None:
    """Assign the maximum priority to the steps that can now start a window, and 0 to those that cannot yet.

    Args:
        priorities: priorities of the steps of the replay buffer.
        replay: replay buffer, to which `steps` steps per environment have just been added.
        steps: number of new steps per environment.
        window: number of consecutive steps of a sample.
    """
    newest = replay.newest(steps)
    priorities.insert(newest, torch.zeros_like(replay.valid(newest)))
    ready = replay.newest(steps + window - 1)
    ready = ready[: max(len(ready) - (window - 1) * replay.rows, 0)]
    if len(ready):
        priorities.insert(ready, replay.valid(ready))


def require_sequence(budget: int, length: int, fields: str, *, rows: int, steps: int) -> None:
    """Check that every environment takes the steps of a training sequence within a budget per seed.

    Args:
        budget: environment steps per seed.
        length: steps of a sequence.
        fields: fields that define this length, for the message.
        rows: environments per seed.
        steps: steps per environment and iteration.

    Raises:
        ValueError: the budget is too small.
    """
    smallest = (iterations(length, steps) - 1) * rows * steps + 1
    if budget < smallest:
        raise ValueError(
            f"budget must be at least {smallest} steps, got {budget}: a training sequence has {length} steps of one of "
            f"num_envs = {rows} environments, which take num_steps = {steps} per iteration: raise the budget, or lower "
            f"one of num_envs, {fields}"
        )
