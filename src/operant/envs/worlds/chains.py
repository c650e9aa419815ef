"""Chains and rooms: random walks, RiverSwim, SixArms, DeepSea, key moves, the short corridor, maximization bias."""

from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from operant.envs.finite import FiniteEnv, Outcome, Transitions

_Rows = Iterator[tuple[int, int, Outcome]]


class RandomWalk(FiniteEnv):
    """A walk with one action, which steps left or right with equal probability (Sutton and Barto 2018, example 6.2).

    States 1 to `states` are the walk, which starts in the middle; 0 and `states + 1` are its ends. The value of state
    `i`, undiscounted, is `left + (right - left) * i / (states + 1)`.
    """

    def __init__(
        self, states: int = 5, *, left: float = 0.0, right: float = 1.0, render_mode: str | None = None
    ) -> None:
        """Make the walk.

        Args:
            states: an odd number of them, without the ends.
            left: reward of reaching the left end.
            right: reward of reaching the right end.
            render_mode: "ansi" or None.

        Raises:
            ValueError: the number of states is even or not positive.
        """
        if states < 1 or states % 2 == 0:
            raise ValueError(f"states must be an odd number, so that a walk starts in the middle, got {states}")
        ends = {0: left, states + 1: right}
        rows = (
            (state, 0, (0.5, successor, ends.get(successor, 0.0), successor in ends))
            for state in range(1, states + 1)
            for successor in (state - 1, state + 1)
        )
        super().__init__(Transitions.of(states + 2, 1, rows, [states // 2 + 1]), render_mode=render_mode)


class RiverSwim(FiniteEnv):
    """Six states of a river (Strehl and Littman 2008, "An analysis of model-based interval estimation for MDPs").

    Action 0 swims left, with the current, and always succeeds; in the leftmost state it pays 5. Action 1 swims right:
    it succeeds with probability 0.3, stays with 0.6 and is driven back with 0.1; at the left end it stays with 0.7, at
    the right end it stays with 0.3 and is driven back with 0.7. Staying at the right end pays 10000; swimming right
    pays nothing else. Episodes start in state 1 or 2, counted from 0 at the left, and do not end. The best gain is
    668.8073 per step.
    """

    def __init__(
        self, states: int = 6, *, small: float = 5.0, large: float = 10_000.0, render_mode: str | None = None
    ) -> None:
        """Make the river.

        Args:
            states: at least 2.
            small: reward of swimming left at the left end.
            large: reward of staying at the right end while swimming right.
            render_mode: "ansi" or None.

        Raises:
            ValueError: there are fewer than two states.
        """
        if states < 2:
            raise ValueError(f"states must be at least 2, got {states}")
        rows = _river(states, small, large)
        starts = [1, min(2, states - 1)]
        super().__init__(Transitions.of(states, 2, rows, starts), render_mode=render_mode)


def _river(states: int, small: float, large: float) -> _Rows:
    last = states - 1
    for state in range(states):
        yield state, 0, (1.0, max(state - 1, 0), small if state == 0 else 0.0, False)
        if state == 0:
            currents = {0: 0.7, 1: 0.3}
        elif state == last:
            currents = {last - 1: 0.7, last: 0.3}
        else:
            currents = {state - 1: 0.1, state: 0.6, state + 1: 0.3}
        for successor, probability in currents.items():
            paid = large if state == successor == last else 0.0
            yield state, 1, (probability, successor, paid, False)


class SixArms(FiniteEnv):
    """Six arms, the rarest of which opens the richest room (Strehl and Littman 2008).

    Pulling arm `a` in state 0 opens room `a + 1` with the probability `OPENS[a]`, and pays nothing. In room `a + 1`
    action `a` pays `PAYS[a]` and stays; the others lead back to state 0 without pay. Room 1 is the trap: there every
    action but 4 pays and stays, and only 4 leads back. Episodes start in state 0 and do not end. The best gain is 6000
    per step, after a room that takes 100 pulls to open on average.
    """

    OPENS = (1.0, 0.15, 0.1, 0.05, 0.03, 0.01)
    PAYS = (50.0, 133.0, 300.0, 800.0, 1660.0, 6000.0)

    def __init__(self, *, render_mode: str | None = None) -> None:
        """Make the rooms; `render_mode` is "ansi" or None."""
        arms = len(self.OPENS)
        super().__init__(Transitions.of(arms + 1, arms, _rooms(self.OPENS, self.PAYS), [0]), render_mode=render_mode)


def _rooms(opens: tuple[float, ...], pays: tuple[float, ...]) -> _Rows:
    for arm, probability in enumerate(opens):
        yield 0, arm, (probability, arm + 1, 0.0, False)
        if probability < 1.0:
            yield 0, arm, (1.0 - probability, 0, 0.0, False)
    for room, pay in enumerate(pays, 1):
        for action in range(len(opens)):
            stays = action != 4 if room == 1 else action == room - 1
            yield room, action, (1.0, room if stays else 0, pay if stays else 0.0, False)


class DeepSea(FiniteEnv):
    """A dive through `size` rows, of which one sequence of actions in 2^size finds the treasure (Osband et al. 2019).

    The diver starts in the top left corner and sinks one row a step, one column to the left or right. Going right costs
    `0.01 / size`; going right in the bottom right corner pays 1. The best return is 0.99. Deterministic, as in bsuite
    (arXiv 1908.03568, appendix A.6). Cell `(r, c)` is state `r * size + c`; the last state is the sea floor.
    """

    def __init__(self, size: int = 10, *, mapping_seed: int | None = None, render_mode: str | None = None) -> None:
        """Make the sea.

        Args:
            size: rows and columns, at least 1.
            mapping_seed: of the random action that goes right in each cell; None: action 1.
            render_mode: "ansi" or None.

        Raises:
            ValueError: the size is not positive, or the seed is negative.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, one row of the sea, got {size}")
        if mapping_seed is not None and mapping_seed < 0:
            raise ValueError(f"mapping_seed must not be negative, got {mapping_seed}")
        rights = np.ones((size, size), np.int64)
        if mapping_seed is not None:
            rights = np.random.default_rng(mapping_seed).integers(0, 2, (size, size))
        model = Transitions.of(size * size + 1, 2, _sea(size, rights), [0])
        super().__init__(model, render_mode=render_mode)


def _sea(size: int, rights: NDArray[np.int64]) -> _Rows:
    last = size - 1
    for row in range(size):
        for column in range(row + 1):
            for action in (0, 1):
                right = action == rights[row, column]
                reward = float(column == last) - 0.01 / size if right else 0.0
                beside = min(column + 1, last) if right else max(column - 1, 0)
                successor = size * size if row == last else (row + 1) * size + beside
                yield row * size + column, action, (1.0, successor, reward, row == last)


class KeyMoves(FiniteEnv):
    """A game whose result comes after the last move, and depends only on a few key moves.

    Each of `moves` moves is 0 or 1. Move 1 at a key move raises the probability of winning by what that move is worth;
    all other moves change nothing. Winning pays 1 after the last move, and nothing else pays. Moves count from 1. State
    `(t, w)` is `(t - 1) * 2^K + w`, where t is the next move, and bit k of w says whether the k-th key move was 1. So
    the advantage of a key move is known: under a policy that plays 1 with probability p there, `worth (1 - p)` for move
    1 and `-worth p` for move 0; that of all other moves is 0.
    """

    def __init__(
        self,
        moves: int = 40,
        *,
        keys: Sequence[int] = (12, 37),
        worth: Sequence[float] = (0.3, 0.5),
        luck: float = 0.1,
        render_mode: str | None = None,
    ) -> None:
        """Make the game.

        Args:
            moves: of an episode.
            keys: numbers of the K moves that count, rising, from 1 to `moves`.
            worth: what each of them adds to the probability of winning.
            luck: the probability of winning without any of them.
            render_mode: "ansi" or None.

        Raises:
            ValueError: there is no move, a key move is not one of the moves, or probabilities are not within [0, 1].
        """
        if moves < 1:
            raise ValueError(f"moves must be at least 1, got {moves}")
        if list(keys) != sorted(set(keys)) or not all(1 <= key <= moves for key in keys):
            raise ValueError(f"keys must be rising numbers of moves from 1 to {moves}, got {list(keys)}")
        if len(worth) != len(keys) or min([luck, *worth]) < 0 or luck + sum(worth) > 1:
            raise ValueError(
                f"worth needs one number for each of {len(keys)} key moves, none negative, and with luck at most 1 "
                f"together, got {list(worth)} and {luck}"
            )
        rows = _game(moves, tuple(keys), tuple(worth), luck)
        super().__init__(Transitions.of(moves * 2 ** len(keys) + 1, 2, rows, [0]), render_mode=render_mode)


def _game(moves: int, keys: tuple[int, ...], worth: tuple[float, ...], luck: float) -> _Rows:
    words = 2 ** len(keys)
    for move in range(1, moves + 1):
        for word in range(words):
            state = (move - 1) * words + word
            for action in (0, 1):
                after = word | action << keys.index(move) if move in keys else word
                if move < moves:
                    yield state, action, (1.0, state + words - word + after, 0.0, False)
                    continue
                winning = luck + sum(value for bit, value in enumerate(worth) if after >> bit & 1)
                for probability, paid in ((winning, 1.0), (1.0 - winning, 0.0)):
                    if probability > 0:
                        yield state, action, (probability, moves * words, paid, True)


class ShortCorridor(FiniteEnv):
    """Three states that look the same, in the second of which left is right (Sutton and Barto 2018, example 13.1).

    Action 0 goes left and 1 goes right, each step pays -1, and the fourth state ends the episode. Going right with
    probability `2 - sqrt(2)` is best, and its return is -11.6569.
    """

    def __init__(self, *, aliased: bool = True, render_mode: str | None = None) -> None:
        """Make the corridor.

        Args:
            aliased: whether every observation is 0; otherwise it is the state.
            render_mode: "ansi" or None.
        """
        ways = {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 0, (2, 0): 1, (2, 1): 3}
        rows = ((state, action, (1.0, to, -1.0, to == 3)) for (state, action), to in ways.items())
        super().__init__(Transitions.of(4, 2, rows, [0]), render_mode=render_mode)
        self.aliased = aliased
        if aliased:
            self.observation_space = spaces.Discrete(1)

    def _observation(self) -> int:
        return 0 if self.aliased else super()._observation()


class MaximizationBias(FiniteEnv):
    """Two states in which noise misleads greedy learners (Sutton and Barto 2018, example 6.7).

    From state 0 action 0 goes right, which ends the episode with reward 0, and action 1 goes left, to state 1. All
    actions there end the episode with a reward drawn from a normal distribution with mean -0.1 and variance 1, so
    left is worse by 0.1. The distribution is represented by equally likely rewards with that mean and variance, each
    with its own terminal state, so that the model is finite and exact.
    """

    def __init__(
        self, actions: int = 10, *, mean: float = -0.1, outcomes: int = 200, render_mode: str | None = None
    ) -> None:
        """Make the chain.

        Args:
            actions: feasible in state 1; at least 2. In state 0 the first two are.
            mean: of the reward after going left.
            outcomes: number of values that represent the normal distribution; at least 2.
            render_mode: "ansi" or None.

        Raises:
            ValueError: there are fewer than two actions or outcomes.
        """
        if actions < 2 or outcomes < 2:
            raise ValueError(f"actions and outcomes must be at least 2, got {actions} and {outcomes}")
        noise = np.array([NormalDist().inv_cdf((i + 0.5) / outcomes) for i in range(outcomes)])
        rewards = mean + noise / noise.std()
        rows: list[tuple[int, int, Outcome]] = [(0, 0, (1.0, 2, 0.0, True)), (0, 1, (1.0, 1, 0.0, False))]
        rows += [
            (1, action, (1.0 / outcomes, 3 + i, float(reward), True))
            for action in range(actions)
            for i, reward in enumerate(rewards)
        ]
        super().__init__(Transitions.of(3 + outcomes, actions, rows, [0]), render_mode=render_mode)
