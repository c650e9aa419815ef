"""Policies with Gymnasium's interface, from NumPy observations to actions for `env.step`."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray
from torch import Tensor

from operant.envs import Tree, Wrapper, changes_observations, make
from operant.envs.atari import is_atari
from operant.envs.checks import blocked_rows
from operant.envs.features import MASK
from operant.envs.registry import make_single, specified
from operant.envs.spaces import GymnasiumActions, ObservationFormat, is_multi_discrete
from operant.runtime.learner import Policy

Wrap = Callable[[gymnasium.Env[Any, Any]], gymnasium.ObservationWrapper[Any, Any, Any]]


class Predictor:
    """Predictor of actions by the policy of one of S seeds.

    Args:
        policy: policy of S seeds.
        task: Gymnasium id; an environment is created for its spaces, and closed.
        seeds: number of seeds, S.
        wrap: function that wraps the environment, if the policy uses transformed observations.
        actions: conversion of the policy's actions to an action space.
        env_kwargs: keyword arguments of the environment's constructor.
        wrappers: wrappers of the training environments; those with `in_evaluation` transform observations.
        device: device of the policy.

    Raises:
        ValueError: observations of a wrapper depend on earlier steps.
    """

    def __init__(
        self,
        policy: Policy,
        task: str,
        *,
        seeds: int,
        wrap: Wrap | None = None,
        actions: Callable[[gymnasium.Space[Any]], GymnasiumActions] = GymnasiumActions.of,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Wrapper] = (),
        device: str | torch.device = "cpu",
    ):
        self._policy, self._task, self._seeds = policy, task, seeds
        env = make_single(specified(task, env_kwargs))
        env.close()
        self._wrapper = wrap(env) if wrap else None
        self._space = env.observation_space
        self._actions, self._write = actions(env.action_space)
        box: Any = env.action_space
        self._bounds = (box.low, box.high) if isinstance(env.action_space, spaces.Box) else None
        if env.spec is not None and is_atari(env.spec):
            game = make(task, 1, [0])
            self._space = game.observation_space
            game.close()
        seen = self._wrapper.observation_space if self._wrapper else self._space
        self._wrappers = holding(wrappers, task)
        self._device = torch.device(device)
        self._format = ObservationFormat.of(seen, self._device)

    def predict(
        self,
        observations: Any,
        hidden_state: NDArray[Any] | None = None,
        *,
        seed_index: int = 0,
        noise: Callable[[int], Tensor] | None = None,
    ) -> tuple[Any, NDArray[Any] | None]:
        """Select an action for one observation, or for each of a batch (see `operant.Trained.predict`).

        Args:
            observations: one observation, or N stacked along the first axis.
            hidden_state: hidden state from the previous call, `[...]` or `[N, ...]`; None at the start of an episode.
            seed_index: index of the seed that acts.
            noise: function that draws the noise `[N, ...]` of N sampled actions of this seed. Default: greedy actions.

        Raises:
            ValueError: there is no such seed, observations or hidden state have a wrong shape, NaN or Inf, a mask
                allows no action, or a policy without a hidden state is given one.
        """
        if not isinstance(cast(object, seed_index), Integral):
            raise ValueError(f'seed_index must be an integer or "best", got {seed_index!r}')
        if not 0 <= seed_index < self._seeds:
            raise ValueError(
                f"seed_index must lie between 0 and {self._seeds - 1}, as there are {self._seeds} seeds; "
                f"got {seed_index}"
            )
        rows = self._rows(self._space, observations)
        single = rows is None
        rows = rows or 1
        read = self._read(_stacked(observations) if single else observations, rows)
        self._require_sound(read)
        obs = seen(for_seeds(read, self._seeds), self._wrappers)
        if hidden_state is not None and not single and len(hidden_state) != rows:
            raise ValueError(
                f"hidden_state has {len(hidden_state)} rows, but there are {rows} observations: one row per "
                "observation is needed"
            )
        before = None if hidden_state is None else torch.as_tensor(hidden_state[None] if single else hidden_state)
        with torch.no_grad():
            actions, after = self._policy.act(
                obs,
                None if before is None else for_seeds(before.to(self._device), self._seeds),
                None if noise is None else cast(Tensor, for_seeds(noise(rows), self._seeds)),
            )
        if hidden_state is not None and after is None:
            raise ValueError("hidden_state is for recurrent policies, and this policy has none: leave it out")
        chosen = self._to_gymnasium(actions[seed_index].cpu().numpy())
        kept = None if after is None else cast(Tensor, after)[seed_index].cpu().numpy()
        return (chosen[0], None if kept is None else kept[0]) if single else (chosen, kept)

    def _require_sound(self, obs: Tree, name: str = "") -> None:
        """Check that observations are finite, and that masks allow at least one action."""
        if isinstance(obs, Mapping):
            for key, part in obs.items():
                self._require_sound(part, f"{name}.{key}" if name else key)
            return
        if name == MASK and len(blocked := blocked_rows(obs.cpu().numpy(), self._actions)):
            raise ValueError(f"{MASK!r} of row {blocked[0]} allows no action of {self._task}: at least one is needed")
        if obs.is_floating_point() and not bool(obs.isfinite().all()):
            place: list[int] = cast(Any, (~obs.isfinite()).nonzero()[0]).tolist()
            value = float(obs[tuple(place)])
            raise ValueError(
                f"observations of {self._task} must be finite, but {name or 'the observation'} is {value:g} at "
                f"{place[1:]} of row {place[0]}"
            )

    def _rows(self, space: gymnasium.Space[Any], observations: Any) -> int | None:
        """Check shapes, and return the number of observations; None for a single one without a batch axis."""
        if isinstance(space, spaces.Dict | spaces.Tuple):
            return self._rows_of_parts(space, observations, named=isinstance(space, spaces.Dict))
        if _is_of_reset(observations):
            raise ValueError("the observation is a pair, as env.reset() returns: pass its first part, without the info")
        shape, one = np.shape(observations), space.shape or ()
        if shape == one:
            self._require_members(space, observations)
            return None
        if shape[1:] != one or len(shape) != len(one) + 1 or shape[0] < 1:
            raise ValueError(
                f"observations have shape {list(shape)}, but one of {self._task} has {list(one)}, "
                f"and a batch of them {['N', *one]}"
            )
        self._require_members(space, observations)
        return shape[0]

    def _require_members(self, space: gymnasium.Space[Any], observations: Any) -> None:
        """Check that numbers of a discrete space are in it, since networks have no input for others."""
        if not isinstance(space, spaces.Discrete) and not is_multi_discrete(space):
            return
        given = np.asarray(observations)
        if given.dtype.kind not in "biuf":
            raise ValueError(f"observations of {self._task} must be members of {space}, got {observations!r:.80}")
        size = space.n if isinstance(space, spaces.Discrete) else space.nvec
        inside = (given >= space.start) & (given < space.start + size) & (given % 1 == 0)
        if not inside.all():
            raise ValueError(f"observations of {self._task} must be members of {space}, got {given[~inside][0]}")

    def _rows_of_parts(self, space: Any, observations: Any, *, named: bool) -> int | None:
        keys: list[Any] = [*space] if named else [*range(len(space))]
        fits = isinstance(observations, Mapping) and {*keys} <= observations.keys()
        if not (fits if named else isinstance(observations, tuple) and len(cast(Any, observations)) == len(keys)):
            raise ValueError(
                f"observations of {self._task} must be a {'dictionary' if named else 'tuple'} with the parts {keys}, "
                f"got {observations!r}"
            )
        found = {self._rows(space[key], observations[key]) for key in keys}
        if len(found) > 1:
            raise ValueError(f"the parts {keys} of the observations differ in their number of rows")
        return found.pop()

    def _read(self, observations: Any, rows: int) -> Tree:
        """Convert a batch to tensors `[N, ...]` for the policy."""
        if self._wrapper is not None:
            batch = iterate(batch_space(self._space, rows), observations)
            observations = np.stack([self._wrapper.observation(row) for row in batch])
        return self._format.read(observations)

    def _to_gymnasium(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Convert the policy's actions `[N, ...]` to members of the action space."""
        chosen = self._write(actions)
        return np.clip(chosen, *self._bounds) if self._bounds else chosen


