"""SAC and TD3 on Pendulum-v1 (256 x 256, batch 256), on one thread: beside the bound of arithmetic, and beside peers.

Three questions, each answered by medians over rounds in which every competitor has its turn:

- What share of the bound does an update reach? The bound is the floating-point operations of the update's matrix
  products, counted exactly, over the rate of 256 x 256 x 256 products, of the kind that it takes, that is measured in
  the same rounds; the rate of PyTorch's own products, which peers take, is printed beside it. Both are
  timed on the processor's clock of this process, so that other programs on the machine take no part.
- How many environment steps a second, an update after each, beside Stable-Baselines3 and SBX, hyperparameters equal?
  All have one core: JAX has more threads than it is told to have.
- What do 16 seeds as one program cost, what does the precision `medium` change, and what are compiled updates worth?

    python benchmarks/sac.py [--rounds 5] [--seconds 3] [--sbx-python PATH] [--json]

SBX needs JAX, which operant does not: give it an environment of its own (`pip install sbx-rl`) and name its Python.
Without one, SBX is left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from operant.control.sac import SAC, SACConfig
from operant.control.td3 import TD3, TD3Config
from operant.envs import make
from operant.nets import programs, set_precision
from operant.nets.matmul import product, rounds

TASK, HIDDEN, BATCH, WARMUP = "Pendulum-v1", (256, 256), 256, 100
OBSERVATION, ACTION = 3, 1
KINDS: dict[str, tuple[type[Any], type[Any]]] = {"sac": (SAC, SACConfig), "td3": (TD3, TD3Config)}
SIDE, PRODUCTS = 256, 10
VARIANTS = ("highest", "medium", "compiled", "compiled, medium")
"""Precision of matrix products, the highest where none is named; and whether updates are compiled."""
PEERS = "PyTorch's own"
"""What products of 32-bit numbers are called that are left to PyTorch."""

PEER = """
import os, sys, time
name, library, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
import gymnasium
from stable_baselines3.common.callbacks import BaseCallback
if library == "sb3":
    import torch
    torch.set_num_threads(1)
    import stable_baselines3 as peers
    extra = {"device": "cpu"}
else:
    import sbx as peers
    extra = {}

class Speed(BaseCallback):
    def __init__(self):
        super().__init__()
        self.start = None
    def _on_step(self):
        if self.num_timesteps == 300:  # compiled and warm
            self.start = time.perf_counter()
        if self.start is not None and time.perf_counter() - self.start >= seconds:
            print((self.num_timesteps - 300) / (time.perf_counter() - self.start))
            return False
        return True

kind = getattr(peers, name.upper())
model = kind("MlpPolicy", gymnasium.make("Pendulum-v1"), learning_rate=3e-4, buffer_size=100_000, batch_size=256,
             learning_starts=100, train_freq=1, gradient_steps=1, policy_kwargs={"net_arch": [256, 256]},
             seed=0, **extra)
model.learn(1_000_000, callback=Speed())
"""
"""What measures a peer in a process of its own."""


def products(inputs: int, outputs: int) -> int:
    """Return the floating-point operations of a forward pass of one network."""
    sizes = [inputs, *HIDDEN, outputs]
    return sum(2 * BATCH * rows * columns for rows, columns in pairwise(sizes))


def first_layer(inputs: int) -> int:
    """Return those of one product with the first layer's weights."""
    return 2 * BATCH * inputs * HIDDEN[0]


def operations(name: str) -> float:
    """Return the operations of the matrix products of one update, on average over updates.

    A forward pass counts once; its way back counts once for the weights and once for the inputs of every layer. The
    inputs of the first layer need a gradient only where they hold the policy's action.
    """
    joint = OBSERVATION + ACTION
    critic = products(joint, 1)
    learn_critics = 2 * (critic + 2 * critic - first_layer(joint))
    targets = 2 * critic
    if name == "sac":
        actor = products(OBSERVATION, 2 * ACTION)
        improve = actor + 2 * (critic + critic) + 2 * actor - first_layer(OBSERVATION)
        return actor + targets + learn_critics + improve
    actor = products(OBSERVATION, ACTION)
    improve = actor + (critic + critic) + 2 * actor - first_layer(OBSERVATION)
    return actor + targets + learn_critics + improve / TD3Config().policy_delay


def learner(name: str, seeds: int, variant: str) -> Any:
    """Make operant's learner with its environments in Gymnasium, as the peers have them, a warm memory."""
    choose(variant)
    kind, config = KINDS[name]
    settings = config(
        learning_starts=WARMUP, buffer_size=100_000, hidden_sizes=HIDDEN, batch_size=BATCH, rounds_per_iteration=10
    )
    made = kind(settings, make(TASK, 1, range(seeds), backend="gymnasium"), seeds=range(seeds), budget=10**6)
    for program in programs(made):
        program.compiled = "compiled" in variant
    made.iterate()
    return made


def choose(variant: str) -> None:
    """Set the precision of a variant."""
    set_precision("medium" if "medium" in variant else "highest", torch.device("cpu"))


def matrix_seconds(variant: str) -> float:
    """Return the processor seconds of one matrix product of the kind that hidden layers take."""
    choose(variant)
    left, right, out = (torch.ones(1, SIDE, SIDE) for _ in range(3))
    multiply = torch.bmm if variant == PEERS else product
    if rounds(left, right):
        multiply = torch.bmm
        left, right, out = (tensor.bfloat16() for tensor in (left, right, out))
    start = time.process_time()
    for _ in range(PRODUCTS):
        multiply(left, right, out=out)
    return (time.process_time() - start) / PRODUCTS


