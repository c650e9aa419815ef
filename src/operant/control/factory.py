"""Factory of learners and their environments, shared by all algorithms of this package."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, Protocol, runtime_checkable

import torch

from operant import catalog
from operant.control.agent import Agent
from operant.control.compatibility import require_same_spaces
from operant.control.seed_memory import require_memory_of_seeds, size_of
from operant.control.trial import acts_built_in, try_learner
from operant.envs import BatchEnv, WorkerPool, for_evaluation, make, resolve_backend, start, wrapped
from operant.envs.trial import try_wrappers
from operant.nets import missing_tool, programs, untraceable
from operant.runtime.available_memory import require_memory
from operant.runtime.configuration import learner_kind
from operant.runtime.evaluation import LONGEST_EPISODE, Evaluation, SamplingPolicy, evaluate_policy
from operant.runtime.experiment import InEnvironments
from operant.runtime.learner import ControlLearner, HasAgent, HasDevice, HasGradientSteps, Policy
from operant.runtime.settings import Settings
from operant.runtime.shards import Shards
from operant.streams import of_seeds

EVALUATION_ROWS = 20
"""Maximum number of parallel environments per seed in an evaluation."""

LEAST_BYTES, LEAST_BYTES_A_STEP = 64, 24
"""Minimum memory of an environment, and of a step of a rollout: two observations, reward, flags, log-probability and
value. These lower bounds catch mistakes in the number of environments."""

GRADIENT_STEPS_TO_REPAY = 50_000
"""Minimum gradient steps of a run for compilation by default: it saves at least 0.3 ms per step, and takes 15 s."""


@runtime_checkable
class HasRolloutSteps(Protocol):
    """A learner whose rollout length is not `num_steps` of its configuration."""

    @property
    def rollout_steps(self) -> int:
        """Environment steps per seed in one rollout."""
        ...


@runtime_checkable
class HasStacks(Protocol):
    """A learner or an agent with networks that may come from outside."""

    @property
    def stacks(self) -> Sequence[object]:
        """The shapes of the networks."""
        ...


@runtime_checkable
class RolloutConfig(Protocol):
    """A configuration with rollouts of fixed length."""

    @property
    def num_envs(self) -> int:
        """Environments per seed."""
        ...

    @property
    def num_steps(self) -> int:
        """Steps per environment in one rollout."""
        ...


@dataclass(frozen=True)
class Experiment(InEnvironments):
    """A learner, and the evaluation of its policies.

    Attributes:
        learner: the learner of all seeds.
        settings: settings of the run.
        pool: the worker processes of its environments, in training and in evaluations.
        env: training environments; evaluations use those of their wrappers that also apply there
            (`operant.envs.Wrapper`). None: no wrappers in evaluations.
    """

    learner: ControlLearner
    settings: Settings
    pool: WorkerPool | None = None
    env: BatchEnv | None = None

    @property
    def device(self) -> torch.device:
        """The device of networks and tensor environments."""
        if isinstance(self.learner, HasDevice):
            return self.learner.device
        return torch.device("cpu") if self.env is None else self.env.device

    @property
    def environments(self) -> int:
        """Number of training environments per seed, of all actors."""
        config: Any = getattr(self.learner, "config", None)
        return getattr(config, "total_envs", None) or getattr(config, "num_envs", 1)

    @property
    def compiled(self) -> bool:
        """Whether the learner's updates are compiled."""
        return any(program.compiled for program in programs(self.learner))

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        backend: str | None = None,
        wrappers: Sequence[str] = (),
        env_kwargs: Mapping[str, Any] | None = None,
        purpose: str = "evaluation",
        sample: bool = False,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Evaluation:
        """Evaluate the greedy policies in separate environments, with the same episodes at every call.

        Args:
            episodes: episodes per seed. Default: that of the settings.
            backend: "tensor" or "gymnasium" (see `operant.envs.make`). Default: that of the settings.
            wrappers: names of additional wrappers, inside those of the run.
            env_kwargs: keyword arguments of the environments that replace those of the run, or are added to them.
            purpose: purpose of the random numbers of the episodes; another one gives others.
            sample: whether to sample actions as in training, instead of greedy ones; the same ones at every call.
            interrupted: function polled during the evaluation; if it returns True, the evaluation stops.

        Raises:
            StoppedError: if it was interrupted.
            ValueError: if `episodes` is not positive, there is no such backend, a wrapper cannot be made, or
                `env_kwargs` lead to other observations or actions.
        """
        settings = self.settings
        episodes = settings.evaluate_episodes if episodes is None else episodes
        env = _make(
            replace(settings, env_kwargs=self.evaluation_kwargs | dict(env_kwargs or {})),
            _evaluation_rows(episodes),
            backend=backend or settings.env_backend,
            purpose=purpose,
            device=self.device,
            pool=self.pool,
            max_steps=(longest := settings.evaluate_max_steps or LONGEST_EPISODE),
        )
        try:
            env = wrapped(env, wrappers, training=False)
            start(env, settings.seeds)
            if self.env is not None:
                env = for_evaluation(self.env, env, settings.seeds)
                if env_kwargs:
                    require_same_spaces(env, self.env)
            policy: Policy = self.learner
            if sample:
                generators = of_seeds(settings.seeds, f"actions of {purpose}", device=self.device)
                policy = SamplingPolicy(policy, env.rows // len(settings.seeds), generators)
            return evaluate_policy(
                policy,
                env,
                seeds=len(settings.seeds),
                episodes=episodes,
                max_steps=longest,
                cut=True,
                interrupted=interrupted,
            )
        finally:
            env.close()

    @property
    def rollout_steps(self) -> int:
        """Environment steps per seed in one rollout, which is never shortened; 0 if not applicable."""
        if isinstance(self.learner, HasRolloutSteps):
            return self.learner.rollout_steps
        config: Any = getattr(self.learner, "config", None)
        return config.num_envs * config.num_steps if isinstance(config, RolloutConfig) else 0

    def close(self) -> None:
        """Close the learner's environments, and stop their worker processes."""
        self.learner.close()
        if self.pool is not None:
            self.pool.close()


def _evaluation_rows(episodes: int) -> int:
    """Return the number of parallel environments per seed in an evaluation."""
    return max((n for n in range(1, min(episodes, EVALUATION_ROWS) + 1) if episodes % n == 0), default=1)


def assemble(algorithm: catalog.Algorithm, settings: Settings, config: Any, *, device: str) -> Experiment:
    """Create the environments and the learner of a run.

    Args:
        algorithm: entry of the catalog.
        settings: settings of the run.
        config: hyperparameters, of the algorithm's configuration class.
        device: device of networks and tensor environments.

    Raises:
        ValueError: if the task is unknown or unsupported by the algorithm, or compilation is required but impossible.
        TypeError: if the configuration has another class.
    """
    learner_class = learner_kind(algorithm, config)
    _require_vectorization(settings)
    pool = _pool(settings)
    try:
        return _assemble(learner_class, algorithm, settings, config, device=device, pool=pool)
    except BaseException:
        if pool is not None:
            pool.close()
        raise


def _pool(settings: Settings) -> WorkerPool | None:
    if settings.vectorization == "sync":
        return None
    return WorkerPool(settings.num_workers, deadline=settings.worker_seconds, lost_workers=settings.lost_workers)


def _assemble(
    learner_class: Any,
    algorithm: catalog.Algorithm,
    settings: Settings,
    config: Any,
    *,
    device: str,
    pool: WorkerPool | None,
) -> Experiment:
    if not hasattr(config, "num_envs"):
        raise ValueError(
            f"the configuration of {algorithm.name}, {type(config).__name__}, has no field num_envs: add the number of "
            "environments per seed, as in `num_envs: int = 1`"
        )
    _require_call(learner_class, algorithm)
    _require_memory(settings, config, torch.device(device))
    options: dict[str, Any] = {"algorithm": algorithm.name} if _takes(learner_class, "algorithm") else {}
    _try(partial(learner_class, **options), learner_class, settings, config, torch.device(device))
    shards = Shards(settings.shards)
    if shards.count > 1:
        _require_sharding(learner_class, algorithm, config, shards, device)
        options["shards"] = shards
    _require_memory_of_seeds(learner_class, algorithm, settings, config, torch.device(device))
    envs: list[BatchEnv] = []
    try:
        for number in shards.mine:
            rows = shards.rows(number, config.num_envs)
            envs.append(_training_envs(settings, rows, torch.device(device), pool))
            envs[-1] = wrapped(envs[-1], settings.wrappers)
        env = envs[0] if shards.count == 1 else envs
        learner: ControlLearner = learner_class(config, env, seeds=settings.seeds, budget=settings.budget, **options)
        if compiles(learner, settings, torch.device(device)):
            for program in programs(learner):
                program.compiled = True
            if isinstance(learner, HasAgent) and isinstance(learner.agent, Agent):
                learner.agent.capture()
    except BaseException:
        for each in envs:
            each.close()
        raise
    return Experiment(learner, settings, pool, envs[0])


def _try(
    make_learner: Callable[..., Any], learner_class: Any, settings: Settings, config: Any, device: torch.device
) -> None:
    """Try the user's wrappers and learner, if there are any, with one seed in separate environments.

    Raises:
        ValueError: if something does not fit.
    """
    seeds = settings.seeds[:1]
    alone = replace(settings, seeds=seeds, vectorization="sync", num_workers=0, lost_workers="end")

    def envs(rows: int) -> BatchEnv:
        return wrapped(_training_envs(alone, slice(0, rows), device, None), settings.wrappers)

    if settings.wrappers:
        try_wrappers(lambda: envs(2), seeds)
    if not acts_built_in(learner_class):
        try_learner(
            lambda env: make_learner(config, env, seeds=seeds, budget=settings.budget),
            lambda: envs(config.num_envs),
            seeds,
        )


def _require_call(learner_class: Any, algorithm: catalog.Algorithm) -> None:
    """Check the parameters of a learner's constructor.

    Raises:
        ValueError: if it cannot be called.
    """
    try:
        signature(learner_class).bind(None, None, seeds=None, budget=None)
    except TypeError as error:
        raise ValueError(
            f"{algorithm.name} cannot be called with (config, env, seeds=..., budget=...): {error}"
        ) from error


def _takes(learner_class: Any, name: str) -> bool:
    """Return whether the constructor of a learner has a parameter, such as `algorithm` or `shards`."""
    parameters = signature(learner_class).parameters.values()
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _require_sharding(
    learner_class: Any, algorithm: catalog.Algorithm, config: Any, shards: Shards, device: str
) -> None:
    """Check that the algorithm supports this division into shards.

    Raises:
        ValueError: if it does not.
    """
    if not _takes(learner_class, "shards"):
        raise ValueError(f"{algorithm.name} does not support shards: leave out --shards {shards.count}")
    if shards.group.size > 1 and device != "cpu":
        raise ValueError(f"several processes need the CPU, got device {device!r}: leave it out, or --processes")
    shards.require_even(num_envs=config.num_envs)


def _require_memory(settings: Settings, config: Any, device: torch.device) -> None:
    """Check that the environments and a rollout fit into memory, before they are created one by one.

    Raises:
        ValueError: if the lower bound exceeds the available memory.
    """
    steps = config.num_steps if isinstance(config, RolloutConfig) else 1
    needed = len(settings.seeds) * config.num_envs * max(LEAST_BYTES, steps * LEAST_BYTES_A_STEP)
    seeds = f"each of {len(settings.seeds)} seeds, {steps} steps each"
    require_memory(
        needed,
        device,
        what=f"num_envs={config.num_envs} environments for {seeds}, need at least",
        remedy=lambda _: "reduce num_envs, or train fewer seeds together",
    )


def _require_memory_of_seeds(
    learner_class: Any, algorithm: catalog.Algorithm, settings: Settings, config: Any, device: torch.device
) -> None:
    """Check that the environments and networks of all seeds fit into memory (see `require_memory_of_seeds`).

    Raises:
        ValueError: if they do not.
    """
    own = {"vectorization": "sync", "num_workers": 0, "lost_workers": "end"}
    one = replace(settings, seeds=settings.seeds[:1], **own)

    def size_of_one() -> int:
        env = wrapped(_training_envs(one, slice(0, config.num_envs), device, None), settings.wrappers)
        options = {"algorithm": algorithm.name} if _takes(learner_class, "algorithm") else {}
        with contextlib.closing(env):
            learner: ControlLearner = learner_class(config, env, seeds=one.seeds, budget=settings.budget, **options)
            with contextlib.closing(learner):
                num_steps = config.num_steps if isinstance(config, RolloutConfig) else 0
                return size_of(learner.state_dict(), env, num_steps=num_steps)

    require_memory_of_seeds(
        settings.seeds,
        size_of_one,
        lambda rows: _training_envs(one, slice(0, rows), device, None),
        envs=config.num_envs,
        evaluation_envs=_evaluation_rows(settings.evaluate_episodes),
        device=device,
    )


def _require_vectorization(settings: Settings) -> None:
    backend = resolve_backend(settings.task, settings.env_backend, settings.env_kwargs)
    if settings.vectorization == "async" and backend != "gymnasium":
        raise ValueError(
            f"vectorization='async' is for environments of Gymnasium, but those of {settings.task} are of the backend "
            f"{backend!r} here: leave it out, or use env_backend='gymnasium'"
        )
    given = {"num_workers": settings.num_workers or None, "lost_workers": settings.lost_workers}
    given = [f"{name}={value!r}" for name, value in given.items() if value not in (None, "end")]
    if settings.vectorization == "sync" and given:
        raise ValueError(
            f"{' and '.join(given)} would have an effect in worker processes, but environments are in this process: "
            "leave out what is named, or use vectorization='async'"
        )


def _training_envs(settings: Settings, rows: slice, device: torch.device, pool: WorkerPool | None) -> BatchEnv:
    """Create the training environments of a run with the numbers `rows` among those of each seed."""
    return _make(
        settings,
        rows.stop - rows.start,
        first_row=rows.start,
        backend=settings.env_backend,
        device=device,
        pool=pool,
        clip_rewards=settings.clip_rewards,
        episodic_life=settings.episodic_life,
    )


def _make(settings: Settings, rows: int, **options: Any) -> BatchEnv:
    """Create environments of a run, in worker processes if configured."""
    return make(
        settings.task,
        rows,
        settings.seeds,
        vectorization=settings.vectorization,
        env_kwargs=settings.env_kwargs,
        **options,
    )


def compiles(learner: ControlLearner, settings: Settings, device: torch.device) -> bool:
    """Return whether to compile a learner's updates, from `Settings.compile`.

    Raises:
        ValueError: if compilation is required but impossible.
    """
    if settings.compile == "off":
        return False
    missing = missing_tool(device)
    owner = learner.agent if isinstance(learner, HasAgent) else learner
    branching = untraceable(owner.stacks) if isinstance(owner, HasStacks) else None
    if settings.compile == "auto":
        steps = learner.gradient_steps if isinstance(learner, HasGradientSteps) else 0
        return missing is None and branching is None and steps >= GRADIENT_STEPS_TO_REPAY
    if missing:
        raise ValueError(f"compile needs {missing}, which is not installed")
    if branching:
        raise ValueError(
            f"compile needs networks whose branches and shapes do not depend on the values of tensors, as those of "
            f"{branching} do: use torch.where, or leave compile out"
        )
    return True
