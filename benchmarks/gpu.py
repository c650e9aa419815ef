"""Deep control on a GPU: whether compiled updates and recorded rollouts do what the code does, and what they gain.

For each algorithm, on tensor environments that live on the device:

- Do `compile=on`, with its CUDA graphs, and `compile=off` lead to the same parameters after a few iterations from the
  same seeds? The largest difference is printed, relative to the largest parameter; the script fails beyond 1e-3.
- How many environment steps a second do both take, all seeds together, beside the processor of the same machine? Each
  has its turn in every round; medians are printed, and the most memory that was in use.

    python benchmarks/gpu.py [algorithm ...] [--device cuda] [--seeds 1 16] [--rounds 5] [--seconds 2] [--json]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import operant
from operant import catalog
from operant.control import assemble
from operant.runtime.settings import Settings

WIDE = {"hidden_sizes": (256, 256), "learning_starts": 1000}
ALGORITHMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ppo": (
        "CartPole-v1",
        {"num_envs": 64, "num_steps": 32, "num_epochs": 4, "num_minibatches": 4, "hidden_sizes": (64, 64)},
    ),
    "a2c": ("CartPole-v1", {"num_envs": 64, "num_steps": 8}),
    "dqn": ("CartPole-v1", {"preset": "zoo"}),
    "sac": ("Pendulum-v1", WIDE),
    "td3": ("Pendulum-v1", WIDE),
    "sac-discrete": ("CartPole-v1", WIDE),
}
TOLERANCE = 1e-3
ITERATIONS = 4
"""Of the comparison, which are short, since rounding grows with every gradient step."""
SHORT: Mapping[str, Mapping[str, Any]] = {
    "dqn": {"train_freq": 8, "gradient_steps": 2},
    **{name: {"rounds_per_iteration": 2} for name in ("sac", "td3", "sac-discrete")},
}


def learner(name: str, seeds: int, device: str, compiled: bool, **changes: Any) -> Any:
    """Make an algorithm's learner."""
    task, values = ALGORITHMS[name]
    settings = Settings(name, task, seeds=tuple(range(seeds)), budget=10**8, compile="on" if compiled else "off")
    return assemble(
        catalog.find(name), settings, operant.configure(name, task, **{**values, **changes}), device=device
    ).learner


def parameters(made: Any) -> torch.Tensor:
    """Return all that a learner has learned, as one vector."""
    if hasattr(made, "agent"):
        return made.agent.parameters.flatten()
    held = made.parameters
    return held.flatten() if isinstance(held, torch.Tensor) else torch.cat([held[n].flatten() for n in sorted(held)])


def difference(name: str, device: str) -> float:
    """Return how far compiled and plain parameters are from each other, relative to the largest."""
    plain, compiled = (learner(name, 2, device, choice, **SHORT.get(name, {})) for choice in (False, True))
    for made in (plain, compiled):
        while made.consumed <= getattr(made.config, "learning_starts", 0):
            made.iterate()
        for _ in range(ITERATIONS):
            made.iterate()
        made.close()
    expected, found = parameters(plain), parameters(compiled)
    return float((found - expected).abs().max() / expected.abs().max())


def measure(made: Any, seconds: float, synchronize: Callable[[], None]) -> float:
    """Return environment steps a second, all seeds together."""
    synchronize()
    steps, start = made.consumed, time.perf_counter()
    while time.perf_counter() - start < seconds:
        made.iterate()
    synchronize()
    return (made.consumed - steps) * len(made.seeds) / (time.perf_counter() - start)


def compare(name: str, seeds: int, device: str, rounds: int, seconds: float) -> dict[str, float]:
    """Return the median rates of all competitors, by name."""
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    competitors = {
        "cpu, compiled": learner(name, seeds, "cpu", True),
        f"{device}, as written": learner(name, seeds, device, False),
        f"{device}, compiled": learner(name, seeds, device, True),
    }
    rates: dict[str, list[float]] = {competitor: [] for competitor in competitors}
    for made in competitors.values():
        steps = getattr(made.config, "train_freq", 1) * made.config.num_envs
        while made.consumed < getattr(made.config, "learning_starts", 0) + 4 * steps:
            made.iterate()
    for _ in range(rounds):
        for competitor, made in competitors.items():
            rates[competitor].append(measure(made, seconds, synchronize))
    for made in competitors.values():
        made.close()
    return {competitor: statistics.median(values) for competitor, values in rates.items()}


def report(names: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    results: dict[str, Any] = {}
    for name in names:
        apart = difference(name, args.device)
        results[name] = {"difference": apart}
        print(f"{name}: compiled and as written differ by {apart:.1e} of the largest parameter", flush=True)
        for seeds in args.seeds:
            rates = compare(name, seeds, args.device, args.rounds, args.seconds)
            results[name][seeds] = rates
            slowest = next(iter(rates.values()))
            for competitor, rate in rates.items():
                print(f"  {seeds:3} seeds  {competitor:24}{rate:12.0f} env steps/s{rate / slowest:8.2f}", flush=True)
    if args.device.startswith("cuda"):
        print(f"most memory in use: {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    return results


def main() -> None:
    """Measure, print, and fail where results differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="algorithm", help=f"of {', '.join(ALGORITHMS)}; default: all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--json", action="store_true", help="print one line with all numbers at the end")
    args = parser.parse_args()
    if unknown := set(args.algorithms) - set(ALGORITHMS):
        parser.error(f"there is no benchmark of {', '.join(unknown)}; there are: {', '.join(ALGORITHMS)}")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print(f"there is no CUDA device for --device {args.device}: nothing to measure; --device cpu tries the script")
        return
    torch.set_num_threads(1)
    results = report(args.algorithms or list(ALGORITHMS), args)
    if args.json:
        print(json.dumps(results))
    if far := [name for name, result in results.items() if not result["difference"] <= TOLERANCE]:
        raise SystemExit(f"compiled updates differ from those as written: {', '.join(far)}")


if __name__ == "__main__":
    main()
