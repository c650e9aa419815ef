"""Adapter from `gymnasium.vector.VectorEnv`, in any autoreset mode, to `operant.envs.base.BatchEnv`."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor

from operant import streams
from operant.envs.base import Step, Tree, is_array, is_mapping
from operant.envs.checks import ObservationCheck, RewardCheck, warn_of_seeding
from operant.envs.features import MASK
from operant.envs.infos import final_infos
from operant.envs.pooled_env import PooledVectorEnv
from operant.envs.spaces import ActionFormat, GymnasiumActions, ObservationFormat, reader, spaces_of
from operant.envs.workers import DEADLINE, WorkerError, Workers
from operant.errors import ExplainedError
from operant.state import State, clone
from operant.tensors import from_numpy, integers

_Ends = tuple[Tree, Tree, Tensor]
"""Observations after a step: `(obs, final_obs, valid)`."""
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Types of the same size as those whose rows PyTorch cannot replace."""


class RestoreError(ExplainedError, RuntimeError):
    """Raised if replayed episodes of an environment differ from the saved ones."""


class GymnasiumEnv:
    """Batch of the environments of a Gymnasium vector environment.

    The autoreset mode determines where the final observation is and what resets the environment:

    - DISABLED: this adapter resets environments in the same step, and seeds every episode with
      `operant.streams.episode_seed`. The actions of the current episodes are stored, so that the state can be saved,
      and restored by replaying them. The environment must be deterministic given its reset seed.
    - SAME_STEP: the environment resets itself in the same step, and returns the final observations in `info`.
    - NEXT_STEP: the environment resets itself in the next step; it ignores that action, and the transition is marked
      invalid.

    In the last two modes, resets use a random stream that cannot be saved. Sync and async vector environments get one
    seed per environment; others, which have a single stream, get one combined seed.

    Attributes:
        task: Gymnasium id, or the name of the class if the environment is not registered.
        rows: number of environments, B.
        observation_space: space of one observation, as tensors.
        action_space: space of one action, as in `operant.envs.spaces.GymnasiumActions`: discrete actions start at 0,
            and shapes have at most one axis.
        device: device of observations and actions.
        always_valid: false in mode NEXT_STEP, and if lost workers are replaced.
        resets_late: whether environments reset themselves one step after the end of an episode (NEXT_STEP).
        begins_anew: whether the last loaded state was one `without_episodes`.
        env_kwargs: keyword arguments of the environments' constructor.
        spec: spec of the task; None unless created by `operant.envs.make`.
    """

    def __init__(
        self,
        env: VectorEnv,
        seeds: Sequence[int],
        *,
        task: str | None = None,
        device: str | torch.device = "cpu",
        deadline: float = DEADLINE,
        check: bool = True,
        check_seeding: bool = False,
        changes: bool = False,
    ) -> None:
        """Wrap `env`, which then belongs to the adapter.

        Args:
            env: vector environment.
            seeds: one non-negative integer per environment.
            task: Gymnasium id; default: that of the environment's registration.
            device: device of observations.
            deadline: time limit in seconds for a reply of a worker process.
            check: whether to check observations against the space (see `operant.envs.checks.ObservationCheck`); masks
                are always checked.
            check_seeding: whether the first `reset` resets environment 0 twice, and warns if its observations differ.
            changes: whether the environments change with their number of steps over episodes; then the option `"steps"`
                of `reset` has the steps before the episode, so that they resume with it.

        Raises:
            ValueError: the autoreset mode is unknown, the number of seeds is wrong, or the deadline is not positive.
            TypeError: an observation or action space has no tensor form.
        """
        self._env = env
        self._mode = _autoreset_mode(env)
        self._ends: Callable[[Tree, np.ndarray, dict[str, Any]], _Ends] = {
            AutoresetMode.DISABLED: self._ends_by_us,
            AutoresetMode.SAME_STEP: self._ends_in_same_step,
            AutoresetMode.NEXT_STEP: self._ends_in_next_step,
        }[self._mode]
        self.task = task or (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)
        self._workers = Workers(env, task=self.task, deadline=deadline)
        self.rows, self.device = env.num_envs, torch.device(device)
        restarts = isinstance(env.unwrapped, PooledVectorEnv) and env.unwrapped.pool.lost_workers == "restart"
        self.resets_late = self._mode is AutoresetMode.NEXT_STEP
        self.always_valid = not self.resets_late and not restarts
        self._observations = ObservationFormat.of(spaces_of(env).single_observation_space, self.device)
        self.observation_space = self._observations.space
        self._gymnasium_actions = GymnasiumActions.of(spaces_of(env).single_action_space)
        self.action_space = self._gymnasium_actions.space
        self._actions = ActionFormat.of(self.action_space, self.rows)
        looks = ObservationCheck(self.task, spaces_of(env).single_observation_space, self.action_space, whole=check)
        self._check = None if looks.idle else looks
        self._check_rewards = RewardCheck(self.task)
        self._check_seeding = check_seeding and self._mode is AutoresetMode.DISABLED
        self._reward, self._flags = reader(self.device, np.float32), reader(self.device, np.bool_)
        self._seeds = self._checked_seeds(seeds)
        self._episode, self._age = np.zeros(self.rows, np.int64), np.zeros(self.rows, np.int64)
        self._before = np.zeros(self.rows, np.int64) if changes else None
        self._log: deque[np.ndarray] = deque()
        self._resetting = np.zeros(self.rows, np.bool_)
        self._valid = torch.ones(self.rows, dtype=torch.bool, device=self.device)
        self._obs: Tree | None = None
        self._closed = False
        self.begins_anew = False
        self.env_kwargs: dict[str, Any] = {}
        self.spec: EnvSpec | None = None

    @property
    def singles(self) -> Sequence[gymnasium.Env[Any, Any]]:
        """The single environments if they are in this process; otherwise empty."""
        return self._env.envs if isinstance(self._env, SyncVectorEnv) else ()

    def _checked_seeds(self, seeds: Sequence[int]) -> list[int]:
        if len(seeds) != self.rows or not all(seed >= 0 for seed in seeds):
            raise ValueError(f"{self.rows} non-negative seeds are needed, one per environment; got {list(seeds)}")
        return [int(seed) for seed in seeds]

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every environment and return the observations `[B, ...]`.

        Args:
            seeds: one non-negative integer per environment; default: the current seeds.

        Raises:
            ValueError: the number of seeds is wrong, or one is negative.
            EnvError: the environment raised an error.
        """
        if seeds is not None:
            self._seeds = self._checked_seeds(seeds)
        self._episode[:], self._age[:], self._resetting[:] = 0, 0, False
        self._log.clear()
        if self._before is not None:
            self._before[:] = 0
        obs = self._start_all()
        if self._check is not None:
            self._check(obs, self._where)
        self._obs = self._observations.read(obs)
        if self._check_seeding:
            self._warn_unless_repeatable()
        return self._obs

    def _warn_unless_repeatable(self) -> None:
        """Start the episode of environment 0 again, and warn, once, if its first observation differs."""
        self._check_seeding, before = False, clone(self._obs)
        self._obs = self._observations.read(self._restart(np.arange(self.rows) == 0))
        if _differing_rows(before, self._obs):
            warn_of_seeding(self.task)

    def _where(self, row: int) -> str:
        """Return the index of an environment for messages, with its seed and number of steps to reproduce it."""
        if self._mode is not AutoresetMode.DISABLED:
            return f"environment {row}"
        seed = streams.episode_seed(self._seeds[row], int(self._episode[row]))
        return f"environment {row}, {self._age[row]} steps after reset(seed={seed})"

    def _reset_seeds(self) -> Any:
        if self._mode is AutoresetMode.DISABLED:
            return self._episode_seeds(np.ones(self.rows, np.bool_))
        if isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            return self._seeds
        return streams.integer(self._seeds[0], "vector environment", *self._seeds[1:])

    def _episode_seeds(self, rows: np.ndarray) -> list[int | None]:
        """Return the seeds of the current episodes of the masked environments, None for others."""
        seeds: list[int | None] = [None] * self.rows
        for row in np.flatnonzero(rows):
            seeds[row] = streams.episode_seed(self._seeds[row], int(self._episode[row]))
        return seeds

    def step(self, actions: Tensor) -> Step:
        """Apply one action per environment: int64 `[B]` or `[B, K]` for discrete spaces, floating `[B, A]` for boxes.

        Raises:
            ValueError: the actions have a wrong shape, or require gradients.
            TypeError: the actions have a wrong dtype.
            EnvError: the environment raised an error.
            RuntimeError: `reset` was not called, or a worker process died or hangs.
        """
        if self._obs is None:
            raise RuntimeError("reset() must be called once before step()")
        self._actions.check(actions)
        chosen = self._gymnasium_actions.write(actions.cpu().numpy())
        if self._mode is AutoresetMode.DISABLED:
            self._log.append(chosen.copy())  # the environment may modify its inputs
            self._age += 1
        observed, rewards, terminations, truncations, info = self._workers.ask(self._env.step, chosen)
        ended = terminations | truncations
        if "lost" not in info:
            self._check_rewards(rewards, self._where)
            if self._check is not None:
                self._check(observed, self._where, None if self._mode is AutoresetMode.SAME_STEP else ended)
        reward, terminated, truncated = self._reward(rewards), self._flags(terminations), self._flags(truncations)
        self._obs, final_obs, valid = self._ends(self._observations.read(observed), ended, info)
        infos = final_infos(info.get("final_info", info), ended, self.device) if info else None
        return Step(self._obs, reward, terminated, truncated, final_obs, valid, reward, infos)

    def _ends_by_us(self, obs: Tree, ended: np.ndarray, info: dict[str, Any]) -> _Ends:
        if not ended.any():
            return obs, obs, self._valid
        valid = self._valid if "lost" not in info else self._flags(~info["lost"])
        self._episode[ended] += 1
        if self._before is not None:
            self._before[ended] += self._age[ended]
        self._age[ended] = 0
        while len(self._log) > self._age.max():
            self._log.popleft()
        return self._observations.read(self._restart(ended)), obs, valid

    def restart(self, rows: Tensor) -> Tree:
        """Start the current episodes of some environments again, from the same seeds, after their models have changed.

        Environments that reset themselves (SAME_STEP, NEXT_STEP) are left as they are.

        Args:
            rows: bool `[B]`, true for environments whose episodes have just started.

        Raises:
            EnvError: the environment raised an error.
            RuntimeError: `reset` was not called.
        """
        if self._obs is None:
            raise RuntimeError("reset() must be called once before restart()")
        if self._mode is AutoresetMode.DISABLED:
            self._obs = self._observations.read(self._restart(rows.cpu().numpy()))
        return self._obs

    def _start_all(self) -> Any:
        """Start the current episodes of all environments, and return their observations."""
        if self._before is not None:
            return self._restart(np.ones(self.rows, np.bool_))
        obs, _ = self._workers.ask(self._env.reset, seed=self._reset_seeds())
        return obs

    def _restart(self, rows: np.ndarray) -> Any:
        """Start the current episodes of the masked environments, and return all observations."""
        obs, seeds = None, self._episode_seeds(rows)
        for masked, options in self._starts(rows):
            obs, _ = self._workers.ask(self._env.reset, seed=seeds, options={"reset_mask": masked, **options})
        if self._check is not None:
            self._check(obs, self._where)
        return obs

    def _starts(self, rows: np.ndarray) -> list[tuple[np.ndarray, dict[str, int]]]:
        """Return masks of environments that start together, with their options of `reset`."""
        if self._before is None:
            return [(rows.copy(), {})]
        counts = np.unique(self._before[rows])
        return [(rows & (self._before == count), {"steps": int(count)}) for count in counts]

    def _ends_in_same_step(self, obs: Tree, ended: np.ndarray, info: dict[str, Any]) -> _Ends:
        if not ended.any():
            return obs, obs, self._valid
        if "final_obs" not in info:
            raise RuntimeError(
                f"{self.task} announces SAME_STEP autoreset, but step() ended episodes without info['final_obs']"
            )
        rows = np.flatnonzero(ended)
        final = self._observations.read(
            _rows_of(spaces_of(self._env).single_observation_space, info["final_obs"], rows)
        )
        return obs, _with_rows(obs, from_numpy(rows).to(self.device), final), self._valid

    def _ends_in_next_step(self, obs: Tree, ended: np.ndarray, _: dict[str, Any]) -> _Ends:
        valid = self._flags(~self._resetting) if self._resetting.any() else self._valid
        self._resetting = ended
        return obs, obs, valid

    @property
    def gymnasium_action_space(self) -> gymnasium.Space[Any]:
        """The space of an action of one environment, which `action_space` may represent by another."""
        return spaces_of(self._env).single_action_space

    def state_dict(self) -> State:
        """Return the seeds, the numbers of the current episodes and their actions.

        Raises:
            RuntimeError: the environment resets itself (SAME_STEP, NEXT_STEP), or `reset` was not called.
        """
        self._require_replay()
        if self._obs is None:
            raise RuntimeError("reset() must be called once before state_dict()")
        space = self.gymnasium_action_space
        nothing = np.zeros((0, self.rows, *(space.shape or ())), space.dtype)
        before = {} if self._before is None else {"before": from_numpy(self._before.copy())}
        return {
            "task": self.task,
            "seeds": list(self._seeds),
            "episode": from_numpy(self._episode.copy()),
            "age": from_numpy(self._age.copy()),
            "actions": from_numpy(np.stack(self._log) if self._log else nothing),
            "obs": clone(self._obs),
            **before,
        }

    def load_state_dict(self, state: State) -> Tree:
        """Replay the saved episodes up to the saved step, and return the observations `[B, ...]`.

        All environments are replayed in parallel and finish together; environments with shorter episodes first take
        earlier actions, or allowed ones if observations have a mask. With a state `without_episodes`, new episodes
        start.

        Raises:
            ValueError: the state belongs to another task or number of environments.
            EnvError: the environment raised an error.
            RestoreError: an observation differs from the saved one: the environment is not deterministic.
            RuntimeError: the environment resets itself (SAME_STEP, NEXT_STEP).
        """
        self._require_replay()
        if state["task"] != self.task:
            raise ValueError(f"the state belongs to {state['task']!r}, but this environment is {self.task!r}")
        self._seeds = self._checked_seeds(state["seeds"])
        self._episode, self._age = state["episode"].numpy().copy(), state["age"].numpy().copy()
        self._log = deque(state["actions"].numpy().copy())
        if self._before is not None and "before" in state:
            self._before = state["before"].numpy().copy()
        obs = self._observations.read(self._replay())
        self.begins_anew = state["obs"] is None
        wrong = [] if self.begins_anew else _differing_rows(obs, state["obs"])
        if wrong:
            self._not_deterministic(wrong, "gave another observation than the saved one")
        self._obs = obs
        return obs

    def _replay(self) -> Any:
        """Replay the logged actions, right-aligned in time, and return the last observations."""
        self._obs = None
        obs = self._start_all()
        for step, logged in enumerate(self._log):
            left = len(self._log) - step
            waiting = self._age < left
            actions = logged.copy()
            if is_mapping(obs) and MASK in obs:
                actions[waiting] = self._gymnasium_actions.allowed(obs[MASK])[waiting]
            obs, _, terminations, truncations, info = self._workers.ask(self._env.step, actions)
            ended = terminations | truncations
            if "lost" in info:
                raise WorkerError(f"{self.task} lost a worker process while episodes were restored; resume once more")
            if (ended & ~waiting).any():
                self._not_deterministic(np.flatnonzero(ended & ~waiting).tolist(), "ended the episode too early")
            restarting = (ended & waiting) | (self._age == left - 1)
            if restarting.any():
                obs = self._restart(restarting)
        return obs

    def _not_deterministic(self, rows: list[int], what: str) -> NoReturn:
        raise RestoreError(
            f"{self.task} cannot be restored: environments {rows}, replayed from the same seeds with the same actions, "
            f"{what}. The environment is not deterministic given its reset seed, or its version has changed. "
            "`operant resume --new-episodes` continues with new episodes. For an exact resume let the environment draw "
            "random numbers only from self.np_random, which super().reset(seed=seed) seeds, and let its wrappers keep "
            "nothing from one episode to the next"
        )

    def _require_replay(self) -> None:
        if self._mode is not AutoresetMode.DISABLED:
            raise RuntimeError(
                f"the state of {self.task} cannot be saved or restored: with {self._mode.name} autoreset it resets "
                "itself with random numbers that are not accessible. Create the vector environment with "
                "autoreset_mode=AutoresetMode.DISABLED, as operant.envs.make does"
            )

    def close(self) -> None:
        """Close the vector environment, and kill lost worker processes. Can be called twice."""
        if not self._closed:
            self._closed = True
            self._workers.close()


def without_episodes(state: Any) -> Any:
    """Return a state whose Gymnasium environments start new episodes when loaded, instead of replaying the saved ones.

    Args:
        state: state of a learner or of another object with environments.
    """
    if isinstance(state, list):
        return [without_episodes(part) for part in cast(list[Any], state)]
    if not isinstance(state, dict):
        return state
    state = cast(dict[str, Any], state)
    if {"episode", "age", "actions", "obs"} <= state.keys():
        before = {"before": state["before"] + state["age"]} if "before" in state else {}
        restarted = {"age": torch.zeros_like(state["age"]), "actions": state["actions"][:0], "obs": None}
        return {**state, **restarted, **before}
    return {key: without_episodes(part) for key, part in state.items()}


def _autoreset_mode(env: VectorEnv) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise ValueError(
            f"{env} has metadata['autoreset_mode'] = {mode!r}, expected one of "
            f"{', '.join(str(known) for known in AutoresetMode)}, which determines where final observations are"
        ) from None


def _rows_of(space: gymnasium.Space[Any], batch: Any, rows: np.ndarray) -> Any:
    """Return the given rows of a batch, which is an array of objects, one per row, or batched arrays."""
    if is_array(batch) and batch.dtype == object:
        items = [batch[row] for row in rows]
        return concatenate(space, items, create_empty_array(space, len(items)))
    if is_mapping(batch):
        return {key: _rows_of(space, part, rows) for key, part in batch.items()}
    return np.asarray(batch)[rows]


def _with_rows(tree: Tree, rows: Tensor, new: Any) -> Tree:
    """Return a copy of `tree` with `rows` replaced by those of `new`."""
    if isinstance(tree, Tensor):
        signed = _SIGNED.get(tree.dtype, tree.dtype)
        return tree.view(signed).index_copy(0, rows, new.view(signed)).view(tree.dtype)
    return {key: _with_rows(part, rows, new[key]) for key, part in tree.items()}


def _differing_rows(left: Tree, right: Any) -> list[int]:
    """Return the indices of the rows in which two trees differ; NaN equals NaN."""
    if not isinstance(left, Tensor):
        return sorted({row for key, part in left.items() for row in _differing_rows(part, right[key])})
    equal = torch.isclose(left.cpu().double(), right.cpu().double(), rtol=0.0, atol=0.0, equal_nan=True)
    return integers((~equal).reshape(len(left), -1).any(1).nonzero().view(-1))
