"""Construction of tabular learners and their environments."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, cast, overload

import gymnasium
import numpy as np
from numpy.typing import NDArray

from operant import catalog
from operant.envs import BatchEnv, FiniteEnv, for_evaluation, start, wrapped, wrappers
from operant.envs.checking import check_users_environment
from operant.envs.registry import changes, make_single, specified
from operant.envs.spaces import GymnasiumActions
from operant.envs.trial import try_wrappers
from operant.envs.worlds.bandits import Bandit
from operant.mdp import MDP, tables
from operant.runtime.configuration import configuration, learner_kind
from operant.runtime.evaluation import Evaluation, evaluate_policy
from operant.runtime.experiment import InEnvironments
from operant.runtime.settings import Settings
from operant.tabular.bandit_factory import BanditExperiment, arms_of
from operant.tabular.bandits import Arms, BanditLearner
from operant.tabular.enumeration import Enumerated, actions_of, enumerated
from operant.tabular.evaluation import sampled_returns, step_limit
from operant.tabular.exact import expected_episodes, may_compute
from operant.tabular.learner import TabularLearner
from operant.tabular.player import Player
from operant.tabular.simulator import UNLIMITED

logger = logging.getLogger(__name__)

PROBED = 50
"""Steps in which a mask that excludes an action is searched."""

EVALUATION_ROWS = 20
"""Maximum parallel evaluation environments per seed."""


@dataclass(frozen=True)
class Experiment(InEnvironments):
    """A tabular learner and its evaluation.

    Attributes:
        learner: the learner, an `operant.runtime.learner.Learner` and `Policy`.
        settings: settings of the run.
        mdp: the model of the task, if known, constant, and not modified by wrappers.
    """

    learner: TabularLearner
    settings: Settings
    mdp: MDP | None

    def evaluation_model(self) -> MDP | None:
        """Return the model of evaluations: that of the task, or if the task changes, the one at this point of training.

        It is None if there is none, or wrappers that apply in evaluations modify it.
        """
        own = self.evaluation_kwargs
        wrapped_in = [] if self.env is None else wrappers(self.env)
        if self.mdp is not None or own == self.settings.env_kwargs or any(one.in_evaluation for one in wrapped_in):
            return self.mdp
        return known_model(self.settings.task, own)

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        backend: str | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Evaluation:
        """Evaluate the greedy policies (for prediction, the given policy); equal policies get equal scores.

        A task that changes over time is evaluated as it is at this point of training. If its model
        is known and not too large (`operant.tabular.exact.may_compute`), the score is the exact expected
        return; otherwise it is sampled, with the same episodes at every call. Episodes are truncated
        at the lower limit of the task and the settings; `operant.tabular.evaluation.LONGEST_EPISODE` if there is none.

        Args:
            episodes: episodes per seed. Default: from the settings.
            backend: "tensor" uses the model, "gymnasium" steps Gymnasium's environment, "auto" is the former if there
                is a model. Default: that of the settings.
            interrupted: function polled during the evaluation; if it returns True, the evaluation stops.

        Raises:
            StoppedError: if it was interrupted.
            NonFiniteError: if learning has diverged.
            ValueError: if `episodes` is not positive, the backend is unknown, or there is no model, e.g. because of
                wrappers that apply in evaluations.
        """
        settings, learner = self.settings, self.learner
        episodes = settings.evaluate_episodes if episodes is None else episodes
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        learner.require_finite()
        mdp = self.evaluation_model()
        if _simulated(settings.task, mdp, backend or settings.env_backend):
            assert mdp is not None  # noqa: S101 - a simulated task has a model
            limit = step_limit(mdp.max_steps, settings.evaluate_max_steps)
            return _in_model(mdp, learner.policy(), settings.seeds, episodes, limit)
        rows = max(n for n in range(1, min(episodes, EVALUATION_ROWS) + 1) if episodes % n == 0)
        own = specified(settings.task, settings.env_kwargs).max_episode_steps
        limit = step_limit(own, settings.evaluate_max_steps)
        env = enumerated(
            settings.task,
            settings.seeds,
            rows=rows,
            purpose="evaluation",
            longest=limit,
            env_kwargs=self.evaluation_kwargs,
        )
        try:
            return evaluate_policy(
                Player(learner),
                env if self.env is None else for_evaluation(self.env, env, settings.seeds),
                seeds=len(settings.seeds),
                episodes=episodes,
                max_steps=limit,
                cut=limit != own,
                interrupted=interrupted,
            )
        finally:
            env.close()

    @property
    def env(self) -> BatchEnv | None:
        """The environments that the learner steps, with their wrappers; None if it simulates a model."""
        return self.learner.env

    def reach(self) -> None:
        """Run Gymnasium's `check_env` on a user environment before training."""
        if self.env is not None:
            check_users_environment(self.settings.task, self.settings.env_kwargs)

    @staticmethod
    def wrap(env: gymnasium.Env[Any, Any]) -> gymnasium.ObservationWrapper[Any, Any, Any]:
        """Return an environment of the task with state indices as observations."""
        return Enumerated(env)

    @staticmethod
    def actions(space: gymnasium.Space[Any]) -> GymnasiumActions:
        """Return the conversion of the actions of the table to a space of the task."""
        return actions_of(space)

    def close(self) -> None:
        """Close the learner's environments."""
        self.learner.close()


