import numpy as np
from exact import dense, random_models

from operant.mdp import kernels
from operant.mdp.problem import rows_of


def test_a_backup_is_the_reward_and_the_discounted_mean():
    for mdp, gamma in random_models(10, seed=10):
        transitions, rewards = dense(mdp)
        rows = rows_of(mdp.continuation, mdp.expected_rewards.ravel(), mdp.actions, gamma)
        values = np.arange(1.0, mdp.states + 1)
        for row in range(mdp.states * mdp.actions):
            s, a = divmod(row, mdp.actions)
            if mdp.feasible[s, a]:
                expected = rewards[s, a] + gamma * transitions[s, a] @ values
                assert abs(kernels.backup(rows, row, values) - expected) < 1e-12
                assert abs(kernels.expect(rows, row, values) - transitions[s, a] @ values) < 1e-12
