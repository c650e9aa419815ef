"""A learner and an environment with known results."""

from collections.abc import Sequence

import gymnasium
import torch
from torch import Tensor

from operant.envs.base import Step, Tree
from operant.runtime.learner import Metrics
from operant.state import State, copy_into, generator_state, set_generator_state
from operant.streams import torch_generator

FEATURES = 3


class Regression:
    """Learner of ``S`` linear models of noisy data, by gradient descent with momentum; one iteration is 10 examples."""

    examples = 10

    def __init__(self, seeds: Sequence[int] = (0, 1), size: int = FEATURES):
        self.consumed = 0
        self.truth = torch.linspace(-1.0, 1.0, size)
        self.weight = torch.zeros(len(seeds), size)
        self.momentum = torch.zeros(len(seeds), size)
        self.generators = [torch_generator(seed, "examples") for seed in seeds]

    def iterate(self) -> Metrics:
        size = self.weight.shape[1]
        x = torch.stack([torch.randn(self.examples, size, generator=g) for g in self.generators])
        error = (x @ self.weight[:, :, None]).squeeze(-1) - x @ self.truth
        self.momentum = 0.9 * self.momentum + (error[:, :, None] * x).mean(dim=1)
        self.weight = self.weight - 0.01 * self.momentum
        self.consumed += self.examples
        loss = error.square().mean(dim=1)
        return {"losses/value": loss, "rollout/episode_return": -loss, "constant": 2.5}

    def state_dict(self) -> State:
        return {
            "consumed": self.consumed,
            "weight": self.weight,
            "momentum": self.momentum,
            "generators": [generator_state(g) for g in self.generators],
        }

    def load_state_dict(self, state: State) -> None:
        self.consumed = state["consumed"]
        copy_into(self.weight, state["weight"], "weight")
        copy_into(self.momentum, state["momentum"], "momentum")
        for generator, saved in zip(self.generators, state["generators"], strict=True):
            set_generator_state(generator, saved)


class Corridor:
    """Row ``b`` walks an episode of ``lengths[b]`` steps; the score of a step is its action, its observation the time.

    Each episode is ``growth`` steps longer than the one before.

    With ``next_step`` every end is followed by a dummy transition, whose score would spoil any sum.
    """

    task = "Corridor"
    device = torch.device("cpu")
    observation_space = gymnasium.spaces.Box(0, 1000, (1,))
    action_space = gymnasium.spaces.Discrete(1000)

    def __init__(self, lengths: Sequence[int], *, next_step: bool = False, dictionary: bool = False, growth: int = 0):
        self.lengths = torch.tensor(lengths)
        self.growth = growth
        self.rows = len(lengths)
        self.always_valid = not next_step
        self.dictionary = dictionary
        self.steps = 0
        self.time = torch.zeros(self.rows, dtype=torch.int64)
        self.over = torch.zeros(self.rows, dtype=torch.bool)

    def _tree(self, time: Tensor) -> Tree:
        obs = time[:, None].float()
        return {"time": obs} if self.dictionary else obs

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        self.time = torch.zeros_like(self.time)
        self.over = torch.zeros_like(self.over)
        return self._tree(self.time)

    def step(self, actions: Tensor) -> Step:
        self.steps += 1
        valid = ~self.over
        successor = torch.where(valid, self.time + 1, 0)
        ended = valid & (successor == self.lengths)
        self.over = ended if not self.always_valid else self.over
        self.time = torch.where(ended, 0, successor) if self.always_valid else successor
        score = torch.where(valid, actions.float(), torch.nan)
        truncated = ended & (self.lengths % 2 == 0)
        self.lengths = self.lengths + self.growth * ended
        return Step(self._tree(self.time), -score, ended & ~truncated, truncated, self._tree(successor), valid, score)

    def state_dict(self) -> State:
        return {"time": self.time, "over": self.over}

    def load_state_dict(self, state: State) -> Tree:
        self.time, self.over = state["time"], state["over"]
        return self._tree(self.time)

    def close(self) -> None:
        pass