def _in_model(mdp: MDP, policies: NDArray[np.float64], seeds: Sequence[int], episodes: int, limit: int) -> Evaluation:
    """Evaluate policies `[S, states, A]` in a model: exactly if fast, else by sampled episodes."""
    if may_compute(mdp, limit):
        expected = expected_episodes(mdp, policies, limit=limit)
        scores = np.repeat(expected.returns[:, None], episodes, axis=1)
        return Evaluation.of(scores, expected.lengths, cut=expected.cut, exact=True)
    sampled = sampled_returns(mdp, policies, seeds=seeds, episodes=episodes, longest=limit)
    return Evaluation.of(sampled.returns, sampled.lengths.mean(axis=1), cut=sampled.cut.mean(axis=1))


def assemble(
    algorithm: catalog.Algorithm, settings: Settings, config: Any, *, device: str
) -> Experiment | BanditExperiment:
    """Create the learner of a run with its model or environment.

    A task with a known, constant model is simulated inside the kernel; other tasks with finite spaces are stepped, as
    are environments that do not behave as their table `P` (see `MDP.from_gymnasium`) and tasks with wrappers, which see
    state indices. `settings.env_backend` selects "tensor" (the former) or
    "gymnasium" (the latter). Bandits always run inside the kernel.

    Args:
        algorithm: entry of the catalog.
        settings: settings of the run.
        config: configuration of the algorithm.
        device: must be "cpu": tables are updated cell by cell.

    Raises:
        ValueError: if the task is unknown or unsupported by the algorithm, or the device is not the CPU.
        TypeError: if the configuration has another type.
    """
    learner_class = learner_kind(algorithm, config)
    if device != "cpu":
        raise ValueError(f"{algorithm.name} runs only on the CPU, which is fastest for tables; got device {device!r}")
    if algorithm.family == "bandit":
        return _with_arms(learner_class, settings, config)
    mdp = _model(settings)
    mask = _mask(settings, mdp)
    source: MDP | BatchEnv | None = mdp if _simulated(settings.task, mdp, settings.env_backend) else None
    if settings.wrappers:
        source = _in_wrappers(settings)
        mdp = None if any(wrapper.in_evaluation for wrapper in wrappers(source)) else mdp
    elif source is None:
        source = _enumerated(settings, settings.seeds)
    try:
        options = {} if mask is None or isinstance(source, MDP) else {"feasible": mask}
        learner = learner_class(config, source, seeds=settings.seeds, budget=settings.budget, **options)
    except BaseException:
        if not isinstance(source, MDP):
            source.close()
        raise
    return Experiment(learner, settings, mdp)


def _enumerated(settings: Settings, seeds: Sequence[int]) -> BatchEnv:
    return enumerated(settings.task, seeds, env_kwargs=settings.env_kwargs)


