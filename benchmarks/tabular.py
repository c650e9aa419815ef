"""Updates a second of the tables, on one core, beside a plain Python loop over Gymnasium's environment.

- Q-learning on the slippery 4x4 lake inside the kernel, with step limits, random ties and statistics (at least 30
  million updates a second are wanted), and the ratio to the loop that tutorials show: one `env.step`, one `argmax` and
  one update of a NumPy table at a time.
- 1000 seeds of cliff walking, 500 episodes each (under 2 seconds are wanted), for Q-learning and SARSA.
- Steps a second of every learner of the chapter on the lake.

Numbers are the best of several rounds, without compilation, which is reported apart.

    python benchmarks/tabular.py [--rounds 5] [--json]
"""

import argparse
import json
import time
from collections.abc import Callable

import gymnasium
import numpy as np

from operant import catalog
from operant.mdp import MDP
from operant.tabular import TabularLearner, learner_for

LAKE, CLIFF = "FrozenLake-v1", "CliffWalking-v1"
SEEDS = 64


def best(work: Callable[[], float], rounds: int) -> float:
    """Return the largest of several measurements."""
    return max(work() for _ in range(rounds))


def compiled(learner: TabularLearner) -> float:
    """Return the seconds that the first step takes."""
    start = time.perf_counter()
    learner.run_episodes(1)
    return time.perf_counter() - start


def kernel_rate(name: str, mdp: MDP, rounds: int, steps: int = 50_000) -> tuple[float, float]:
    """Return updates a second of a learner, all seeds together, and the seconds of compilation."""
    learner = learner_for(name, mdp, seeds=range(SEEDS), steps_per_iteration=steps)
    compilation = compiled(learner)

    def work() -> float:
        start = time.perf_counter()
        learner.iterate()
        return SEEDS * steps / (time.perf_counter() - start)

    return best(work, rounds), compilation


def loop_rate(task: str, steps: int = 20_000) -> float:
    """Return updates a second of Q-learning as a Python loop."""
    env, rng = gymnasium.make(task), np.random.default_rng(0)
    q = np.zeros((env.observation_space.n, env.action_space.n))  # pyright: ignore[reportAttributeAccessIssue]
    state, _ = env.reset(seed=0)
    start = time.perf_counter()
    for _ in range(steps):
        action = env.action_space.sample() if rng.random() < 0.1 else int(np.argmax(q[state]))
        successor, reward, terminated, truncated, _ = env.step(action)
        target = reward + 0.99 * (not terminated) * np.max(q[successor])
        q[state, action] += 0.1 * (target - q[state, action])
        state = env.reset()[0] if terminated or truncated else successor
    rate = steps / (time.perf_counter() - start)
    env.close()
    return rate


def cliff_seconds(name: str, mdp: MDP, rounds: int) -> float:
    """Return the seconds of 1000 seeds with 500 episodes each."""

    def work() -> float:
        learner = learner_for(name, mdp, seeds=range(1000), gamma=1.0, step_size=0.5)
        start = time.perf_counter()
        learner.run_episodes(500)
        return start - time.perf_counter()

    return -best(work, rounds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    lake, cliff = MDP.from_gymnasium(LAKE), MDP.from_gymnasium(CLIFF)
    rate, compilation = kernel_rate("q-learning", lake, options.rounds, steps=300_000)
    loop = best(lambda: loop_rate(LAKE), options.rounds)
    seconds = {name: cliff_seconds(name, cliff, options.rounds) for name in ("q-learning", "sarsa")}
    names = [entry.name for entry in catalog.ALGORITHMS if entry.observations == "finite"]
    rates = {name: kernel_rate(name, lake, 1, steps=5_000) for name in names}
    if options.json:
        facts = {"lake": rate, "python_loop": loop, "ratio": rate / loop, "compilation_seconds": compilation}
        every = {name: each for name, (each, _) in rates.items()}
        print(json.dumps(facts | {"cliff_seconds": seconds, "steps_per_second": every}))
        return
    print(f"Q-learning, {LAKE}, {SEEDS} seeds on one core: {rate / 1e6:.1f} million updates a second")
    print(f"a Python loop over Gymnasium's environment: {loop:,.0f} updates a second, {rate / loop:,.0f} times fewer")
    print(f"loading or compiling the kernel: {compilation:.2f} s")
    for name, each in seconds.items():
        print(f"{CLIFF}, 1000 seeds, 500 episodes each, {name}: {each:.2f} s")
    print(f"\n{'learner on ' + LAKE:26}{'steps/s':>14}{'first call':>12}")
    for name, (each, first) in rates.items():
        print(f"{name:26}{each:14,.0f}{first:10.2f} s")


if __name__ == "__main__":
    main()
