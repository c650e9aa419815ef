"""Environment wrappers, whose state is saved with the run: `Wrapper`."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

import gymnasium
import torch
from torch import Tensor

from operant import doors
from operant.envs.base import BatchEnv, Step, Tree, begins_anew
from operant.state import DeclaredState, State, clone, load_part


class Wrapper(DeclaredState):
    """Base class of wrappers around a `BatchEnv`; it does not change the environment.

    Subclasses override `step` and `reset`, or only `observation`. `STATE` lists the attributes that are saved with the
    run and restored bit for bit. `LEARNED` lists those that belong to the weights, such as statistics or networks,
    which are also saved with the best policies and copied by `--init`. State that depends on the environments or the
    seeds is created in `start`.

        class Bonus(Wrapper):
            STATE = LEARNED = ("counts",)
            in_evaluation = False

            def start(self, seeds):
                self.counts = torch.zeros(len(seeds), 10)

    Attributes:
        env: wrapped environment.
        in_evaluation: whether the wrapper is used in evaluations: needed if it changes observations or actions, but
            not if it changes only rewards.
        training: false in evaluations, in which the wrapper must not learn.
        task: task of the environment.
        rows: number of environments, B.
        observation_space: space of one observation; set it in `__init__` if `observation` changes it.
        action_space: space of one action.
        device: device of the environment.
        always_valid: as of the environment.
    """

    LEARNED: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that belong to the weights: tensors `[S, ...]` for S seeds."""
    in_evaluation: ClassVar[bool] = True

    def __init__(self, env: BatchEnv) -> None:
        self.training = True
        self.observation_space: gymnasium.Space[Any] = env.observation_space
        self.action_space: gymnasium.Space[Any] = env.action_space
        self._wrap(env)

    def _wrap(self, env: BatchEnv) -> None:
        self.env, self.task, self.rows = env, env.task, env.rows
        self.device: torch.device = env.device
        self.always_valid: bool = env.always_valid

    def start(self, seeds: Sequence[int]) -> None:
        """Create the state for the environments and seeds; called once, before the first `reset`.

        Args:
            seeds: seeds of the S runs; the environments are `[S, N]`, flattened. Draw random numbers from one stream
                per seed (`operant.streams.torch_generator(seed, "my wrapper")`).
        """

    def check_config(self, config: object) -> None:
        """Check the configuration of the algorithm that trains in these environments; called once for each new run.

        Args:
            config: configuration of the algorithm, such as `operant.control.ppo.PPOConfig`.
        """

    def observation(self, obs: Tree) -> Tree:
        """Transform observations `[S*M, ...]`, with M per seed, for the policy, without learning from them."""
        return obs

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every environment and return the observations `[B, ...]`."""
        return self.observation(self.env.reset(seeds))

    def step(self, actions: Tensor) -> Step:
        """Apply one action per environment."""
        step = self.env.step(actions)
        obs = self.observation(step.obs)
        final_obs = obs if step.final_obs is step.obs else self.observation(step.final_obs)
        return step._replace(obs=obs, final_obs=final_obs)

    def forget(self) -> None:
        """Clear the state of unfinished episodes, after the environment started new ones when loading a state."""

    def defer(self) -> None:
        """Start deferring: until `settle`, the extra tensors of this wrapper's steps may be uninitialized."""

    def settle(self) -> None:
        """Compute the extra tensors of all steps since `defer`."""

    def metrics(self) -> Mapping[str, Tensor]:
        """Return metrics as new tensors `[S]` by name; called after each rollout."""
        return {}

    @property
    def begins_anew(self) -> bool:
        """Whether the environment starts new episodes when it loads a state."""
        return begins_anew(self.env)

    @property
    def learned(self) -> dict[str, Tensor]:
        """The tensors that belong to the weights, `[S, ...]` by name, without copies."""
        return {f"{self._label}.{name}": getattr(self, name) for name in self.LEARNED}

    @property
    def _label(self) -> str:
        """Name of the wrapper in names of learned state."""
        return type(self).__name__

    def state_dict(self) -> State:
        """Return the state of the environment, and copies of the attributes in `STATE`."""
        return {"env": self.env.state_dict(), **clone(super().state_dict())}

    def load_state_dict(self, state: State) -> Tree:
        """Restore a state of `state_dict`, and return the next observations."""
        super().load_state_dict({name: part for name, part in state.items() if name != "env"})
        obs = load_part(self.env, state, "env")
        if self.begins_anew:
            self.forget()
        return self.observation(obs)

    def around(self, env: BatchEnv, seeds: Sequence[int]) -> Self:
        """Return a copy of this wrapper around other environments for an evaluation, with fixed learned state.

        Args:
            env: environments of the same task.
            seeds: as in `start`.
        """
        twin = copy(self)
        twin.training = False
        twin._wrap(env)
        twin.start(seeds)
        for name in self.LEARNED:
            setattr(twin, name, getattr(self, name))
        return twin

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def wrappers(env: BatchEnv) -> list[Wrapper]:
    """Return the wrappers of an environment, from the innermost to the outermost."""
    found: list[Wrapper] = []
    while isinstance(env, Wrapper):
        found.append(env)
        env = env.env
    return found[::-1]


