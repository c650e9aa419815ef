"""The deep algorithms beside Stable-Baselines3, in one process and on one thread, with equal hyperparameters.

One function an algorithm returns its competitors; each has its turn in every round, and the table gives the median
environment steps a second and the ratio to the first competitor.

    python benchmarks/control.py [algorithm ...] [--rounds 5] [--seconds 3] [--json]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import sb3_contrib
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

import operant
from operant import catalog
from operant.control import assemble
from operant.runtime.settings import Settings

Measure = Callable[[float], float]
"""Runs for so many seconds after warming up; returns environment steps a second, all seeds together."""

WARM_UP = 0.5
"""Seconds before the clock starts."""


class Speed(BaseCallback):
    """Measures the steps a second of Stable-Baselines3 after the warm-up."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.begin, self.start, self.steps = seconds, 0.0, 0.0, 0

    def _on_step(self) -> bool:
        now = time.perf_counter()
        self.begin = self.begin or now
        if not self.start:
            if now - self.begin > WARM_UP:
                self.start, self.steps = now, self.num_timesteps
            return True
        return now - self.start < self.seconds

    @property
    def rate(self) -> float:
        """Steps a second so far."""
        return (self.num_timesteps - self.steps) / (time.perf_counter() - self.start)


def peer(kind: Any, task: str, environments: int, **parameters: Any) -> Measure:
    """Return the measurement of a learner of Stable-Baselines3."""

    def measure(seconds: float) -> float:
        env = make_vec_env(task, n_envs=environments, seed=0)
        model = kind("MlpPolicy", env, device="cpu", seed=0, **parameters)
        speed = Speed(seconds)
        model.learn(10**8, callback=speed)
        env.close()
        return speed.rate

    return measure


def own(
    name: str, task: str, *, seeds: int = 1, backend: str = "auto", compiled: bool = False, **parameters: Any
) -> Measure:
    """Return the measurement of one of operant's algorithms; parameters as `operant.configure` takes them."""

    def measure(seconds: float) -> float:
        config = operant.configure(name, task, **parameters)
        choices: dict[str, Any] = {"env_backend": backend, "compile": "on" if compiled else "off"}
        settings = Settings(name, task, seeds=tuple(range(seeds)), budget=10**8, **choices)
        experiment = assemble(catalog.find(name), settings, config, device="cpu")
        learner = experiment.learner
        while learner.consumed < 2_000:  # compiled, and past the warm-up of the memory
            learner.iterate()
        begin = time.perf_counter()
        while time.perf_counter() - begin < WARM_UP:
            learner.iterate()
        steps, start = learner.consumed, time.perf_counter()
        while time.perf_counter() - start < seconds:
            learner.iterate()
        rate = (learner.consumed - steps) * seeds / (time.perf_counter() - start)
        experiment.close()
        return rate

    return measure


def a2c() -> Mapping[str, Measure]:
    """A2C on CartPole-v1 with Stable-Baselines3's defaults: 8 environments, 5 steps, RMSProp."""
    return {
        "Stable-Baselines3": peer(stable_baselines3.A2C, "CartPole-v1", 8, n_steps=5),
        "operant, Gymnasium": own("a2c", "CartPole-v1", preset="zoo", backend="gymnasium"),
        "operant, Gymnasium, compiled": own("a2c", "CartPole-v1", preset="zoo", backend="gymnasium", compiled=True),
        "operant, tensors": own("a2c", "CartPole-v1", preset="zoo"),
        "operant, tensors, compiled": own("a2c", "CartPole-v1", preset="zoo", compiled=True),
        "operant, tensors, 8 seeds": own("a2c", "CartPole-v1", preset="zoo", seeds=8),
    }


def dqn() -> Mapping[str, Measure]:
    """DQN on CartPole-v1 with the zoo's hyperparameters, and ε at its final value from the beginning."""
    parameters = {
        "exploration_initial_eps": 0.04,
        "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256] * 2},
    }
    return {
        "Stable-Baselines3": peer(
            stable_baselines3.DQN,
            "CartPole-v1",
            1,
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_size=100_000,
            learning_starts=1000,
            target_update_interval=10,
            train_freq=256,
            gradient_steps=128,
            **parameters,
        ),
        "operant, Gymnasium": own(
            "dqn", "CartPole-v1", preset="zoo", exploration_initial_eps=0.04, backend="gymnasium"
        ),
        "operant, Gymnasium, compiled": own(
            "dqn", "CartPole-v1", preset="zoo", exploration_initial_eps=0.04, backend="gymnasium", compiled=True
        ),
        "operant, tensors": own("dqn", "CartPole-v1", preset="zoo", exploration_initial_eps=0.04),
        "operant, tensors, compiled": own(
            "dqn", "CartPole-v1", preset="zoo", exploration_initial_eps=0.04, compiled=True
        ),
        "operant, tensors, 8 seeds": own("dqn", "CartPole-v1", preset="zoo", exploration_initial_eps=0.04, seeds=8),
    }


def trpo() -> Mapping[str, Measure]:
    """TRPO on Pendulum-v1 with the defaults of Stable-Baselines3's contributions, two environments."""
    parameters: dict[str, Any] = {
        "preset": "paper",
        "num_envs": 2,
        "num_steps": 1024,
        "cg_max_steps": 15,
        "sub_sampling_factor": 1,
        "critic_minibatches": 16,
    }
    return {
        "Stable-Baselines3": peer(sb3_contrib.TRPO, "Pendulum-v1", 2, n_steps=1024),
        "operant, Gymnasium": own("trpo", "Pendulum-v1", backend="gymnasium", **parameters),
        "operant, Gymnasium, compiled": own("trpo", "Pendulum-v1", backend="gymnasium", compiled=True, **parameters),
        "operant, tensors": own("trpo", "Pendulum-v1", **parameters),
        "operant, tensors, compiled": own("trpo", "Pendulum-v1", compiled=True, **parameters),
        "operant, tensors, 8 seeds": own("trpo", "Pendulum-v1", seeds=8, **parameters),
    }


ALGORITHMS: Mapping[str, Callable[[], Mapping[str, Measure]]] = {"a2c": a2c, "dqn": dqn, "trpo": trpo}


def measure(name: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Measure the competitors of an algorithm in turns, and print the table."""
    competitors = ALGORITHMS[name]()
    rates: dict[str, list[float]] = {competitor: [] for competitor in competitors}
    for _ in range(rounds):
        for competitor, run in competitors.items():
            rates[competitor].append(run(seconds))
    base = statistics.median(next(iter(rates.values())))
    print(f"{name + ', environment steps a second':40}{'median':>10}{'min':>10}{'max':>10}{'ratio':>8}")
    for competitor, values in rates.items():
        median = statistics.median(values)
        print(f"{competitor:40}{median:10.0f}{min(values):10.0f}{max(values):10.0f}{median / base:8.2f}")
    print()
    return rates


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="algorithm", help=f"of {', '.join(ALGORITHMS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--json", action="store_true", help="print one line with all numbers at the end")
    args = parser.parse_args()
    if unknown := set(args.algorithms) - set(ALGORITHMS):
        parser.error(f"there is no benchmark of {', '.join(unknown)}; there are: {', '.join(ALGORITHMS)}")
    torch.set_num_threads(1)
    results = {name: measure(name, args.rounds, args.seconds) for name in args.algorithms or ALGORITHMS}
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
