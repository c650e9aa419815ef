"""Claim: SAC and TD3 reach -170 on Pendulum-v1 in 20 000 steps, on average over 5 seeds.

DDPG, on the same task, and discrete SAC, on CartPole-v1 in 50 000 steps, are reported. The score of a seed is the mean
over 100 greedy episodes of Gymnasium's own environment, of the final policy.

    python experiments/off_policy.py [algorithm ...]

trains the given algorithms, by default all, and plots them with the results of the others.
"""

from reaching import Reach, reach

RUNS = {
    "sac": Reach("sac", "Pendulum-v1", 20_000, -170.0),
    "td3": Reach("td3", "Pendulum-v1", 20_000, -170.0),
    "ddpg": Reach("ddpg", "Pendulum-v1", 20_000, None),
    "sac-discrete": Reach("sac-discrete", "CartPole-v1", 50_000, None),
}

if __name__ == "__main__":
    reach(RUNS, __file__, __doc__)
