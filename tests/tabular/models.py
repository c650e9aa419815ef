"""Small models with known solutions."""

import numpy as np

from operant.mdp import MDP


def build(states, actions, entries, start=0, max_steps=None):
    """Return a model of `(s, a, successor, probability, reward, terminates)`, in any order; `start` is an index."""
    entries = sorted(entries, key=lambda entry: (entry[0], entry[1], entry[2]))
    counts = np.zeros(states * actions, np.int64)
    for s, a, *_ in entries:
        counts[s * actions + a] += 1
    successors, probabilities, rewards, terminates = zip(*(entry[2:] for entry in entries), strict=True)
    initial = np.zeros(states)
    initial[start] = 1.0
    initial /= initial.sum()
    return MDP(
        states=states,
        actions=actions,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        successors=np.array(successors),
        probabilities=np.array(probabilities, np.float64),
        rewards=np.array(rewards, np.float64),
        terminates=np.array(terminates, np.bool_),
        start=initial,
        max_steps=max_steps,
    )


def random_walk(states=5, left=0.0, right=1.0):
    """Return the walk of Sutton and Barto 2018, examples 6.2 and 7.1: one action, random steps left and right."""
    entries = []
    for s in range(states):
        for successor, reward in ((s - 1, left), (s + 1, right)):
            inside = 0 <= successor < states
            entries.append((s, 0, successor if inside else s, 0.5, 0.0 if inside else reward, not inside))
    return build(states, 1, entries, start=states // 2)


def true_values(states, left=0.0, right=1.0):
    return left + (right - left) * np.arange(1, states + 1) / (states + 1)


def forest(seed=0, states=6, actions=3, max_steps=20):
    """Return a random model with rewards, ends, infeasible actions, several successors and a step limit."""
    rng = np.random.default_rng(seed)
    entries = []
    for s in range(states):
        feasible = rng.choice(actions, size=rng.integers(1, actions + 1), replace=False)
        for a in sorted(feasible):
            targets = rng.choice(states, size=rng.integers(1, 4), replace=False)
            weights = rng.dirichlet(np.ones(len(targets)))
            for t, w in zip(targets, weights, strict=True):
                entries.append(
                    (s, int(a), int(t), float(w), float(np.round(rng.normal(), 3)), bool(rng.random() < 0.1))
                )
    return build(states, actions, entries, start=slice(None), max_steps=max_steps)


def self_loop():
    """Return a state that is left with probability 1/2 per step, at a cost of 1 for each step that stays; V = -1."""
    return build(1, 1, [(0, 0, 0, 0.5, -1.0, False), (0, 0, 0, 0.5, 0.0, True)])


def corridor(length=4, max_steps=None):
    """Return a corridor with the goal, worth 1, at its end; action 0 stays, action 1 moves. Nothing is random."""
    entries = []
    for s in range(length):
        last = s == length - 1
        entries += [(s, 0, s, 1.0, 0.0, False), (s, 1, s if last else s + 1, 1.0, float(last), last)]
    return build(length, 2, entries, max_steps=max_steps)


def optimal_values(mdp, gamma, sweeps=3000):
    """Return V* by dense value iteration."""
    indptr, successors, probabilities = mdp.continuation
    rows = np.repeat(np.arange(mdp.states * mdp.actions), np.diff(indptr))
    transitions = np.zeros((mdp.states * mdp.actions, mdp.states))
    np.add.at(transitions, (rows, successors), probabilities)
    values = np.zeros(mdp.states)
    for _ in range(sweeps):
        q = mdp.expected_rewards + gamma * (transitions @ values).reshape(mdp.states, mdp.actions)
        values = np.where(mdp.terminal, 0.0, q.max(axis=1))
    return values


def policy_values(mdp, policy, gamma):
    """Return V of a policy `[S, A]` by a linear solve."""
    indptr, successors, probabilities = mdp.continuation
    rows = np.repeat(np.arange(mdp.states * mdp.actions), np.diff(indptr))
    transitions = np.zeros((mdp.states, mdp.states))
    np.add.at(transitions, (rows // mdp.actions, successors), probabilities * policy.ravel()[rows])
    rewards = (policy * np.where(mdp.feasible, mdp.expected_rewards, 0.0)).sum(axis=1)
    return np.linalg.solve(np.eye(mdp.states) - gamma * transitions, rewards)
