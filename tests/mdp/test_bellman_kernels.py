import numpy as np
from exact import dense, random_models

from operant.mdp import MDP, bellman_kernels
from operant.mdp.examples import random_model
from operant.mdp.rows import rows_of


def test_a_backup_is_the_reward_and_the_discounted_mean():
    for mdp, gamma in random_models(10, seed=10):
        transitions, rewards = dense(mdp)
        rows = rows_of(mdp.continuation, mdp.expected_rewards.ravel(), mdp.actions, gamma)
        values = np.arange(1.0, mdp.states + 1)
        for row in range(mdp.states * mdp.actions):
            s, a = divmod(row, mdp.actions)
            if mdp.feasible[s, a]:
                expected = rewards[s, a] + gamma * transitions[s, a] @ values
                assert abs(bellman_kernels.backup(rows, row, values) - expected) < 1e-12
                assert abs(bellman_kernels.expect(rows, row, values) - transitions[s, a] @ values) < 1e-12


def test_rows_of_a_policy_are_laid_out_one_after_the_other():
    rows = random_model(20, 3, 4, seed=0, infeasible=0.3, termination=0.4).rows
    lengths = np.diff(rows.indptr.astype(np.int64)).reshape(20, 3)
    policy = np.where(lengths.any(axis=1), lengths.argmax(axis=1), -1)
    policy[3] = -1
    begins = np.zeros(21, np.uint64)
    assert bellman_kernels.lay_out(rows, policy, begins)
    expected = np.concatenate([[0], np.cumsum(np.where(policy >= 0, lengths[np.arange(20), policy], 0))])
    np.testing.assert_array_equal(begins, expected)
    assert not bellman_kernels.lay_out(rows, policy, begins)
    policy[3] = lengths[3].argmax()
    assert bellman_kernels.lay_out(rows, policy, begins)
    assert begins[-1] == expected[-1] + lengths[3].max()


def test_following_a_chain_counts_the_change_of_all_states_but_terminal_ones():
    """The row of state 2 is empty since its action always ends the episode, that of state 3 since it is terminal."""
    table = [[0, 0, 0, 0.5, 2.0, 0], [0, 0, 1, 0.5, 2.0, 0], [1, 0, 0, 1.0, -1.0, 0], [2, 0, 3, 1.0, 9.0, 1]]
    mdp = MDP.from_table(table)
    rows = mdp.rows._replace(gamma=0.5, rewards=np.where(mdp.terminal, 0.0, mdp.rows.rewards))
    values, out = np.array([4.0, 8.0, 1.0, 0.0]), np.empty(4)
    assert bellman_kernels.follow(0, 4, rows, mdp.terminal, values, out) == (-7.0, 8.0)
    assert out.tolist() == [5.0, 1.0, 9.0, 0.0]
    assert bellman_kernels.follow(2, 3, rows, mdp.terminal, values, out) == (8.0, 8.0)
    assert bellman_kernels.follow(3, 4, rows, mdp.terminal, values, out) == (np.inf, -np.inf)


def test_a_state_that_is_not_due_backs_up_its_action_alone():
    mdp = MDP.from_table([[0, 0, 0, 1.0, 1.0], [0, 1, 0, 1.0, 3.0], [1, 0, 1, 1.0, 5.0], [1, 1, 1, 1.0, 0.5]])
    rows = mdp.rows._replace(gamma=0.5)
    chain = rows._replace(
        indptr=np.arange(3, dtype=np.uint64),
        successors=np.arange(2, dtype=np.uint32),
        probabilities=np.ones(2),
        rewards=np.array([1.0, 5.0]),
        actions=1,
    )
    vectors = bellman_kernels.Vectors(np.zeros(2), np.empty(2), np.zeros(2, np.int64), 0.25)
    safe = np.array([4.0, 5.0])
    assert bellman_kernels.jacobi_where_due(0, 2, rows, vectors, bellman_kernels.Leads(chain, safe, 4.0)) == (
        3.0,
        5.0,
        1,
    )
    assert vectors.policy.tolist() == [1, 0]
    assert vectors.out.tolist() == [3.0, 5.0]
    assert safe.tolist() == [4.0 + 2.0 - 0.25, 5.0]
