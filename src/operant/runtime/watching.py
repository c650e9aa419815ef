"""Rendered episodes of a policy in a Gymnasium environment."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

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
from operant.runtime.predicting import first_leaf, for_seeds, holding, seen

Frame = NDArray[np.uint8]
"""An image `[height, width, 3]`."""


class Moment(NamedTuple):
    """Progress of an episode.

    Attributes:
        step: number of actions so far.
        score: undiscounted sum of rewards so far.
        value: estimated value of the current state, or None.
    """

    step: int
    score: float
    value: float | None


class Scene(NamedTuple):
    """A step of an episode with the outputs of the policy.

    Attributes:
        frame: rendered image; None if a window shows it, or without rendering.
        obs: flattened observation of the environment; the first entry of a dictionary.
        step: number of actions so far.
        score: undiscounted sum of rewards so far.
        reward: reward of the latest action.
        told: outputs of policy and critic for the state (`operant.runtime.learner.Describing`); empty at the end.
        action: action of the policy in this state, as numbers; None at the end.
        terminated: whether the episode terminated here.
        ended: whether the episode terminated here or was truncated.
    """

    frame: Frame | None
    obs: list[float]
    step: int
    score: float
    reward: float
    told: Mapping[str, list[float]]
    action: list[float] | None
    terminated: bool
    ended: bool

    @property
    def value(self) -> float | None:
        """Value of the state, 0 after termination; None without an estimate."""
        return 0.0 if self.terminated else self.told.get("value", [None])[0]


class Played(NamedTuple):
    """Result of rendered episodes.

    Attributes:
        scores: undiscounted sum of rewards of each episode.
        cut: number of episodes that `max_steps` truncated.
    """

    scores: list[float]
    cut: int


class Stage:
    """Rendered environment with the policy of one seed.

    The first episode is the same as the first of an evaluation in the Gymnasium environment.

    Args:
        policy: policy of S seeds.
        task: id of a Gymnasium environment.
        seeds: all S seeds of the policy.
        index: index of the seed to render.
        noise: function that draws the noise `[1, ...]` for sampling an action of this seed. Default: greedy actions.
        wrap: function that wraps the environment, if the policy needs transformed observations.
        live: whether to open a window that shows every step in real time, instead of returning frames.
        blind: whether to disable rendering, for environments that do not support it.
        env_kwargs: keyword arguments of the environment's constructor.
        device: device of the policy.
        max_steps: number of steps after which an episode is truncated, in addition to limits of the task. Default: no
            limit.
        wrappers: wrappers of the training environments; those used in evaluations transform
            the observations here, too.
        describe: source of the outputs `told` (`operant.runtime.learner.Describing`). Default: no outputs.

    Attributes:
        moment: progress at the latest frame.
        frames_per_second: frames per second in real time.

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
        blind: bool = False,
        env_kwargs: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        max_steps: int | None = None,
        wrappers: Sequence[Wrapper] = (),
        describe: Callable[[Tree, Tree | None], Mapping[str, Tensor]] | None = None,
    ):
        if not 0 <= index < len(seeds):
            raise ValueError(f"seed_index must be between 0 and {len(seeds) - 1} for {len(seeds)} seeds, got {index}")
        self._describe, self.moment = describe, Moment(0, 0.0, None)
        self._wrappers = holding(wrappers, task)
        mode = None if blind else "human" if live else "rgb_array"
        spec = specified(task, env_kwargs)
        self.frames_per_second = _check_rendering(spec, mode)
        own = spec.max_episode_steps
        self._longest = max_steps if max_steps is not None and (own is None or own > max_steps) else None
        self._policy, self._count, self._index, self._noise = policy, len(seeds), index, noise
        self._makes_frames = mode == "rgb_array"

        def make() -> gymnasium.Env[Any, Any]:
            try:
                env = wrap(make_single(spec, render_mode=mode))
                return env if self._longest is None else TimeLimit(env, self._longest)
            except ValueError as error:
                if "render_mode" not in str(error):
                    raise
                raise ValueError(
                    f"{task} cannot be rendered, since its constructor has no argument render_mode: {error}"
                ) from error

        # Only this mode returns the last state of an episode: the reset comes one step later.
        self._shown = SyncVectorEnv([make], copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        (row,) = streams.row_seeds([seeds[index]], 1, "evaluation")
        self._env = GymnasiumEnv(self._shown, [streams.episode_seed(row, 0)], task=task, device=device)

    def check(self) -> None:
        """Check that frames can be rendered.

        Raises:
            ValueError: `render()` returns no image.
        """
        self._env.reset()
        self._frame()

    def play(self, episodes: int, show: Callable[[Frame], object] = lambda frame: None) -> Played:
        """Play complete episodes.

        Args:
            episodes: number of episodes.
            show: function called with every frame, unless live.
        """
        scores, cut = list[float](), 0
        for scene in self.scenes():
            self.moment = Moment(scene.step, scene.score, scene.value)
            if scene.frame is not None:
                show(scene.frame)
            if scene.ended:
                scores.append(scene.score)
                cut += scene.step == self._longest and not scene.terminated
                if len(scores) == episodes:
                    break
        return Played(scores, cut)

    def scenes(self) -> Iterator[Scene]:
        """Play one episode after another, and yield a scene per step."""
        obs, hidden_state = self._env.reset(), None
        score, reward, steps, terminated, ended = 0.0, 0.0, 0, False, False
        while True:
            known = seen(for_seeds(obs, self._count), self._wrappers)
            told = {} if ended or self._describe is None else self._own(self._describe(known, hidden_state))
            frame = self._frame()
            # At the end of an episode the action is ignored, and only computed if another episode follows.
            chosen = None if ended else self._act(known, hidden_state)
            yield Scene(
                frame,
                _floats(first_leaf(obs)[0]),
                steps,
                score,
                reward,
                told,
                None if chosen is None else _floats(chosen[0][self._index]),
                terminated,
                ended,
            )
            actions, hidden_state = chosen or self._act(known, hidden_state)
            step = self._env.step(actions[self._index])
            obs, valid = step.obs, bool(step.valid)  # an invalid step is the reset of an episode
            hidden_state = hidden_state if valid else None
            reward = float(step.score) * valid
            score, steps = (score + reward, steps + 1) if valid else (0.0, 0)
            terminated = bool(step.terminated)
            ended = bool(step.terminated | step.truncated)

    def _act(self, known: Tree, hidden_state: Tree | None) -> tuple[Tensor, Tree | None]:
        with torch.no_grad():
            noise = None if self._noise is None else cast(Tensor, for_seeds(self._noise(), self._count))
            return self._policy.act(known, hidden_state, noise)

    def _own(self, told: Mapping[str, Tensor]) -> dict[str, list[float]]:
        """Return the outputs for the single observation of the rendered seed."""
        return {name: _floats(values[self._index, 0]) for name, values in told.items()}

    def close(self) -> None:
        """Close the window and the environment."""
        self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _frame(self) -> Frame | None:
        """Return the rendered frame; None with a window or without rendering."""
        if not self._makes_frames:
            return None
        images: Any = self._shown.render()
        if not isinstance(images[0], np.ndarray) or images[0].ndim != 3:
            raise ValueError(
                f"render() of {self._env.task} must return an array [height, width, 3] of bytes "
                f"if render_mode is 'rgb_array', got {images[0]!r:.80}"
            )
        return np.ascontiguousarray(images[0], dtype=np.uint8)


def _floats(tensor: Tensor) -> list[float]:
    return [float(number) for number in tensor.cpu().double().flatten().numpy()]


def _check_rendering(spec: EnvSpec, mode: str | None) -> float:
    """Return the frames per second of a task.

    Raises:
        ValueError: the task does not support this render mode.
    """
    env, task = make_single(spec), spec.id
    metadata = env.metadata
    env.close()
    known = metadata.get("render_modes", [])
    if mode is not None and mode not in known:
        raise ValueError(
            f"{task} cannot be rendered as {mode!r}; it supports {known}. `operant evaluate` needs no frames"
        )
    return float(metadata.get("render_fps", 30))