def _in_wrappers(settings: Settings) -> BatchEnv:
    """Return the environments of a task with state indices as observations and the wrappers of a run.

    Raises:
        ValueError: if the task must be simulated, a wrapper cannot be created, or its observations or actions are not
            indices.
    """
    if settings.env_backend == "tensor":
        raise ValueError(
            f"env_backend='tensor' simulates the model of {settings.task} inside the kernel, which does not "
            f"support wrappers={settings.wrappers}: leave env_backend at 'auto', which steps the environment"
        )
    unwrapped = _enumerated(settings, settings.seeds)
    try:
        env = wrapped(unwrapped, settings.wrappers)
        for wrapper in wrappers(env):
            for what, space in {"observations": wrapper.observation_space, "actions": wrapper.action_space}.items():
                if not isinstance(space, gymnasium.spaces.Discrete) or space.start:
                    raise ValueError(
                        f"{type(wrapper).__name__} has {what} of {space}, but wrappers of tabular algorithms must have "
                        "Discrete observations and actions that start at 0; use your own environment for others, "
                        "path/to/file.py:MyEnv"
                    )
        one = settings.seeds[:1]
        try_wrappers(lambda: wrapped(_enumerated(settings, one), settings.wrappers), one)
        start(env, settings.seeds)
    except BaseException:
        unwrapped.close()
        raise
    return env


def _with_arms(learner_class: Any, settings: Settings, config: Any) -> BanditExperiment:
    if settings.wrappers:
        raise ValueError(
            f"bandits run inside the kernel, which does not support wrappers="
            f"{settings.wrappers}: leave them out, or use an algorithm that steps its environment, such as q-learning"
        )
    if settings.env_backend == "gymnasium":
        raise ValueError(
            "bandits run inside the kernel: leave env_backend at 'auto' for training; "
            "an evaluation can use Gymnasium's environment"
        )
    arms = arms_of(settings.task, settings.seeds, settings.env_kwargs)
    return BanditExperiment(learner_class(config, arms, seeds=settings.seeds, budget=settings.budget), settings)


def known_model(task: str, env_kwargs: Mapping[str, Any] | None = None) -> MDP | None:
    """Return the model of a task, with its step limit; None if it is unknown or not constant.

    Args:
        task: a Gymnasium id.
        env_kwargs: parameters for the constructor of the environment.

    Raises:
        ValueError: if the task is unknown or out of date.
        ModuleNotFoundError: if the task needs a package that is not installed.
    """
    return _read_model(task, env_kwargs)[0]


def _read_model(
    task: str, env_kwargs: Mapping[str, Any] | None, *, of_users: bool = True
) -> tuple[MDP | None, str | None]:
    """Return the model of a task, and why a table of the environment is not its model; None each if there is none.

    Args:
        task: a Gymnasium id.
        env_kwargs: parameters for the constructor of the environment.
        of_users: whether to read tables of environments that are neither Gymnasium's nor operant's.
    """
    env = make_single(specified(task, env_kwargs))
    try:
        finite = isinstance(env.unwrapped, FiniteEnv) or tables.has_table(env)
        if isinstance(env.unwrapped, Bandit) or changes(task, env_kwargs) or not finite:
            return None, None
        if not (of_users or tables.is_trusted(env)):
            return None, None
        reason = None if tables.fault(env) else tables.start_fault(env)
        return (None, reason) if reason else (MDP.from_gymnasium(env), None)
    except (ValueError, TypeError) as error:
        return None, str(error)
    finally:
        env.close()


def _model(settings: Settings) -> MDP | None:
    """Return the model of a run's task; log why a table of the environment is not used.

    Raises:
        ValueError: if the run must simulate the model, and the environment does not behave as its table.
    """
    backend = settings.env_backend
    mdp, reason = _read_model(settings.task, settings.env_kwargs, of_users=backend != "gymnasium")
    if reason is not None and backend == "tensor":
        raise ValueError(f"{settings.task!r} has no model to simulate: {reason}; use the backend 'gymnasium'")
    if reason is not None and backend == "auto":
        logger.warning("%s is stepped, not simulated: %s", settings.task, reason)
    return mdp


def _mask(settings: Settings, mdp: MDP | None) -> NDArray[np.bool_] | None:
    """Return the feasible actions of a model, all in terminal states; None without a model or a restriction.

    Raises:
        ValueError: if the model is unknown, and the environment rejects an action that its mask excludes.
    """
    if mdp is not None:
        mask = mdp.feasible | mdp.terminal[:, None]
        return None if mask.all() else mask
    env = make_single(specified(settings.task, settings.env_kwargs))
    try:
        error = _refusal(env)
    finally:
        env.close()
    if error is not None:
        raise ValueError(
            f"{settings.task} does not allow all actions in all states (info['action_mask']), which tables support "
            "only if the model is known: accept every action, or give the environment a table P and leave env_backend "
            f"at 'auto'. It raised: {error}"
        ) from error
    return None


