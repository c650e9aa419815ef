"""What each exploration bonus costs PPO, in time a step: CartPole-v1, 5 seeds of 8 environments, one thread.

Medians over rounds in which every bonus has its turn, on the processor's clock of this process, so that other programs
on the machine take no part. An iteration is 128 steps of every environment and 4 epochs of 4 minibatches; with a bonus,
the critic has a second value head.

    python benchmarks/explore.py [--rounds 9] [--json]
"""

import argparse
import json
import statistics
import time

import torch

from operant.catalog.bonuses import BONUSES
from operant.control import PPO, PPOConfig
from operant.control.bonuses import with_bonuses
from operant.envs import make, wrapped
from operant.runtime.settings import Settings

TASK, SEEDS, BUDGET = "CartPole-v1", tuple(range(5)), 10**6
CONFIG = PPOConfig(num_envs=8, num_steps=128, num_epochs=4, num_minibatches=4)
NONE = "none"
NAMES = (NONE, *(name for name in BONUSES if name != "counts"))
"""Exact counts are of finitely many states, which this task has not."""


def learner(name: str) -> PPO:
    """Return PPO with a bonus as the command line makes it."""
    settings = Settings("ppo", TASK, seeds=SEEDS, budget=BUDGET)
    settings, config = with_bonuses(settings, CONFIG, () if name == NONE else (name,))
    env = wrapped(make(TASK, config.num_envs, SEEDS), settings.wrappers)
    return PPO(config, env, seeds=SEEDS, budget=BUDGET)


def measure(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of iterations, by name of the bonus."""
    learners = {name: learner(name) for name in NAMES}
    for each in learners.values():
        each.iterate()
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        for name, each in learners.items():
            begin = time.process_time()
            each.iterate()
            seconds[name].append(time.process_time() - begin)
    return seconds


def main() -> None:
    """Print a table of milliseconds an iteration, and the ratio to PPO without a bonus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="iterations of each (default: 9)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    medians = {name: statistics.median(seconds) for name, seconds in measure(arguments.rounds).items()}
    if arguments.json:
        print(json.dumps({name: {"seconds": each, "ratio": each / medians[NONE]} for name, each in medians.items()}))
        return
    for name, each in medians.items():
        print(f"{name:10} {each * 1e3:6.0f} ms {each / medians[NONE]:5.2f}x")


if __name__ == "__main__":
    main()
