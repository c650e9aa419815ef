"""Rendered episodes of a policy in Gymnasium's own environment."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray
from torch import Tensor

from operant import streams
from operant.envs import GymnasiumEnv, Tree, Wrapper
from operant.envs.registry import make_single, specified
from operant.runtime.learner import Policy
from operant.runtime.predicting import holding, seen

Frame = NDArray[np.uint8]
"""An image `[height, width, 3]`."""


class Moment(NamedTuple):
    """Progress of an episode.

    Attributes:
        step: actions taken so far.
        score: rewards so far, undiscounted.
        value: of the current state by the policy's estimate, or None.
    """

    step: int
    score: float
    value: float | None


class Played(NamedTuple):
    """Shown episodes.

    Attributes:
        scores: undiscounted sum of rewards of each.
        cut: number of episodes that `max_steps` truncated.
    """

    scores: list[float]
    cut: int


class Stage:
    """A rendered environment with the policy of one seed.

    The first episode is the first one of an evaluation in Gymnasium's environment.

    Args:
        policy: acts for S seeds.
        task: a Gymnasium id.
        seeds: all S of the policy.
        index: of the acting seed.
        noise: draws the noise `[S, 1, ...]` of sampled actions. Default: greedy.
        wrap: wraps the environment, if the policy uses transformed observations.
        live: whether to open a window, at its own speed, instead of making frames.
        env_kwargs: parameters of one's own for the constructor of the environment.
        device: where the policy lives.
        max_steps: after which an episode is truncated; a task may have a shorter limit. Default: never.
        wrappers: of the environments that the policy has learned in; those that hold in evaluations change
            observations here, too.
        value: returns the value of an observation `[1, ...]`, for `moment`. Default: none.

    Attributes:
        moment: of the latest frame.
        frames_per_second: natural speed of the frames.

    Raises:
        ValueError: unknown seed, or the environment cannot be rendered.
    """

    def __init__(
        self,
        policy: Policy,
        task: str,
        *,
        seeds: tuple[int, ...],
        index: int = 0,
        noise: Callable[[], Tensor] | None = None,
        wrap: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = lambda env: env,
        live: bool = False,
        env_kwargs: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        max_steps: int | None = None,
        wrappers: Sequence[Wrapper] = (),
        value: Callable[[Tree], float] | None = None,
    ):
        if not 0 <= index < len(seeds):
            raise ValueError(
                f"index must lie between 0 and {len(seeds) - 1}, as there are {len(seeds)} seeds; got {index}"
            )
        self._value, self.moment = value, Moment(0, 0.0, None)
        self._wrappers = holding(wrappers, task)
        mode = "human" if live else "rgb_array"
        spec = specified(task, env_kwargs)
        self.frames_per_second = _check_rendering(spec, mode)
        own = spec.max_episode_steps
        self._longest = max_steps if max_steps is not None and (own is None or own > max_steps) else None
        self._policy, self._count, self._index, self._noise, self._live = policy, len(seeds), index, noise, live

        def make() -> gymnasium.Env[Any, Any]:
            try:
                env = wrap(make_single(spec, render_mode=mode))
                return env if self._longest is None else TimeLimit(env, self._longest)
            except ValueError as error:
                if "render_mode" not in str(error):
                    raise
                raise ValueError(f"{task} cannot be rendered: its constructor takes no render_mode: {error}") from error

        # Only this mode shows the end of an episode: the reset comes one step later.
        self._shown = SyncVectorEnv([make], copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        (row,) = streams.row_seeds([seeds[index]], 1, "evaluation")
        self._env = GymnasiumEnv(self._shown, [streams.episode_seed(row, 0)], task=task, device=device)

    def play(self, episodes: int, show: Callable[[Frame], object] = lambda frame: None) -> Played:
        """Play whole episodes.

        Args:
            episodes: number of episodes.
            show: called with every frame, unless live.
        """
        obs, memory = self._env.reset(), None
        scores, score, steps, cut = list[float](), 0.0, 0, 0
        self._note(steps, score, obs)
        self._render(show)
        while True:
            with torch.no_grad():
                noise = self._noise() if self._noise else None
                actions, memory = self._policy.act(seen(self._for_all(obs), self._wrappers), memory, noise)
            step = self._env.step(actions[self._index])
            obs = step.obs
            if not bool(step.valid):
                memory = None
            score += float(step.score) * bool(step.valid)
            steps = (steps + 1) * bool(step.valid)  # a step that is not valid begins an episode
            self._note(steps, score, None if bool(step.terminated) else obs)
            self._render(show)
            if bool(step.terminated | step.truncated):
                scores.append(score)
                cut += steps == self._longest and not bool(step.terminated)
                score = 0.0
                if len(scores) == episodes:
                    return Played(scores, cut)

    def close(self) -> None:
        """Close the window and the environment."""
        self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _for_all(self, obs: Tree) -> Tree:
        """View an observation `[1, ...]` as `[S, 1, ...]`, the same for every seed."""
        if isinstance(obs, Mapping):
            return {key: self._for_all(part) for key, part in obs.items()}
        return obs.expand(self._count, *obs.shape)

    def _note(self, step: int, score: float, obs: Tree | None) -> None:
        """Update the progress of the episode; at an end (no observation) the value is 0."""
        value = None
        if self._value is not None:
            value = 0.0 if obs is None else self._value(obs)
        self.moment = Moment(step, score, value)

    def _render(self, show: Callable[[Frame], object]) -> None:
        if not self._live:
            pictures: Any = self._shown.render()
            if not isinstance(pictures[0], np.ndarray) or pictures[0].ndim != 3:
                raise ValueError(
                    f"{self._env.task} shows no image: its render() must return an array [height, width, 3] of bytes "
                    f"where render_mode is 'rgb_array', got {pictures[0]!r:.80}"
                )
            show(np.ascontiguousarray(pictures[0], dtype=np.uint8))


def _check_rendering(spec: EnvSpec, mode: str) -> float:
    """Return the frames per second of a task; raise if it cannot be rendered."""
    env, task = make_single(spec), spec.id
    metadata = env.metadata
    env.close()
    known = metadata.get("render_modes", [])
    if mode not in known:
        raise ValueError(f"{task} cannot be rendered as {mode!r}; it supports {known}")
    return float(metadata.get("render_fps", 30))
