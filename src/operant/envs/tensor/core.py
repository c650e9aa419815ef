"""Base class of batched tensor environments: episodes, starts, parameters and states."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from operant.envs.base import Step, Tree
from operant.envs.spaces import ActionFormat
from operant.envs.tensor.starts import BITS, random_bits, stream_keys
from operant.state import State, copy_into
from operant.tensors import from_numpy

Parameter = float | Tensor
"""A physics parameter: one number for all environments, or a tensor `[B]`."""

Array = Any
"""A NumPy array on the CPU, a tensor on other devices."""


class Library:
    """Array library that computes the physics on a device.

    The time of small batches is proportional to the number of operations, and NumPy's operations take a third of the
    time of PyTorch's. On the CPU, physics is therefore computed by NumPy in the memory of the tensors. Code uses
    operators and functions that both libraries have.

    Attributes:
        on_host: whether the library is NumPy.
        xp: `numpy` or `torch`.
        array: function that returns an array with the memory of a tensor.
        actions: function that returns the array `[B]` of a tensor of actions, with the environment's dtype.
        tensor: function that returns a tensor with the memory of an array.
        empty: function that creates an array of a shape, with the environment's dtype.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.on_host = device.type == "cpu"
        self.xp: Any = np if self.on_host else torch
        self.array: Callable[[Tensor], Array]
        self.actions: Callable[[Tensor], Array]
        self.tensor: Callable[[Array], Tensor]
        self.empty: Callable[[tuple[int, ...]], Array]
        if self.on_host:
            kind = np.float64 if dtype is torch.float64 else np.float32
            self.array, self.tensor = Tensor.numpy, from_numpy
            self.actions = lambda tensor: tensor.numpy().ravel().astype(kind)
            self.empty = partial(np.empty, dtype=kind)
        else:
            self.array = self.tensor = lambda tensor: tensor
            self.actions = lambda tensor: tensor.reshape(-1).to(dtype)
            self.empty = partial(torch.empty, dtype=dtype, device=device)