def _refusal(env: gymnasium.Env[Any, Any]) -> Exception | None:
    """Return the error of an environment about an action that its first mask with a 0 excludes, or None.

    This mask is searched in `PROBED` steps with random allowed actions; none are taken if the first state has no mask.
    """
    space, draw = env.action_space, np.random.Generator(np.random.PCG64(0))
    try:
        _, info = env.reset(seed=0)
        if "action_mask" not in info or not isinstance(space, gymnasium.spaces.Discrete):
            return None
        mask = np.asarray(info["action_mask"])
        for _ in range(PROBED):
            if not mask.all():
                break
            _, _, terminated, truncated, info = env.step(space.start + draw.integers(space.n))
            if terminated or truncated:
                _, info = env.reset()
            mask = np.asarray(info.get("action_mask", True))
        excluded = np.flatnonzero(mask == 0)
    except Exception:  # foreign code, whose error training reports
        return None
    if not excluded.size:
        return None
    try:
        env.step(space.start + excluded[0])
    except Exception as error:  # foreign code
        return error
    return None


def _simulated(task: str, mdp: MDP | None, backend: str) -> bool:
    """Return whether a task is simulated from its model.

    Raises:
        ValueError: if the backend is unknown, or "tensor" has no model.
    """
    if backend not in ("auto", "tensor", "gymnasium"):
        raise ValueError(f"backend must be 'auto', 'tensor' or 'gymnasium', got {backend!r}")
    if backend == "tensor" and mdp is None:
        raise ValueError(f"{task!r} has no model to simulate; use the backend 'gymnasium'")
    return backend != "gymnasium" and mdp is not None


@overload
def learner_for(
    algorithm: str, source: MDP | BatchEnv, *, seeds: Sequence[int], budget: int = UNLIMITED, **values: Any
) -> TabularLearner: ...


@overload
def learner_for(
    algorithm: str, source: Arms, *, seeds: Sequence[int], budget: int = UNLIMITED, **values: Any
) -> BanditLearner: ...


def learner_for(
    algorithm: str, source: MDP | BatchEnv | Arms, *, seeds: Sequence[int], budget: int = UNLIMITED, **values: Any
) -> TabularLearner | BanditLearner:
    """Return the learner of an algorithm in a model, an environment, or with given arms.

    Args:
        algorithm: a name of the catalog, such as `"q-learning"`.
        source: see `TabularLearner`; for a bandit strategy, arms (see `BanditLearner`).
        seeds: one non-negative integer per run.
        budget: environment steps per seed; the last iteration is shortened accordingly.
        **values: fields of the algorithm's configuration.

    Raises:
        ValueError: for an unknown name, a value out of range, an algorithm of another package, or a source of the wrong
            type.
    """
    entry = catalog.find(algorithm)
    given: object = source
    if isinstance(given, str | gymnasium.Env | gymnasium.vector.VectorEnv):
        raise ValueError(
            f"the source is a {type(cast(object, given)).__name__}, expected an MDP, a BatchEnv or Arms: make one with "
            "operant.mdp.MDP.from_gymnasium(env), or operant.tabular.enumerated(task, seeds), which is stepped"
        )
    if entry.package != "tabular":
        raise ValueError(f"{algorithm} is not a tabular algorithm; it belongs to operant.{entry.package}")
    if isinstance(source, Arms) != (entry.family == "bandit"):
        needed = "Arms" if entry.family == "bandit" else "an MDP or a BatchEnv"
        raise ValueError(f"{algorithm} needs {needed} as its source, got {type(source).__name__}")
    if not isinstance(cast(object, seeds), Sequence | np.ndarray):
        raise ValueError(f"seeds must be a list of integers, such as range(3), got {seeds!r}")
    if wrong := [seed for seed in seeds if not isinstance(cast(object, seed), Integral) or seed < 0]:
        raise ValueError(f"seeds must be non-negative integers, such as range(3), got {wrong[0]!r}")
    config = configuration(entry, "", **values)
    return learner_kind(entry, config)(config, source, seeds=seeds, budget=budget)
