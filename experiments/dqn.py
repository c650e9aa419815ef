"""Claim: DQN reaches 475 on CartPole-v1 and -90 on Acrobot-v1 in 100 000 steps, and -120 on MountainCar-v0 in 120 000.

Means over 5 seeds; the score of a seed is the mean over 100 greedy episodes of Gymnasium's own environment, of the
final policy. Double DQN, dueling networks and prioritized replay, with the same hyperparameters on CartPole-v1, are
reported.

    python experiments/dqn.py [run ...]

trains the given runs, by default all, and plots them with the results of the others.
"""

from reaching import Reach, reach

RUNS = {
    "cartpole": Reach("dqn", "CartPole-v1", 100_000, 475.0),
    "acrobot": Reach("dqn", "Acrobot-v1", 100_000, -90.0),
    "mountain-car": Reach("dqn", "MountainCar-v0", 120_000, -120.0),
    "double": Reach("double-dqn", "CartPole-v1", 100_000, None),
    "dueling": Reach("dueling-dqn", "CartPole-v1", 100_000, None),
    "prioritized": Reach("prioritized-dqn", "CartPole-v1", 100_000, None),
}

if __name__ == "__main__":
    reach(RUNS, __file__, __doc__)
