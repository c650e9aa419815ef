"""The gambler of Sutton and Barto (2018, example 4.3)."""

from collections.abc import Iterator

from operant.envs.finite import FiniteEnv, Outcome, Transitions


class Gambler(FiniteEnv):
    """A gambler who bets on coin flips until reaching `goal` or 0.

    The state is the capital. Action `a` stakes `a + 1`, feasible up to the capital and the distance to the goal.
    Only reaching the goal pays, 1, so the value of a state is the probability of winning.
    Episodes start with any capital.
    """

    def __init__(self, heads: float = 0.4, *, goal: int = 100, render_mode: str | None = None) -> None:
        """Make the game.

        Args:
            heads: probability of winning a stake.
            goal: capital at which the gambler has won, at least 2.
            render_mode: "ansi" or None.

        Raises:
            ValueError: `heads` is not strictly between 0 and 1, or the goal is less than 2.
        """
        if not 0.0 < heads < 1.0:
            raise ValueError(f"heads must be a probability strictly between 0 and 1, got {heads}")
        if goal < 2:
            raise ValueError(f"the goal must be at least 2, got {goal}")
        model = Transitions.of(goal + 1, goal // 2, _stakes(heads, goal), range(1, goal))
        super().__init__(model, render_mode=render_mode)


def _stakes(heads: float, goal: int) -> Iterator[tuple[int, int, Outcome]]:
    for capital in range(1, goal):
        for stake in range(1, min(capital, goal - capital) + 1):
            won, lost = capital + stake, capital - stake
            yield capital, stake - 1, (heads, won, float(won == goal), won == goal)
            yield capital, stake - 1, (1.0 - heads, lost, 0.0, lost == 0)
