"""Base class of tabular learners: parallel seeds, experience, metrics, exact state."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from torch import Tensor

from operant.envs.base import BatchEnv, begins_anew
from operant.envs.workers import EnvError
from operant.envs.wrapper import reporting
from operant.mdp import MDP
from operant.runtime.checkpoints import NonFiniteError
from operant.runtime.learner import Metrics
from operant.runtime.rollouts import info_metrics
from operant.state import DeclaredState, MissingError, State, all_or_nothing, load_part
from operant.tabular.acting import Rule
from operant.tabular.configs import BaseConfig, ExploringConfig, TableConfig
from operant.tabular.enumeration import require_possible
from operant.tabular.player import Player, indices, shares
from operant.tabular.simulator import UNLIMITED, Model, Quota, Step, World, begin_all, require_ends, settle_all
from operant.tensors import from_numpy

Floats = NDArray[np.float64]

STEPS_PER_CALL = 1_000_000
"""Steps of all seeds together after which a kernel that runs episodes returns, so that it can be interrupted."""


class Kernels(NamedTuple):
    """The compiled functions of an algorithm.

    Attributes:
        choose: `(rule, agent, i, state) -> action`, selects an action of seed `i`.
        learn: `(rule, agent, i, step)`, learns from a `Step` of seed `i`.
        run: `(model, world, rule, agent, quota)`, runs every seed in a model until its `Quota` is used up, or its
            storage is full (`make_room`).
    """

    choose: Callable[[Any, Any, int, int], int]
    learn: Callable[[Any, Any, int, Step], None]
    run: Callable[[Model, World, Any, Any, Quota], None]


class PlainRule(NamedTuple):
    """Only the shared constants."""

    base: Rule


class History(NamedTuple):
    """The first `K` episodes of `S` seeds.

    Attributes:
        returns: `[S, K]`, undiscounted; NaN if unknown.
        lengths: `[S, K]`, in steps; 0 if unknown.
    """

    returns: Floats
    lengths: NDArray[np.int64]


class TabularLearner(DeclaredState):
    """`S` seeds that learn in a simulated model or a stepped environment.

    A subclass defines its `kernels` and creates `agent`, a named tuple with the tables and all other state.

    Args:
        config: hyperparameters.
        source: a model, simulated inside the kernel; or `S` environments with the same seeds, whose
            observations and actions are discrete and start at 0.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed; the last iteration is shortened accordingly.
        feasible: `[states, A]`, mask of feasible actions of environments, at least one in every state. Default: all. A
            model has its own.

    Attributes:
        learns_values: whether it has `q`, `values` and `visits`.
        learns_action_values: whether `q` contains action values; otherwise state values.
        consumed: environment steps per seed.
        states: number of states.
        actions: A.
        feasible: `[states, A]`, mask of feasible actions.
        world: environment states of the seeds.
        rule: the kernels' constants.
        agent: tables, counters, streams.
        device: device of actions and observations, the CPU.
    """

    STATE = ("consumed", ("world", "places"), "agent")
    CATALOG: ClassVar[Mapping[str, Any]] = {"package": "tabular", "family": "value", "actions": ("discrete",)}

    config: Any
    kernels: ClassVar[Kernels]
    learns_values: ClassVar[bool] = True
    learns_action_values: ClassVar[bool] = True
    device = torch.device("cpu")
    states: int
    actions: int

    def __init__(
        self,
        config: BaseConfig,
        source: MDP | BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int = UNLIMITED,
        feasible: NDArray[np.bool_] | None = None,
    ) -> None:
        if not len(seeds):
            raise ValueError("expected at least one seed, got none")
        if budget < 1:
            raise ValueError(f"budget must be at least 1 environment step, got {budget}")
        self.config, self.seeds, self.budget, self.consumed = config, list(seeds), budget, 0
        self.world: World = World.new(self.seeds)
        self.model: Model | None = None
        self.env: BatchEnv | None = None
        tables = len(self.seeds) if self.learns_values else 0
        if isinstance(source, MDP):
            self.feasible = source.feasible
            require_possible(source.states, source.actions, "the model", seeds=tables)
            self.model = Model.of(source)
            begin_all(self.model, self.world)
        else:
            self.feasible = _feasible(source, len(self.seeds), feasible, tables)
            self.env = source
            self.world.state[:] = _states(indices(source.reset()), len(self.feasible), source.task)
        self.states, self.actions = self.feasible.shape
        self.rule: Any = self.make_rule(config.rule(self.feasible))
        self.agent: Any = self.make_agent()
        self._player, self._told, self._tested = Player(self), list[Mapping[str, Tensor]](), 0

    def make_rule(self, base: Rule) -> Any:
        """Return the kernels' constants: a named tuple with the field `base`."""
        return PlainRule(base)

    def make_agent(self) -> Any:
        """Return the initial tables, counters and random streams."""
        raise TypeError(f"{type(self).__name__} has no tables: use one of its subclasses")

    def make_room(self) -> None:
        """Enlarge full storage, so that waiting seeds can continue; most learners have no such storage."""

    def begin_anew(self) -> None:
        """Forget the steps of unfinished episodes; most learners store none."""

    @property
    def q(self) -> Floats:
        """Action values (for prediction: state values), `[S, states, A]`; a view."""
        return self.agent.table.q

    @property
    def visits(self) -> NDArray[np.int64]:
        """Updates of every cell of `q`; a view."""
        return self.agent.table.visits

    @property
    def values(self) -> Floats:
        """State values, `[S, states]`: the value of the best action; 0 without feasible actions."""
        best = np.where(self.feasible, self.q, -np.inf).max(axis=2)
        return np.where(self.feasible.any(axis=1), best, 0.0)

    def probabilities(self, states: NDArray[np.int64], *, exploring: bool = False) -> Floats:
        """Return the policies in some states.

        Args:
            states: `[S, N]`.
            exploring: whether to return the behavior policy; otherwise the greedy policy, uniform over tied actions.

        Returns:
            `[S, N, A]`.
        """
        feasible = self.feasible[states]
        q = np.where(feasible, self.q[np.arange(len(self.seeds))[:, None], states], -np.inf)
        greedy = feasible & (q == q.max(axis=2, keepdims=True))
        epsilon = self.epsilon[:, None, None] if exploring else 0.0
        return (1.0 - epsilon) * shares(greedy) + epsilon * shares(feasible)

    @property
    def epsilon(self) -> Floats:
        """Current exploration rate, `[S]`."""
        return self.agent.table.epsilon

    def policy(self, *, exploring: bool = False) -> Floats:
        """Return the policies in all states, `[S, states, A]` (see `probabilities`)."""
        every = np.broadcast_to(np.arange(self.states), (len(self.seeds), self.states))
        return self.probabilities(every, exploring=exploring)

    def iterate(self) -> Metrics:
        """Act and learn for `config.steps_per_iteration` environment steps of every seed.

        Raises:
            NonFiniteError: if learning has diverged (see `require_finite`).
        """
        steps = max(1, min(self.config.steps_per_iteration, self.budget - self.consumed))
        if self.model is None:
            self._step(steps)
        else:
            self._simulate(self.model, Quota(np.full(len(self.seeds), steps, np.int64), UNLIMITED))
        self.consumed += steps
        self._inspect()
        return self._report()

    def require_finite(self) -> None:
        """Check that values have not diverged; -Inf is the value of an infeasible action in solutions of models.

        Raises:
            NonFiniteError: if a value is NaN or +Inf.
        """
        self._tested = self.consumed
        if not self.learns_values:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(self.q.sum()):  # a sum is cheaper than a test of each value
                return
        broken = np.flatnonzero(~(self.q < np.inf).all(axis=(1, 2)))
        if broken.size:
            raise NonFiniteError(
                f"values of seed {self.seeds[broken[0]]} are NaN or Inf at step {self.consumed}: learning has "
                "diverged; choose a smaller step_size, or another kind of traces if they are accumulating"
            )

    def _inspect(self) -> None:
        """Check the values after learning, but large tables rarely: a test of 10 cells is as fast as a step."""
        steps = (self.consumed - self._tested) * len(self.seeds)
        if self.learns_values and (10 * steps >= self.q.size or self.consumed >= self.budget):
            self.require_finite()

    def run_episodes(self, episodes: int) -> History:
        """Act and learn until every seed has finished `episodes` episodes in total, or has used up the budget.

        Earlier calls count: after 50 episodes, `run_episodes(100)` runs 50 more. Seeds stop at different steps;
        `consumed` is the maximum. Episodes that ended before this call, and those that have not ended, have the return
        NaN and the length 0.

        Raises:
            ValueError: if the learner steps environments, which cannot stop one by one, `episodes` is not positive, or
                no episode can end.
            NonFiniteError: if learning has diverged (see `require_finite`).
        """
        if self.model is None:
            raise ValueError("run_episodes needs a simulated model; call iterate() instead")
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        require_ends(self.model)
        history = History(np.full((len(self.seeds), episodes), np.nan), np.zeros((len(self.seeds), episodes), np.int64))
        before, used = self.world, np.zeros(len(self.seeds), np.int64)
        self.world = before._replace(returns=history.returns, lengths=history.lengths)
        part, budget = max(1, STEPS_PER_CALL // len(self.seeds)), self.budget - self.consumed
        try:
            while ((used < budget) & (self.world.episodes < episodes)).any():
                given = np.minimum(part, budget - used)
                left = given.copy()
                try:
                    self._simulate(self.model, Quota(left, episodes))
                finally:
                    used += given - left
        finally:
            self.world = self.world._replace(returns=before.returns, lengths=before.lengths)
            self.consumed += int(used.max())
        self._inspect()
        return history

    def replace_model(self, mdp: MDP) -> None:
        """Replace the model by another one with the same states and actions, as in a changing maze.

        Raises:
            ValueError: if states or feasible actions differ, or the learner steps an environment.
        """
        if self.model is None or not np.array_equal(mdp.feasible, self.feasible):
            raise ValueError(
                "the model must be simulated, and the new one must have the same states and feasible actions"
            )
        self.model = Model.of(mdp)

    def _simulate(self, model: Model, quota: Quota) -> None:
        while ((quota.left > 0) & (self.world.episodes < quota.episodes)).any():
            self.make_room()
            self.kernels.run(model, self.world, self.rule, self.agent, quota)

    def _step(self, steps: int) -> None:
        """Step all environments `steps` times."""
        assert self.env is not None  # noqa: S101 - there is a model or an environment
        choose, learn, _ = self.kernels
        rows = range(len(self.seeds))
        for _ in range(steps):
            self.make_room()
            states = self.world.state.copy()
            actions = np.array([choose(self.rule, self.agent, i, states[i]) for i in rows], np.int64)
            step = self.env.step(from_numpy(actions))
            rewards = _finite(step.reward.double().numpy(), self.env.task)
            scores = step.score.double().numpy()
            successors = _states(indices(step.final_obs), self.states, self.env.task)
            terminated, truncated = step.terminated.numpy(), (step.truncated & ~step.terminated).numpy()
            for i in rows:
                outcome = Step(states[i], actions[i], rewards[i], successors[i], terminated[i], truncated[i])
                learn(self.rule, self.agent, i, outcome)
            settle_all(self.world, scores, successors, terminated | truncated)
            self.world.cut[:] += truncated
            if step.infos is not None:
                self._told.append(step.infos)
            same = step.obs is step.final_obs  # no episode has ended
            self.world.state[:] = successors if same else _states(indices(step.obs), self.states, self.env.task)

    def _report(self) -> Metrics:
        count, total, length = from_numpy(self.world.ended.copy()).unbind(1)
        self.world.ended[:] = 0.0
        metrics, self._told = self._told, []
        wrappers = [] if self.env is None else reporting(self.env)
        return {
            **{name: value for wrapper in wrappers for name, value in wrapper.metrics().items()},
            "rollout/episode_return": total / count,
            "rollout/episode_length": length / count,
            "rollout/episodes": count,
            **info_metrics(metrics, len(self.seeds)),
            **{name: from_numpy(values.copy()) for name, values in self.schedules().items()},
        }

    def schedules(self) -> dict[str, Floats]:
        """Return the scheduled values, `[S]` each, by metric name; a step size that differs by cell is left out."""
        table = self.agent.table
        reported: dict[str, Floats] = {}
        if isinstance(self.config, ExploringConfig):
            reported["schedule/epsilon"] = table.epsilon
        if isinstance(self.config, TableConfig) and self.config.step_size_schedule != "visits":
            reported["schedule/step_size"] = table.step_size
        return reported

    def act(self, obs: Any, hidden_state: Any, noise: Tensor | None) -> tuple[Tensor, None]:
        """Select actions for states `[S, N]` (see `operant.runtime.learner.Policy`).

        Raises:
            EnvError: if a state is outside the table.
        """
        _states(indices(obs), self.states, "the environment")
        return self._player.act(obs, hidden_state, noise)

    def describe(self, obs: Any, hidden_state: Any) -> Mapping[str, Tensor]:
        """Return the greedy policies and the tables in states `[S, N]` (see `operant.runtime.learner.Describing`)."""
        states = _states(indices(obs), self.states, "the environment")
        seeds = np.arange(len(self.seeds))[:, None]
        outputs = {"probabilities": self.probabilities(states)}
        if self.learns_values:
            outputs["value"] = self.values[seeds, states]
        if self.learns_values and self.learns_action_values:
            outputs["q"] = np.where(self.feasible[states], self.q[seeds, states], -np.inf)
        return {name: from_numpy(np.array(values)) for name, values in outputs.items()}

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return the random numbers in [0, 1) for exploration in `act`, `[rows]` of one seed."""
        return self._player.noise(rows, generator)

    @property
    def places(self) -> World:
        """Environment states of the seeds, without the history of first episodes and the number of truncated ones."""
        return self.world._replace(returns=None, lengths=None, cut=None)

    @places.setter
    def places(self, world: World) -> None:
        self.world = world._replace(returns=self.world.returns, lengths=self.world.lengths, cut=self.world.cut)

    def state_dict(self) -> State:
        """Return tables, counters, random streams, and the environment state of every seed."""
        return super().state_dict() | {"env": None if self.env is None else self.env.state_dict()}

    @all_or_nothing
    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly, or with new episodes (`operant.envs.begins_anew`); an invalid one changes nothing.

        Raises:
            StateError: if the state belongs to another configuration.
            ValueError: if the state belongs to another task.
        """
        if "env" not in state:
            raise MissingError("env", "is missing")
        super().load_state_dict({name: part for name, part in state.items() if name != "env"})
        if self.env is not None:
            self.world.state[:] = indices(load_part(self.env, state, "env"))
            if begins_anew(self.env):
                self.world.age[:], self.world.total[:] = 0, 0.0
                self.begin_anew()

    def close(self) -> None:
        """Close the environments, if any."""
        if self.env is not None:
            self.env.close()


def _states(states_: NDArray[np.int64], states: int, task: str) -> NDArray[np.int64]:
    """Return state indices; raise EnvError for an index outside the table, because kernels do not check bounds."""
    outside = states_.view(np.uint64) >= states  # as unsigned, negative numbers are huge
    if outside.any():
        raise EnvError(
            f"{task} is in state {states_[outside].flat[0]}, but its observation space has {states} states, 0 to "
            f"{states - 1}; correct its observation_space, or the results of reset() and step()"
        )
    return states_


def _finite(rewards: Floats, task: str) -> Floats:
    """Return rewards; raise EnvError for NaN or Inf, which would propagate through the table."""
    if not np.isfinite(rewards).all():
        reward = rewards[~np.isfinite(rewards)][0]
        raise EnvError(f"{task} returned the reward {reward}, expected a finite number; correct its step()")
    return rewards


def _feasible(env: BatchEnv, seeds: int, given: NDArray[np.bool_] | None, tables: int) -> NDArray[np.bool_]:
    """Return the given mask of the actions of an environment, or an all-true one.

    Raises:
        ValueError: if its spaces are unsupported, the mask does not fit, or memory does not hold the tables.
    """
    observation_space, action_space = env.observation_space, env.action_space
    if (
        not (isinstance(observation_space, Discrete) and isinstance(action_space, Discrete))
        or observation_space.start
        or action_space.start
    ):
        raise ValueError(
            f"a table needs observations and actions that are Discrete and start at 0, but {env.task} has "
            f"{observation_space} and {action_space}: number finite ones by operant.tabular.enumerated(task, seeds); "
            "others, and Tuple or Dict actions, need a wrapper, or an algorithm with networks"
        )
    require_possible(int(observation_space.n), int(action_space.n), env.task, seeds=tables)
    if env.rows != seeds or not env.always_valid:
        raise ValueError(
            f"{seeds} seeds need {seeds} environments whose steps are all valid, but {env.task} has "
            f"{env.rows} rows (valid: {env.always_valid}); create it with operant.envs.make(task, 1, seeds)"
        )
    shape = (int(observation_space.n), int(action_space.n))
    if given is not None and (given.shape != shape or not given.any(axis=1).all()):
        raise ValueError(f"feasible has shape {given.shape}, expected {shape} with a feasible action in every state")
    return np.ones(shape, np.bool_) if given is None else given