class TensorEnv(ABC):
    """Batch of `B` environments of one task, whose physics is computed by array operations on a state `[D, B]`.

    Environments are reset in the step in which their episode ends. Fields of an `operant.envs.base.Step` may share
    memory with each other and, if constant, with those of other steps, and must not be modified. On the CPU only ended
    environments are reset; on other devices every step runs the same operations on the same memory, without reading
    results, so that a CUDA graph can capture it.

    The range of actions is not checked, for speed; continuous actions are clipped as in Gymnasium.

    Attributes:
        task: Gymnasium id.
        rows: number of environments, B.
        observation_space: space of one observation.
        action_space: space of one action.
        device: device of all tensors.
        dtype: dtype of states, observations and rewards.
        max_episode_steps: number of steps after which an episode is truncated.
        always_valid: true.
        parameters: physics parameters, 0-dim or `[B]`, read-only; see `set_parameters`.
        env_kwargs: keyword arguments passed to `operant.envs.make`.
    """

    task: str
    always_valid = True
    DEFAULTS: ClassVar[Mapping[str, float]]
    """Default physics parameters, with Gymnasium's names and values."""
    SIGNED: ClassVar[frozenset[str]] = frozenset()
    """Parameters that may be zero or negative."""
    OPTIONS: ClassVar[frozenset[str]] = frozenset()
    """Keyword arguments of Gymnasium's environment that this one accepts, too."""
    STARTS: tuple[tuple[float, float], ...]
    """Bounds (low, high) of the uniform start distribution of each of the D state components."""

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        max_episode_steps: int | None = None,
        **parameters: Parameter,
    ) -> None:
        """Start episode 0 of every environment.

        Args:
            seeds: one non-negative integer below 2⁶³ per environment.
            device: device of all tensors.
            dtype: torch.float32 or torch.float64.
            max_episode_steps: maximum number of steps per episode; default: that of Gymnasium's registry.
            **parameters: physics parameters that override `DEFAULTS`.

        Raises:
            ValueError: an argument is out of range, or a parameter is unknown.
        """
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        if max_episode_steps is None:
            max_episode_steps = gymnasium.spec(self.task).max_episode_steps
        if max_episode_steps is None or max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, got {max_episode_steps}")
        self.rows, self.device, self.dtype = len(seeds), torch.device(device), dtype
        self.env_kwargs: dict[str, Any] = {}
        self.max_episode_steps = max_episode_steps
        self._check_seeds(seeds)
        self._allocate()
        self.parameters: Mapping[str, Tensor] = MappingProxyType({})
        self.set_parameters(**{**self.DEFAULTS, **parameters})
        box, self.action_space = self._spaces()
        self.observation_space: gymnasium.Space[Any] = box
        self._features = box.shape[0]
        self._format = ActionFormat.of(self.action_space, self.rows)
        self.reset(seeds)

    def _check_seeds(self, seeds: Sequence[int]) -> None:
        if not seeds or len(seeds) != self.rows:
            raise ValueError(
                f"one seed per environment is needed, got {len(seeds)} for {self.rows or 'at least 1'} environments"
            )
        if not all(0 <= seed < 2**63 for seed in seeds):
            raise ValueError(f"seeds must be non-negative integers below 2**63, got {list(seeds)}")

    def _allocate(self) -> None:
        """Allocate the tensors of the state, and the arrays that share their memory."""
        self._library = library = Library(self.device, self.dtype)
        self._xp, self._empty = library.xp, library.empty
        components = len(self.STARTS)
        integers = partial(torch.zeros, dtype=torch.int64, device=self.device)
        self._memory = {
            "seeds": integers(self.rows),
            "episode": integers(self.rows),
            "elapsed": integers(self.rows),
            "state": torch.zeros(components, self.rows, dtype=self.dtype, device=self.device),
        }
        self._seeds, self._episode, self._elapsed, self._state = map(library.array, self._memory.values())
        self._columns = tuple(self._state)
        self._keys = library.array(integers(components, self.rows))
        self._component = library.array(torch.arange(1, components + 1, device=self.device).unsqueeze(1))
        bounds = torch.tensor(self.STARTS, dtype=torch.float64, device=self.device)
        self._start_low = library.array(bounds[:, :1].contiguous())
        self._start_unit = library.array((bounds[:, 1:] - bounds[:, :1]) * 2.0**-BITS)
        self._valid = torch.ones(self.rows, dtype=torch.bool, device=self.device)

    def set_parameters(self, **parameters: Parameter) -> None:
        """Set physics parameters for the following steps.

        Values are copied. CUDA graphs must be captured again.

        Args:
            **parameters: numbers or tensors, 0-dim or `[B]`; other parameters are unchanged.

        Raises:
            ValueError: a name is unknown, a shape is wrong, or a value is NaN, Inf, or not positive where required.
        """
        checked = {name: self._checked(name, value) for name, value in parameters.items()}
        self.parameters = MappingProxyType({**self.parameters, **checked})
        self._derive({name: self._library.array(value.view(-1)) for name, value in self.parameters.items()})

    def _checked(self, name: str, value: Parameter) -> Tensor:
        if name not in self.DEFAULTS:
            raise ValueError(f"{self.task} has no parameter {name!r}; it has {', '.join(sorted(self.DEFAULTS))}")
        tensor = torch.as_tensor(value, dtype=self.dtype, device=self.device).detach().clone()
        if tensor.shape not in ((), (self.rows,)):
            raise ValueError(f"parameter {name!r} must have shape [] or [{self.rows}], got {[*tensor.shape]}")
        if not tensor.isfinite().all() or (name not in self.SIGNED and not (tensor > 0).all()):
            kind = "finite" if name in self.SIGNED else "finite and positive"
            raise ValueError(f"parameter {name!r} must be {kind}, got {value}")
        return tensor

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every environment and return the observations `[B, O]`.

        Args:
            seeds: one non-negative integer per environment; default: the current seeds.

        Raises:
            ValueError: the number of seeds is wrong, or a seed is negative.
        """
        if seeds is not None:
            self._check_seeds(seeds)
            self._seed(torch.tensor(seeds))
        self._episode[:] = 0
        self._elapsed[:] = 0
        self._state[:] = self._start(self._keys, self._episode)
        return self._seen(self._library.tensor(self._observation(self._state)))

    def _seed(self, seeds: Tensor) -> None:
        copy_into(self._memory["seeds"], seeds, "seeds")
        self._keys[:] = stream_keys(self._seeds, self._component)

    def step(self, actions: Tensor) -> Step:
        """Apply one action per environment; int64 `[B]` or floating `[B, 1]`."""
        self._format.check(actions)
        library = self._library
        rewards, terminations = self._advance(library.actions(actions))
        self._elapsed += 1
        truncations = self._elapsed >= self.max_episode_steps
        final = self._observation(self._state)
        restart = self._restart_rows if library.on_host else self._restart_all
        ended = terminations | truncations
        infos, first = self._told(ended), restart(ended, final)
        final_obs, reward = self._seen(library.tensor(final)), library.tensor(rewards)
        obs = final_obs if first is final else self._seen(library.tensor(first))
        terminated, truncated = library.tensor(terminations), library.tensor(truncations)
        return Step(obs, reward, terminated, truncated, final_obs, self._valid, reward, infos)

    def _seen(self, obs: Tensor) -> Tree:
        """Return the observations in their public form from `[B, O]`."""
        return obs

    def _told(self, ended: Array) -> Mapping[str, Tensor] | None:
        """Return `Step.infos` of the environments in the mask `ended [B]`."""
        return None

    def _restart_rows(self, ended: Array, final_obs: Array) -> Array:
        """Reset the ended environments, at a cost proportional to their number."""
        rows = ended.nonzero()[0]
        if not len(rows):
            return final_obs
        self._episode[rows] += 1
        start = self._start(self._keys.take(rows, 1), self._episode[rows])
        self._elapsed[rows] = 0
        self._state[:, rows] = start
        obs = final_obs.copy()
        obs[rows] = self._observation(start)
        return obs

    def _restart_all(self, ended: Array, final_obs: Array) -> Array:
        """Compute a start for every environment, and use it for those that ended."""
        self._episode += ended
        start = self._start(self._keys, self._episode)
        self._elapsed *= ~ended
        self._state[:] = self._xp.where(ended, start, self._state)
        return self._xp.where(ended[:, None], self._observation(start), final_obs)

    def _start(self, keys: Array, episodes: Array) -> Array:
        """Return the first states `[D, n]` of `episodes [n]`."""
        start = self._empty(keys.shape)
        start[:] = self._start_low + random_bits(keys, episodes) * self._start_unit
        return start

    def _observation(self, state: Array) -> Array:
        """Return the observations `[n, O]` of `state [D, n]` as a new array."""
        obs = self._empty((state.shape[1], self._features))
        self._observe(state, obs)
        return obs

    def states(self, obs: Tensor) -> Tensor:
        """Return the states `[D, n]` of the observations `obs [n, O]`.

        Raises:
            ValueError: one observation does not determine the state.
        """
        raise ValueError(f"one observation of {self.task} does not determine its state")

    def observations(self, states: Tensor) -> Tensor:
        """Return the observations of `states [D, n]`, `[n, O]`."""
        return self._library.tensor(self._observation(self._library.array(states)))

    def advance(self, states: Tensor, actions: Tensor) -> Tensor:
        """Return the successors `[D, B]` of the given states, without changing the current episodes.

        Args:
            states: states `[D, B]`, of the environment's dtype.
            actions: actions, int64 `[B]` or floating `[B, 1]`.
        """
        kept = self._memory["state"].clone()
        copy_into(self._memory["state"], states, "states")
        self._advance(self._library.actions(actions))
        found = self._memory["state"].clone()
        copy_into(self._memory["state"], kept, "states")
        return found

    def state_dict(self) -> State:
        """Return physics states, episode steps, seeds and parameters of all environments."""
        memory = {name: tensor.clone() for name, tensor in self._memory.items()}
        parameters = {name: value.clone() for name, value in self.parameters.items()}
        return {"task": self.task, **memory, "parameters": parameters}

    def load_state_dict(self, state: State) -> Tree:
        """Restore a state of `state_dict` exactly, and return the observations `[B, O]`.

        CUDA graphs must be captured again, since the state contains the parameters.

        Raises:
            ValueError: the state belongs to another task or number of environments.
        """
        if state["task"] != self.task:
            raise ValueError(f"the state belongs to {state['task']!r}, but this environment is {self.task!r}")
        for name, tensor in self._memory.items():
            copy_into(tensor, state[name], name)
        self._seed(state["seeds"])
        self.set_parameters(**state["parameters"])
        return self._seen(self._library.tensor(self._observation(self._state)))

    def resized(self, rows: int) -> Self:
        """Return a batch of another size with the same task and options, but without a state.

        Load a state into it, in which all tensors except 0-dim parameters have `rows` along the last axis.
        """
        env = copy(self)
        env.rows = rows
        env._allocate()
        env._format = ActionFormat.of(env.action_space, rows)
        return env

    def close(self) -> None:  # noqa: B027
        """Do nothing: there is nothing to release."""

    def _constant(self, value: float) -> Array:
        """Return a constant array `[B]` for rewards."""
        constant = self._empty((self.rows,))
        constant[:] = value
        return constant

    def _box(self, high: Sequence[float | Tensor], low: Sequence[float | Tensor] | None = None) -> spaces.Box:
        """Return a box whose bounds are numbers or parameters; `low` defaults to `-high`."""
        upper = np.array([float(torch.as_tensor(bound).max()) for bound in high])
        lower = -upper if low is None else np.array([float(torch.as_tensor(bound).min()) for bound in low])
        dtype = np.float64 if self.dtype is torch.float64 else np.float32
        return spaces.Box(lower.astype(dtype), upper.astype(dtype), dtype=dtype)

    @abstractmethod
    def _derive(self, p: Mapping[str, Array]) -> None:
        """Compute derived constants from the parameters `p`, arrays `[1]` or `[B]`."""

    @abstractmethod
    def _spaces(self) -> tuple[spaces.Box, gymnasium.Space[Any]]:
        """Return the spaces of one observation and one action."""

    @abstractmethod
    def _advance(self, actions: Array) -> tuple[Array, Array]:
        """Advance the state in place by one step and return `(reward [B], terminated [B])`.

        Args:
            actions: actions `[B]`, in the dtype of the state.
        """

    @abstractmethod
    def _observe(self, state: Array, obs: Array) -> None:
        """Write the observations of `state [D, n]` into `obs [n, O]`."""
