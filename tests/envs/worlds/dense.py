"""Dense solver of small models, independent of the package."""

import numpy as np


def dense(model):
    """Return transition probabilities [S, A, S] without ends, mean rewards [S, A] and the mask of actions [S, A]."""
    going_on = np.zeros((model.states, model.actions, model.states))
    rewards = np.zeros((model.states, model.actions))
    feasible = np.zeros((model.states, model.actions), bool)
    for row in range(model.states * model.actions):
        s, a = divmod(row, model.actions)
        for i in range(model.indptr[row], model.indptr[row + 1]):
            feasible[s, a] = True
            rewards[s, a] += model.probabilities[i] * model.rewards[i]
            if not model.terminates[i]:
                going_on[s, a, model.successors[i]] += model.probabilities[i]
    return going_on, rewards, feasible


def optimal(model, gamma, sweeps=20_000):
    """Return V* by value iteration."""
    going_on, rewards, feasible = dense(model)
    acting = feasible.any(axis=1)
    values = np.zeros(model.states)
    for _ in range(sweeps):
        backups = np.where(feasible, rewards + gamma * going_on @ values, -np.inf)
        improved = np.where(acting, backups.max(axis=1), 0.0)
        change = np.abs(improved - values).max()
        values = improved
        if change < 1e-13:
            return values
    raise AssertionError(f"value iteration has not converged: {change}")


def evaluate(model, policy, gamma):
    """Return V of a policy [S, A] by solving the linear equations."""
    going_on, rewards, _ = dense(model)
    transitions = np.einsum("sa,sat->st", policy, going_on)
    return np.linalg.solve(np.eye(model.states) - gamma * transitions, (policy * rewards).sum(axis=1))


def uniform(model):
    """Return the policy that takes every feasible action equally often."""
    feasible = dense(model)[2]
    return feasible / np.maximum(feasible.sum(axis=1, keepdims=True), 1)