ENTRY_POINTS = "operant.wrappers"
"""Entry-point group of wrappers in installed packages."""


def wrapped(env: BatchEnv, names: Iterable[str], *, training: bool = True) -> BatchEnv:
    """Wrap an environment.

    Args:
        env: environment to wrap.
        names: wrappers from the innermost to the outermost, such as `my.py:Bonus` or `my.py:Bonus(scale=0.1)`: classes,
            or functions of the environment that return a wrapper.
        training: whether it is for training, not for an evaluation: the attribute `training` of the wrappers.

    Raises:
        ValueError: a name is not a wrapper, or its parameters are wrong.
    """
    for name in names:
        call = doors.Call.of(name)
        make = call.load(expected="a class derived from operant.envs.Wrapper", group=ENTRY_POINTS)
        kind = getattr(make, "func", make)
        if isinstance(kind, type) and issubclass(kind, gymnasium.Wrapper):
            raise ValueError(
                f"the wrapper {name} is a Gymnasium wrapper of a single environment, expected a subclass of "
                "operant.envs.Wrapper, which wraps a batch: use it in a function that creates the environment, and "
                "train on path/to/file.py:make"
            )
        try:
            found = make(env)
        except TypeError as error:
            raise ValueError(f"the wrapper {name} cannot wrap {env.task}: {error}") from error
        if isinstance(found, Wrapper) and "env" not in vars(found):
            raise ValueError(f"{type(found).__name__}.__init__ must call super().__init__(env)")
        if all(wrapper.env is not env for wrapper in wrappers(found)):
            raise ValueError(
                f"the wrapper {name} must be a subclass of operant.envs.Wrapper, or a function that returns one "
                f"around the environment, got {found!r:.80}"
            )
        env = found
    for wrapper in wrappers(env):
        wrapper.training = training
    return env


def unwrapped(env: BatchEnv) -> BatchEnv:
    """Return the environment inside all wrappers."""
    return found[0].env if (found := wrappers(env)) else env


def start(env: BatchEnv, seeds: Sequence[int]) -> None:
    """Call `start` of an environment's wrappers with the seeds of a run."""
    for wrapper in wrappers(env):
        wrapper.start(seeds)


def learned(env: BatchEnv) -> dict[str, Tensor]:
    """Return the learned state of an environment's wrappers, `[S, ...]` by name.

    Raises:
        ValueError: two of them use the same name.
    """
    found: dict[str, Tensor] = {}
    for wrapper in wrappers(env):
        own = wrapper.learned
        if twice := found.keys() & own.keys():
            raise ValueError(
                f"two wrappers of {env.task} have learned state {min(twice)!r}: rename one of the classes, "
                "or give bonuses different channels"
            )
        found |= own
    return found


def for_evaluation(env: BatchEnv, fresh: BatchEnv, seeds: Sequence[int]) -> BatchEnv:
    """Wrap new environments in those wrappers of the training environments that are used in evaluations.

    Args:
        env: training environments.
        fresh: new environments.
        seeds: seeds of the S runs.
    """
    for wrapper in wrappers(env):
        fresh = wrapper.around(fresh, seeds) if wrapper.in_evaluation else fresh
    return fresh


def changes_observations(wrapper: Wrapper) -> bool:
    """Return whether a wrapper overrides `Wrapper.observation`."""
    return type(wrapper).observation is not Wrapper.observation


def deferring(env: BatchEnv) -> list[Wrapper]:
    """Return the wrappers of an environment that compute extra tensors for all steps of a rollout together."""
    return [wrapper for wrapper in wrappers(env) if type(wrapper).settle is not Wrapper.settle]


def reporting(env: BatchEnv) -> list[Wrapper]:
    """Return the wrappers of an environment that report metrics."""
    return [wrapper for wrapper in wrappers(env) if type(wrapper).metrics is not Wrapper.metrics]