def holding(wrappers: Sequence[Wrapper], task: str) -> list[Wrapper]:
    """Return the wrappers that are used outside of training.

    Raises:
        ValueError: observations of a wrapper depend on earlier steps.
    """
    found = [wrapper for wrapper in wrappers if wrapper.in_evaluation]
    for wrapper in found:
        if wrapper.observation_space != wrapper.env.observation_space and not changes_observations(wrapper):
            raise ValueError(
                f"{wrapper.__class__.__name__} computes observations in step() from several observations of {task}: "
                "use an evaluation, which plays whole episodes, or change observations in Wrapper.observation only"
            )
    return found


def for_seeds(tree: Tree, seeds: int) -> Tree:
    """Expand a tree of `[N, ...]` to `[S, N, ...]`, equal for all S seeds."""
    return map_tree(tree, lambda part: part.expand(seeds, *part.shape))


def seen(obs: Tree, wrappers: Sequence[Wrapper]) -> Tree:
    """Transform observations `[S, N, ...]` by the wrappers, from the innermost to the outermost."""
    if not wrappers:
        return obs
    shape = first_leaf(obs).shape[:2]
    flat = map_tree(obs, lambda part: part.flatten(0, 1))
    for wrapper in wrappers:
        flat = wrapper.observation(flat)

    def apart(part: Tensor) -> Tensor:
        return part.reshape(*shape, *part.shape[1:])

    return map_tree(flat, apart)


def first_leaf(tree: Tree) -> Tensor:
    """Return the first tensor of a tree."""
    while isinstance(tree, Mapping):
        tree = next(iter(tree.values()))
    return tree


def map_tree(tree: Tree, function: Callable[[Tensor], Tensor]) -> Tree:
    """Apply a function to every tensor of a tree."""
    if isinstance(tree, Mapping):
        return {key: map_tree(part, function) for key, part in tree.items()}
    return function(tree)


def _stacked(observation: Any) -> Any:
    """Return a batch with one observation."""
    if isinstance(observation, Mapping):
        return {key: _stacked(part) for key, part in cast(Mapping[str, Any], observation).items()}
    if isinstance(observation, tuple):
        return tuple(_stacked(part) for part in cast(tuple[Any, ...], observation))
    return np.asarray(observation)[None]


def _is_of_reset(observations: object) -> bool:
    """Return whether something is what `reset` of an environment returns, an observation and a dictionary."""
    parts = cast(tuple[object, ...], observations) if isinstance(observations, tuple) else ()
    return len(parts) == 2 and isinstance(parts[1], Mapping)
