"""Simulation of a known model inside kernels, for `S` seeds."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from operant.mdp import MDP
from operant.tabular.numba_config import compiled
from operant.tabular.random import StreamStates, draw, stream_states

UNLIMITED = 1 << 62
"""A number of steps or episodes that is never reached."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Model(NamedTuple):
    """Outcomes of actions, for sampling.

    Attributes:
        actions: A.
        indptr: `[states * A + 1]`, start of each row.
        cumulative: `[n]`, cumulative probabilities within each row.
        successors: `[n]`.
        rewards: `[n]`.
        terminates: bool `[n]`.
        starts: possible start states.
        start_cumulative: their cumulative probabilities.
        max_steps: steps after which an episode is truncated.
    """

    actions: int
    indptr: Ints
    cumulative: Floats
    successors: Ints
    rewards: Floats
    terminates: NDArray[np.bool_]
    starts: Ints
    start_cumulative: Floats
    max_steps: int

    @classmethod
    def of(cls, mdp: MDP, max_steps: int | None = None) -> Self:
        """Prepare a model.

        Args:
            mdp: the model.
            max_steps: step limit. Default: that of the model.
        """
        limit = mdp.max_steps if max_steps is None else max_steps
        total = np.concatenate([[0.0], np.cumsum(mdp.probabilities)])
        before = np.repeat(total[mdp.indptr[:-1]], np.diff(mdp.indptr))
        starts = np.flatnonzero(mdp.start)
        return cls(
            actions=mdp.actions,
            indptr=np.array(mdp.indptr, np.int64),
            cumulative=total[1:] - before,
            successors=np.array(mdp.successors, np.int64),
            rewards=np.array(mdp.rewards, np.float64),
            terminates=np.array(mdp.terminates, np.bool_),
            starts=starts.astype(np.int64),
            start_cumulative=np.cumsum(mdp.start[starts]),
            max_steps=UNLIMITED if limit is None else limit,
        )


def require_ends(model: Model) -> None:
    """Check that an episode can end.

    Raises:
        ValueError: if no transition terminates, and there is no step limit.
    """
    if model.max_steps == UNLIMITED and not model.terminates.any():
        raise ValueError(
            "no episode can end: no transition of the model terminates, and it has no step limit; give the model "
            "max_steps (a task: --env-kwargs max_episode_steps=100), or learn at every step: iterate() of methods such "
            "as q-learning, sarsa-lambda or td-lambda"
        )


class Step(NamedTuple):
    """The result of one action of one seed.

    Attributes:
        state: the current state.
        action: the action.
        reward: the reward.
        successor: the true next state; at the end of an episode, not the first state of the next one.
        terminated: whether the episode has terminated, so that the value of the successor is 0.
        truncated: whether a time limit has cut the episode; the target then bootstraps from the successor.
    """

    state: int
    action: int
    reward: float
    successor: int
    terminated: bool
    truncated: bool


class Quota(NamedTuple):
    """Remaining steps and episodes of the seeds.

    Attributes:
        left: `[S]`, remaining steps.
        episodes: total number of episodes after which seeds stop.
    """

    left: Ints
    episodes: int


class World(NamedTuple):
    """Environment states and statistics of the seeds.

    Attributes:
        state: `[S]`.
        age: `[S]`, steps of the current episode.
        total: `[S]`, undiscounted return of the current episode.
        episodes: `[S]`, number of ended episodes.
        ended: `[S, 3]`, number, total return and total length of episodes since the last report.
        rng: `[S]`, stream of the environment.
        returns: `[S, K]`, return of each of the first K episodes.
        lengths: `[S, K]`, their lengths in steps.
        cut: `[S]`, number of episodes that a time limit has truncated.
    """

    state: Ints
    age: Ints
    total: Floats
    episodes: Ints
    ended: Floats
    rng: StreamStates
    returns: Floats
    lengths: Ints
    cut: Ints

    @classmethod
    def new(cls, seeds: Sequence[int], purpose: str = "environment", record: int = 0) -> Self:
        """Return the world of `S` seeds, all in state 0, which records the first `record` episodes of each."""
        count = len(seeds)
        return cls(
            state=np.zeros(count, np.int64),
            age=np.zeros(count, np.int64),
            total=np.zeros(count),
            episodes=np.zeros(count, np.int64),
            ended=np.zeros((count, 3)),
            rng=stream_states(seeds, purpose),
            returns=np.zeros((count, record)),
            lengths=np.zeros((count, record), np.int64),
            cut=np.zeros(count, np.int64),
        )


@compiled
def has_quota(world: World, quota: Quota, i: int) -> bool:
    """Return whether a seed has steps and episodes left."""
    return quota.left[i] > 0 and world.episodes[i] < quota.episodes


@compiled
def begin(model: Model, world: World, i: int) -> None:
    """Start an episode of seed `i`."""
    world.state[i] = model.starts[draw(model.start_cumulative, 0, len(model.starts), world.rng, i)]


@compiled
def begin_all(model: Model, world: World) -> None:
    """Start an episode of every seed."""
    for i in range(len(world.state)):
        begin(model, world, i)


@compiled
def settle(world: World, i: int, reward: float, successor: int, ended: bool) -> None:
    """Record a step to `successor`."""
    world.age[i] += 1
    world.total[i] += reward
    world.state[i] = successor
    if not ended:
        return
    episode = world.episodes[i]
    if episode < world.returns.shape[1]:
        world.returns[i, episode] = world.total[i]
        world.lengths[i, episode] = world.age[i]
    world.ended[i, 0] += 1.0
    world.ended[i, 1] += world.total[i]
    world.ended[i, 2] += world.age[i]
    world.episodes[i] += 1
    world.age[i] = 0
    world.total[i] = 0.0


@compiled
def settle_all(world: World, rewards: Floats, successors: Ints, ended: NDArray[np.bool_]) -> None:
    """Record a step of every seed."""
    for i in range(len(world.state)):
        settle(world, i, rewards[i], successors[i], ended[i])


@compiled
def advance(model: Model, world: World, i: int, action: int) -> Step:
    """Take an action and return the step; after the end of an episode, start the next one."""
    state: int = world.state[i]
    row = state * model.actions + action
    entry = draw(model.cumulative, model.indptr[row], model.indptr[row + 1], world.rng, i)
    reward, successor, terminated = model.rewards[entry], model.successors[entry], model.terminates[entry]
    truncated = not terminated and world.age[i] + 1 >= model.max_steps
    settle(world, i, reward, successor, terminated or truncated)
    if terminated or truncated:
        world.cut[i] += truncated
        begin(model, world, i)
    return Step(state, action, reward, successor, terminated, truncated)
