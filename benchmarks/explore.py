"""What exploration costs, in time an iteration: bonuses of PPO, and the heads of bootstrapped DQN; one thread.

Medians over rounds in which every learner has its turn, on the processor's clock of this process, so that other
programs on the machine take little part. PPO: CartPole-v1, 5 seeds of 8 environments, 128 steps of each and 4 epochs of
4 minibatches; with a bonus, the critic has a second value head. Bootstrapped DQN: DeepSea of size 20, 5 seeds with the
preset, 20 trainings of 2 steps of 2 environments and a gradient step.

    python benchmarks/explore.py [--rounds 9] [--json]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from operant.catalog.bonuses import BONUSES
from operant.control import PPO, PPOConfig
from operant.control.bonuses import with_bonuses
from operant.envs import make, wrapped
from operant.explore import BootstrappedDQN, BootstrappedDQNConfig
from operant.explore.bootstrapped_dqn import PRESETS
from operant.runtime.settings import Settings

TASK, SEEDS, BUDGET = "CartPole-v1", tuple(range(5)), 10**6
CONFIG = PPOConfig(num_envs=8, num_steps=128, num_epochs=4, num_minibatches=4)
NONE = "none"
NAMES = (NONE, *(name for name in BONUSES if name != "counts"))
"""Exact counts are of finitely many states, which this task has not."""
SEA, HEADS = "operant/DeepSea-v0", (1, 20)


def learner(name: str) -> PPO:
    """Return PPO with a bonus as the command line makes it."""
    settings = Settings("ppo", TASK, seeds=SEEDS, budget=BUDGET)
    settings, config = with_bonuses(settings, CONFIG, () if name == NONE else (name,))
    env = wrapped(make(TASK, config.num_envs, SEEDS), settings.wrappers)
    return PPO(config, env, seeds=SEEDS, budget=BUDGET)


def diver(heads: int) -> BootstrappedDQN:
    """Return bootstrapped DQN with so many heads, as the command line makes it."""
    config = BootstrappedDQNConfig(num_heads=heads, **PRESETS[SEA])
    env = make(SEA, config.num_envs, SEEDS, env_kwargs={"size": 20})
    return BootstrappedDQN(config, env, seeds=SEEDS, budget=BUDGET)


def measure(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each run, by name."""
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.process_time()
            run()
            seconds[name].append(time.process_time() - begin)
    return seconds


def dives(heads: int) -> Callable[[], None]:
    """Return a function that trains for 20 iterations, after the first gradient steps."""
    made = diver(heads)
    while not made.updates:
        made.iterate()

    def run() -> None:
        for _ in range(20):
            made.iterate()

    return run


def main() -> None:
    """Print tables of milliseconds, and the ratios to PPO without a bonus and to one head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="iterations of each (default: 9)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = {name: learner(name).iterate for name in NAMES}
    heads = {f"{count} heads": dives(count) for count in HEADS}
    seconds = {**measure(runs, arguments.rounds), **measure(heads, arguments.rounds)}
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    ratios = {name: each / medians[NONE if name in runs else next(iter(heads))] for name, each in medians.items()}
    if arguments.json:
        print(json.dumps({name: {"seconds": each, "ratio": ratios[name]} for name, each in medians.items()}))
        return
    for name, each in medians.items():
        print(f"{name:10} {each * 1e3:6.0f} ms {ratios[name]:5.2f}x")


if __name__ == "__main__":
    main()
