"""Environments with a table of transitions, but without the distribution of their first state."""

import gymnasium


class Chain(gymnasium.Env):
    """Five states in a row that end at 4; each step costs 1."""

    P = {s: {0: [(1.0, s + 1, -1.0, s == 3)]} for s in range(4)} | {4: {0: [(1.0, 4, 0.0, True)]}}
    observation_space = gymnasium.spaces.Discrete(5)
    action_space = gymnasium.spaces.Discrete(1)
    first = (0,)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = int(self.np_random.choice(self.first))
        return self.state, {}

    def step(self, action):
        self.state += 1
        return self.state, -1.0, self.state == 4, False, {}


class Anywhere(Chain):
    """The same, starting in state 2 in a tenth of the episodes."""

    first = (0, 0, 0, 0, 0, 0, 0, 0, 0, 2)