def update_seconds(made: Any, variant: str, updates: int) -> float:
    """Return the processor seconds of one update, sampling included."""
    choose(variant)
    start = time.process_time()
    for _ in range(updates):
        made.update(made.experience.sample(BATCH, gamma=made.config.gamma))
    return (time.process_time() - start) / updates


def steps_per_second(made: Any, variant: str, seconds: float) -> float:
    """Return environment steps a second of all seeds together, an update after each."""
    choose(variant)
    steps, start = made.consumed, time.perf_counter()
    while time.perf_counter() - start < seconds:
        made.iterate()
    return (made.consumed - steps) * len(made.seeds) / (time.perf_counter() - start)


def peer(python: str, library: str, name: str, seconds: float) -> float:
    """Return the environment steps a second of a peer, on one thread."""
    single = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    command = [python, "-c", PEER, name, library, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | single, check=False)
    if done.returncode:
        raise RuntimeError(f"{library} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def shares(rounds: int, seeds: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Measure the matrix rate and the updates in turn; return medians."""
    made = {
        (variant, name, count): learner(name, count, variant)
        for variant in VARIANTS
        for name in KINDS
        for count in seeds
    }
    ratios: dict[tuple[str, str, int], list[float]] = {}
    costs: dict[tuple[str, str, int], list[float]] = {}
    rates: dict[str, list[float]] = {}
    for _ in range(rounds):
        rates.setdefault(PEERS, []).append(2 * SIDE**3 / matrix_seconds(PEERS))
        for (variant, name, count), one in made.items():
            before = matrix_seconds(variant)
            cost = update_seconds(one, variant, max(2, 20 // count))
            matrix = (before + matrix_seconds(variant)) / 2
            rate = 2 * SIDE**3 / matrix
            rates.setdefault(variant, []).append(rate)
            costs.setdefault((variant, name, count), []).append(cost)
            ratios.setdefault((variant, name, count), []).append(operations(name) * count / rate / cost)
    for one in made.values():
        one.close()
    choose("")
    result = {"rate": {variant: statistics.median(values) for variant, values in rates.items()}}
    for key, values in ratios.items():
        result["/".join(map(str, key))] = {
            "share": statistics.median(values),
            "best": max(values),
            "milliseconds": 1e3 * statistics.median(costs[key]),
        }
    return result


def speeds(rounds: int, seconds: float, sbx: str | None) -> dict[str, list[float]]:
    """Measure environment steps a second of everyone in turn."""
    result: dict[str, list[float]] = {}
    made = {(name, variant): learner(name, 1, variant) for name in KINDS for variant in VARIANTS}
    for _ in range(rounds):
        for name in KINDS:
            contenders: dict[str, Callable[[], float]] = {
                f"{name}: Stable-Baselines3": lambda name=name: peer(sys.executable, "sb3", name, seconds)
            }
            for variant in VARIANTS:
                contenders[f"{name}: operant, {variant}"] = lambda name=name, variant=variant: steps_per_second(
                    made[name, variant], variant, seconds
                )
            if sbx:
                contenders[f"{name}: SBX"] = lambda name=name: peer(sbx, "sbx", name, seconds)
            for label, measure in contenders.items():
                result.setdefault(label, []).append(measure())
    for one in made.values():
        one.close()
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement of a speed")
    parser.add_argument("--seeds", type=int, default=16, help="as one program, beside one")
    parser.add_argument("--sbx-python", help="the Python of an environment that has SBX")
    parser.add_argument("--no-peers", action="store_true", help="measure the bound alone")
    parser.add_argument("--json", action="store_true", help="print one line with all numbers at the end")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # that of the peers' processes too
    for name in KINDS:
        print(f"{name}: {operations(name) / 1e9:.3f} GFLOP an update")
    bound = shares(args.rounds, (1, args.seeds))
    for variant, rate in bound["rate"].items():
        print(f"matrix rate, {variant}: {rate / 1e9:.0f} GFLOP/s")
    print(f"\n{'share of the bound':30}{'median':>10}{'best':>10}{'ms an update':>14}")
    for label, values in bound.items():
        if label != "rate":
            print(f"{label:30}{values['share']:10.2f}{values['best']:10.2f}{values['milliseconds']:14.2f}")
    for variant in VARIANTS:
        one, many = (bound[f"{variant}/sac/{count}"]["milliseconds"] for count in (1, args.seeds))
        print(f"{args.seeds} seeds of sac cost {many / one:.1f} x one, {variant}")
    measured: dict[str, list[float]] = {}
    if not args.no_peers:
        if not args.sbx_python:
            print("\nSBX is left out: name its Python with --sbx-python")
        measured = speeds(args.rounds, args.seconds, args.sbx_python)
        print(f"\n{'environment steps a second':30}{'median':>10}{'min':>10}{'max':>10}{'ratio':>8}")
        for label, values in measured.items():
            base = statistics.median(measured[label.split(":")[0] + ": Stable-Baselines3"])
            median = statistics.median(values)
            print(f"{label:30}{median:10.0f}{min(values):10.0f}{max(values):10.0f}{median / base:8.2f}")
    if args.json:
        print(json.dumps({"bound": bound, "steps_per_second": measured}))


if __name__ == "__main__":
    main()
