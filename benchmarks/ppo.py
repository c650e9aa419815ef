"""PPO on CartPole-v1 beside Stable-Baselines3, in one process and on one thread.

Three questions, each answered by medians over rounds in which every competitor has its turn:

- How many environment steps a second, with the hyperparameters of RL Baselines3 Zoo (8 environments, 32 steps, one
  batch of 256, 20 epochs) for both, and with operant's own preset?
- How long from the first environment step to a solved task, compilation included? Solved is the first of the
  evaluations, one each 2 % of the budget, whose 20 greedy episodes of Gymnasium's environment have a mean of 475 or
  more. Evaluations are not timed, and are the same for both.
- What do 16 seeds as one program cost, beside one, with 8 tensor environments a seed, 32 steps, 4 epochs, and one
  minibatch or four? Here the clock is the processor's of this process, and both take their iterations in turn.

    python benchmarks/ppo.py [--rounds 5] [--seeds 5] [--json]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gymnasium
import numpy as np
import stable_baselines3
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

import operant
from operant.control import PPO, PPOConfig
from operant.envs import make
from operant.nets import programs

TASK = "CartPole-v1"
BUDGET = 100_000
SOLVED = 475.0
ZOO: PPOConfig = operant.configure("ppo", TASK, preset="zoo")
OWN: PPOConfig = operant.configure("ppo", TASK)

MANY, WARM_UP = 16, 5
"""Seeds as one program, and iterations before the clock starts."""

Choose = Callable[[NDArray[np.float32]], NDArray[np.int64]]


def peer(seed: int, callback: BaseCallback | None = None, budget: int = BUDGET) -> stable_baselines3.PPO:
    """Train Stable-Baselines3's PPO with the zoo's hyperparameters."""
    env = make_vec_env(TASK, n_envs=ZOO.num_envs, seed=seed)
    model = stable_baselines3.PPO(
        "MlpPolicy",
        env,
        n_steps=ZOO.num_steps,
        batch_size=ZOO.num_envs * ZOO.num_steps,
        n_epochs=ZOO.num_epochs,
        gamma=ZOO.gamma,
        gae_lambda=ZOO.gae_lambda,
        learning_rate=lambda remaining: ZOO.learning_rate * remaining,
        clip_range=lambda remaining: ZOO.clip_range * remaining,
        ent_coef=ZOO.ent_coef,
        device="cpu",
        seed=seed,
    )
    return model.learn(budget, callback=callback)


def learner(config: PPOConfig, seeds: range, backend: str) -> PPO:
    """Make operant's PPO."""
    env = make(TASK, config.num_envs, seeds, backend=backend)  # pyright: ignore[reportArgumentType]
    return PPO(config, env, seeds=seeds, budget=BUDGET)


class Speed(BaseCallback):
    """Measures the steps a second of the peer after its first rollout."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.start, self.steps = seconds, 0.0, 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps and not self.start:
            self.start, self.steps = time.perf_counter(), self.num_timesteps

    def _on_step(self) -> bool:
        return not self.start or time.perf_counter() - self.start < self.seconds

    @property
    def rate(self) -> float:
        """Steps a second so far."""
        return (self.num_timesteps - self.steps) / (time.perf_counter() - self.start)


def speed_of_peer(seconds: float) -> float:
    """Return environment steps a second of Stable-Baselines3."""
    callback = Speed(seconds)
    peer(0, callback, budget=10**7)
    return callback.rate


def speed(config: PPOConfig, seeds: int, backend: str, seconds: float) -> float:
    """Return environment steps a second of operant, all seeds together."""
    ppo = learner(config, range(seeds), backend)
    ppo.iterate()
    steps, start = ppo.consumed, time.perf_counter()
    while time.perf_counter() - start < seconds and ppo.consumed < BUDGET:
        ppo.iterate()
    rate = (ppo.consumed - steps) * seeds / (time.perf_counter() - start)
    ppo.agent.collector.env.close()
    return rate


def cost_of_seeds(minibatches: int, compiled: bool, iterations: int) -> float:
    """Return the median ratio of the processor times of an iteration of 16 seeds and of one."""
    config = operant.configure("ppo", TASK, preset="zoo", num_epochs=4, num_minibatches=minibatches)
    one, many = (learner(config, range(count), "tensor") for count in (1, MANY))
    ratios: list[float] = []
    for ppo in (one, many):
        for program in programs(ppo):
            program.compiled = compiled
    for turn in range(WARM_UP + iterations):
        seconds: list[float] = []
        for ppo in (one, many):
            start = time.process_time()
            ppo.iterate()
            seconds.append(time.process_time() - start)
        if turn >= WARM_UP:
            ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)


def mean_return(choose: Choose, episodes: int = 20) -> float:
    """Return the mean over greedy episodes of Gymnasium's environment, one in each row of a vector environment."""
    env = gymnasium.make_vec(TASK, num_envs=episodes, vectorization_mode="sync")
    obs, _ = env.reset(seed=12345)
    alive, total = np.ones(episodes, dtype=bool), np.zeros(episodes)
    while alive.any():
        obs, reward, terminated, truncated, _ = env.step(choose(obs))
        total += reward * alive
        alive &= ~(terminated | truncated)
    env.close()
    return float(total.mean())


