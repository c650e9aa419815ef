"""Learners with one collector and one replay buffer of whole episodes: `ReplayLearner`."""

from operant.envs import begins_anew
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
