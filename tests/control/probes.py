"""Probes: small tasks with known values and optimal policies, each of which tests one ability of a learner.

They follow Jones 2021, "Debugging reinforcement learning systems without the agonizing pain": the first probe that a
learner fails shows its error. Everything is computed from `(seed, episode, step)` of each environment.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from operant.envs.base import Step
from operant.state import State, copy_into


class Solution(NamedTuple):
    """Values and optimal actions of K observations.

    Attributes:
        obs: ``[K, D]``.
        values: of the best policy, ``[K]``.
        actions: the best ones, ``[K]`` or ``[K, A]`` as the environment takes them; None if all are equally good.
    """

    obs: Tensor
    values: Tensor
    actions: Tensor | None = None


class Probe:
    """`B` environments (a `BatchEnv`) of a task that is defined by `lengths`, `observe` and `reward`.

    Attributes:
        sign: alternates between 1 and -1 from one episode to the next, ``[B]``.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space: gymnasium.Space = gymnasium.spaces.Discrete(2)
    device = torch.device("cpu")
    always_valid = True
    truncates: ClassVar[bool] = False
    """Whether episodes are truncated, not terminated."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.task, self.rows = type(self).__name__, len(seeds)
        self._state = torch.zeros(3, self.rows, dtype=torch.int64)
        self.seed, self.episode, self.elapsed = self._state
        self.reset(seeds)

    def lengths(self) -> Tensor | int:
        """Return the length of the current episode of each environment."""
        return 1

    def observe(self) -> Tensor:
        """Return the observations `[B]`."""
        return torch.zeros(self.rows)

    def reward(self, actions: Tensor) -> Tensor:
        """Return the rewards `[B]` of `actions` at the current step."""
        return torch.ones(self.rows)

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        raise NotImplementedError

    @property
    def sign(self) -> Tensor:
        return 1.0 - 2.0 * ((self.seed + self.episode) % 2)

    def reset(self, seeds: Sequence[int] | None = None) -> Tensor:
        if seeds is not None:
            self.seed[:] = torch.tensor(seeds)
        self.episode.zero_()
        self.elapsed.zero_()
        return self.observe().unsqueeze(1)

    def step(self, actions: Tensor) -> Step:
        reward = self.reward(actions)
        self.elapsed += 1
        ended = self.elapsed >= self.lengths()
        final = self.observe().unsqueeze(1)
        self.episode += ended
        self.elapsed *= ~ended
        nowhere, everywhere = torch.zeros_like(ended), torch.ones_like(ended)
        terminated, truncated = (nowhere, ended) if self.truncates else (ended, nowhere)
        return Step(self.observe().unsqueeze(1), reward, terminated, truncated, final, everywhere, reward)

    def state_dict(self) -> State:
        return {"rows": self._state.clone()}

    def load_state_dict(self, state: State) -> Tensor:
        copy_into(self._state, state["rows"], "rows")
        return self.observe().unsqueeze(1)

    def close(self) -> None:
        pass


class Constant(Probe):
    """Reward 1 for every action: does the critic learn a constant?"""

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        return Solution(torch.zeros(1, 1), torch.ones(1))


class Observed(Probe):
    """The reward is the observation: does the critic use the observation?"""

    def observe(self) -> Tensor:
        return self.sign

    def reward(self, actions: Tensor) -> Tensor:
        return self.sign

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        return Solution(torch.tensor([[1.0], [-1.0]]), torch.tensor([1.0, -1.0]))


class Delayed(Probe):
    """The reward is one step late: is it discounted, and propagated back?"""

    def lengths(self) -> int:
        return 2

    def observe(self) -> Tensor:
        return self.elapsed.float()

    def reward(self, actions: Tensor) -> Tensor:
        return self.elapsed.float()

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        return Solution(torch.tensor([[0.0], [1.0]]), torch.tensor([gamma, 1.0]))


class Chosen(Probe):
    """The second action is the better one: does the policy learn?"""

    def reward(self, actions: Tensor) -> Tensor:
        return 2.0 * actions - 1.0

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        return Solution(torch.zeros(1, 1), torch.ones(1), torch.tensor([1]))


class Matched(Probe):
    """The better action depends on the observation: does the policy use it, and do the fields of samples match?"""

    def observe(self) -> Tensor:
        return self.sign

    def reward(self, actions: Tensor) -> Tensor:
        return self.sign * (2.0 * actions - 1.0)

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        return Solution(torch.tensor([[1.0], [-1.0]]), torch.ones(2), torch.tensor([1, 0]))


class Several(Probe):
    """Actions have two parts, whose best values depend on the observation: are both learned?"""

    action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    def observe(self) -> Tensor:
        return self.sign

    def reward(self, actions: Tensor) -> Tensor:
        return (actions == self._best(self.sign)).float().mean(1)

    @staticmethod
    def _best(sign: Tensor) -> Tensor:
        return torch.stack((sign > 0, 2 * (sign > 0)), dim=1).long()

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        obs = torch.tensor([[1.0], [-1.0]])
        return Solution(obs, torch.ones(2), cls._best(obs[:, 0]))


class Aimed(Probe):
    """The best action is a number that depends on the observation; the action space is not [-1, 1]."""

    action_space = gymnasium.spaces.Box(np.float32(-1), np.float32(3), (1,))

    def observe(self) -> Tensor:
        return self.sign

    def reward(self, actions: Tensor) -> Tensor:
        return -(actions.squeeze(1) - self._target(self.sign)).square()

    @staticmethod
    def _target(sign: Tensor) -> Tensor:
        return 1.0 + 0.8 * sign

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        obs = torch.tensor([[1.0], [-1.0]])
        return Solution(obs, torch.zeros(2), cls._target(obs))


class Lasting(Probe):
    """Reward 1 per step, and the episode terminates after three: is the last value not bootstrapped?"""

    STEPS = 3

    def lengths(self) -> int:
        return self.STEPS

    def observe(self) -> Tensor:
        return self.elapsed.float()

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        left = range(cls.STEPS, 0, -1)
        values = [sum(gamma**k for k in range(steps)) for steps in left]
        return Solution(torch.arange(float(cls.STEPS)).unsqueeze(1), torch.tensor(values))


class Endless(Probe):
    """Reward 1 per step without end, but truncated after one to three steps: is the last value bootstrapped?"""

    truncates = True

    def lengths(self) -> Tensor:
        return 1 + (self.seed + self.episode) % 3

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        return Solution(torch.zeros(1, 1), torch.tensor([1 / (1 - gamma)]))


class Pendular(Endless):
    """Two states alternate without end, and only the first gives reward; every episode begins in the first.

    Truncated after one to three steps: is the last value that of the final observation, and not of the reset?
    """

    def observe(self) -> Tensor:
        return (self.elapsed % 2).float()

    def reward(self, actions: Tensor) -> Tensor:
        return 1.0 - self.observe()

    @classmethod
    def solution(cls, gamma: float) -> Solution:
        first = 1 / (1 - gamma**2)
        return Solution(torch.tensor([[0.0], [1.0]]), torch.tensor([first, gamma * first]))


PROBES: tuple[type[Probe], ...] = (
    Constant,
    Observed,
    Delayed,
    Chosen,
    Matched,
    Several,
    Aimed,
    Lasting,
    Endless,
    Pendular,
)
DISCRETE_PROBES = [probe for probe in PROBES if isinstance(probe.action_space, gymnasium.spaces.Discrete)]