@dataclass
class Stopwatch:
    """Times training without the evaluations, which come due each 2 % of the budget."""

    start: float
    due: int = BUDGET // 50
    evaluating: float = 0.0
    solved: float | None = None

    def check(self, consumed: int, choose: Choose) -> bool:
        """Evaluate if it is due; return whether the task is solved."""
        if consumed < self.due:
            return False
        self.due += BUDGET // 50 * ((consumed - self.due) // (BUDGET // 50) + 1)
        begin = time.perf_counter()
        if mean_return(choose) >= SOLVED:
            self.solved = begin - self.start - self.evaluating
        self.evaluating += time.perf_counter() - begin
        return self.solved is not None


class StopWhenSolved(BaseCallback):
    """Checks the peer after every update."""

    def __init__(self) -> None:
        super().__init__()
        self.watch: Stopwatch | None = None

    def _on_rollout_start(self) -> None:
        if self.watch is None:
            self.watch = Stopwatch(time.perf_counter())
        self.watch.check(self.num_timesteps, lambda obs: self.model.predict(obs, deterministic=True)[0])

    def _on_step(self) -> bool:
        return self.watch is None or self.watch.solved is None


def time_of_peer(seed: int) -> float:
    """Return the seconds in which Stable-Baselines3 solves the task, infinity if it does not."""
    callback = StopWhenSolved()
    peer(seed, callback)
    solved = callback.watch.solved if callback.watch else None
    return float("inf") if solved is None else solved


def time_of_operant(seed: int) -> float:
    """Return the seconds in which operant's own preset solves the task with a single seed."""
    ppo = learner(OWN, range(seed, seed + 1), "auto")
    watch = Stopwatch(time.perf_counter())

    def choose(obs: NDArray[np.float32]) -> NDArray[np.int64]:
        return ppo.act(torch.from_numpy(obs).unsqueeze(0), None, None)[0][0].numpy()

    while ppo.consumed < BUDGET:
        ppo.iterate()
        if watch.check(ppo.consumed, choose):
            break
    return float("inf") if watch.solved is None else watch.solved


def rounds(competitors: dict[str, Callable[[int], float]], count: int) -> Iterator[tuple[str, list[float]]]:
    """Call every competitor once a round; yield its name and its numbers."""
    results: dict[str, list[float]] = {name: [] for name in competitors}
    for turn in range(count):
        for name, measure in competitors.items():
            results[name].append(measure(turn))
    yield from results.items()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of the speeds")
    parser.add_argument("--seconds", type=float, default=3.0, help="at most, of each measurement of a speed")
    parser.add_argument("--seeds", type=int, default=5, help="of the times to a solved task")
    parser.add_argument("--json", action="store_true", help="print one line with all numbers at the end")
    args = parser.parse_args()
    torch.set_num_threads(1)
    speeds = dict(
        rounds(
            {
                "Stable-Baselines3, zoo": lambda _: speed_of_peer(args.seconds),
                "operant, zoo, Gymnasium": lambda _: speed(ZOO, 1, "gymnasium", args.seconds),
                "operant, zoo, tensors": lambda _: speed(ZOO, 1, "tensor", args.seconds),
                "operant, zoo, tensors, 8 seeds": lambda _: speed(ZOO, 8, "tensor", args.seconds),
                "operant, own preset": lambda _: speed(OWN, 1, "tensor", args.seconds),
                "operant, own preset, 8 seeds": lambda _: speed(OWN, 8, "tensor", args.seconds),
            },
            args.rounds,
        )
    )
    base = statistics.median(speeds["Stable-Baselines3, zoo"])
    print(f"{'environment steps a second':34}{'median':>10}{'min':>10}{'max':>10}{'ratio':>8}")
    for name, values in speeds.items():
        median = statistics.median(values)
        print(f"{name:34}{median:10.0f}{min(values):10.0f}{max(values):10.0f}{median / base:8.2f}")
    times = dict(rounds({"Stable-Baselines3, zoo": time_of_peer, "operant, own preset": time_of_operant}, args.seeds))
    peer_time, own_time = (statistics.median(values) for values in times.values())
    print(f"\n{'seconds until solved':34}{'median':>10}   each seed")
    for name, values in times.items():
        print(f"{name:34}{statistics.median(values):10.2f}   {', '.join(f'{value:.2f}' for value in values)}")
    print(f"{'ratio':34}{peer_time / own_time:10.1f}")
    costs = {
        f"4 epochs of {minibatches}{', compiled' * compiled}": cost_of_seeds(minibatches, compiled, 10 * args.rounds)
        for minibatches in (1, 4)
        for compiled in (False, True)
    }
    print(f"\n{f'cost of {MANY} seeds, in that of one':34}{'median':>10}")
    for name, ratio in costs.items():
        print(f"{name:34}{ratio:10.1f}")
    if args.json:
        print(json.dumps({"steps_per_second": speeds, "seconds_until_solved": times, "cost_of_seeds": costs}))


if __name__ == "__main__":
    main()
