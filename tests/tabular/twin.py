"""The simulator and the policies in plain Python, with the same random numbers."""

import math

from operant.streams import seed_sequence
from operant.tabular.simulator import Step

MASK = (1 << 64) - 1


class Stream:
    """Generator of random numbers, splitmix64."""

    def __init__(self, seed, purpose):
        self.state = int(seed_sequence(seed, purpose).generate_state(1, "u8")[0])

    def word(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def uniform(self):
        return (self.word() >> 11) / (1 << 53)

    def below(self, n):
        return ((self.word() >> 32) * n) >> 32

    def choose(self, weights):
        """Draw an index by inversion; a single one needs no random number."""
        if len(weights) == 1:
            return 0
        u, total = self.uniform(), 0.0
        for index, weight in enumerate(weights):
            total += weight
            if u < total:
                return index
        return len(weights) - 1


class TwinWorld:
    def __init__(self, mdp, seed, max_steps=None):
        self.mdp, self.stream = mdp, Stream(seed, "environment")
        self.limit = max_steps or mdp.max_steps or math.inf
        self.returns, self.lengths = [], []
        self._begin()

    def _begin(self):
        starts = [s for s in range(self.mdp.states) if self.mdp.start[s] > 0]
        self.state = starts[self.stream.choose([self.mdp.start[s] for s in starts])]
        self.age, self.total = 0, 0.0

    def advance(self, action):
        mdp, state = self.mdp, self.state
        begin, end = mdp.indptr[state * mdp.actions + action : state * mdp.actions + action + 2]
        k = int(begin) + self.stream.choose(mdp.probabilities[begin:end])
        reward, successor, terminated = float(mdp.rewards[k]), int(mdp.successors[k]), bool(mdp.terminates[k])
        self.age, self.total, self.state = self.age + 1, self.total + reward, successor
        truncated = not terminated and self.age >= self.limit
        if terminated or truncated:
            self.returns.append(self.total)
            self.lengths.append(self.age)
            self._begin()
        return Step(state, action, reward, successor, terminated, truncated)


class TwinAgent:
    """Base class of the twins of control methods; subclasses learn."""

    def __init__(self, mdp, seed, *, gamma, alpha=0.1, epsilon=0.1, initial=0.0):
        self.options = [[a for a in range(mdp.actions) if mdp.feasible[s, a]] for s in range(mdp.states)]
        self.q = [[initial] * mdp.actions for _ in range(mdp.states)]
        self.visits = [[0] * mdp.actions for _ in range(mdp.states)]
        self.stream = Stream(seed, "policy")
        self.gamma, self.alpha, self.epsilon = gamma, alpha, epsilon
        self.pending = None

    def greedy(self, state, q=None):
        values = (self.q if q is None else q)[state]
        best = max(values[a] for a in self.options[state])
        tied = [a for a in self.options[state] if values[a] == best]
        return tied[0] if len(tied) == 1 else tied[self.stream.below(len(tied))]

    def epsilon_greedy(self, state):
        if self.stream.uniform() < self.epsilon:
            return self.options[state][self.stream.below(len(self.options[state]))]
        return self.greedy(state)

    def choose(self, state):
        return self.epsilon_greedy(state) if self.pending is None else self.pending

    def best(self, state):
        return max(self.q[state][a] for a in self.options[state])

    def expected(self, state):
        values = [self.q[state][a] for a in self.options[state]]
        return (1 - self.epsilon) * max(values) + self.epsilon * sum(values) / len(values)

    def next_action(self, step):
        """Choose the action after a step, as SARSA does, and return its value."""
        action = None if step.terminated else self.epsilon_greedy(step.successor)
        self.pending = None if step.truncated else action
        return 0.0 if action is None else self.q[step.successor][action]

    def improve(self, state, action, target):
        self.visits[state][action] += 1
        self.q[state][action] += self.alpha * (target - self.q[state][action])


class TwinPrediction(TwinAgent):
    """Twin of prediction, which follows the uniform policy; values are those of action 0."""

    def choose(self, state):
        weights = [1 / len(self.options[state]) if a in self.options[state] else 0.0 for a in range(len(self.q[0]))]
        return self.stream.choose(weights)

    def value(self, step):
        return 0.0 if step.terminated else self.q[step.successor][0]


def play(mdp, agent, seed, steps):
    """Run a twin that acts and learns; return its environment."""
    world = TwinWorld(mdp, seed)
    for _ in range(steps):
        agent.learn(world.advance(agent.choose(world.state)))
    return world
