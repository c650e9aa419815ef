"""Steps per second of the tensor environments beside Gymnasium's, in one process and on one thread.

Every round times each competitor once, so that all of them meet the same disturbances; the table holds medians and the
ratio of the tensor environment to each. Actions are random, so that episodes end about as often as they ever do.
Gymnasium's vector environments spend a step on each reset, which is counted as a step, in their favor; so do those of
EnvPool, which is timed where it is installed, and has as many threads as the machine has cores.
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import gymnasium
import torch
from gymnasium.vector import VectorEnv

from operant.envs import TENSOR_ENVS, make

OptimizerStep = Callable[[int], object]
"""Takes one step with the ``i``-th of the prepared actions."""

ACTIONS = 64


def of_gymnasium(env: VectorEnv) -> OptimizerStep:
    """Return a stepper of a vector environment as Gymnasium makes it."""
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(ACTIONS)]
    env.reset(seed=0)
    return lambda i: env.step(actions[i])


def of_operant(task: str, rows: int, backend: str, **options: str) -> OptimizerStep:
    """Return a stepper of one of our environments."""
    env = make(task, rows, [0], backend=backend, **options)
    env.action_space.seed(0)
    actions = torch.stack([torch.as_tensor(env.action_space.sample()) for _ in range(ACTIONS * rows)])
    actions = actions.view(ACTIONS, rows, *actions.shape[1:])
    env.reset()
    return lambda i: env.step(actions[i])


def competitors(task: str, rows: int, *, processes: bool) -> dict[str, OptimizerStep]:
    """Return all that can run ``rows`` copies of a task, ours first; with a process for each copy if so wanted."""
    steppers = {
        "operant tensor": of_operant(task, rows, "tensor"),
        "operant adapter": of_operant(task, rows, "gymnasium"),
        "gymnasium sync": of_gymnasium(gymnasium.make_vec(task, rows, vectorization_mode="sync")),
    }
    if processes:
        steppers["operant processes"] = of_operant(task, rows, "gymnasium", vectorization="async")
    if importlib.util.find_spec("envpool") is not None:
        steppers["operant EnvPool"] = of_operant(task, rows, "envpool")
    if gymnasium.spec(task).vector_entry_point is not None:
        vector = gymnasium.make_vec(task, rows, vectorization_mode="vector_entry_point")
        steppers["gymnasium vector"] = of_gymnasium(vector)
    return steppers


def steps_per_second(stepper: OptimizerStep, rows: int, seconds: float) -> float:
    """Return environment steps per second over about ``seconds``."""
    steps, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        stepper(steps % ACTIONS)
        steps += 1
    return steps * rows / elapsed


def main() -> None:
    """Time all tasks and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="rounds of which the median is taken")
    parser.add_argument("--seconds", type=float, default=0.1, help="length of one measurement")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 64, 1024], help="numbers of environments")
    parser.add_argument(
        "--tasks", nargs="+", default=list(TENSOR_ENVS), choices=list(TENSOR_ENVS), help="Gymnasium ids"
    )
    parser.add_argument("--processes", type=int, default=8, help="most environments that get a process each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'task':26}{'rows':>6}  {'environment':18}{'steps/s':>12}{'tensor is':>12}")
    for task in arguments.tasks:
        for rows in arguments.rows:
            steppers = competitors(task, rows, processes=rows <= arguments.processes)
            speeds: dict[str, list[float]] = {name: [] for name in steppers}
            for _ in range(arguments.repeats):
                for name, stepper in steppers.items():
                    speeds[name].append(steps_per_second(stepper, rows, arguments.seconds))
            medians = {name: statistics.median(values) for name, values in speeds.items()}
            for name, speed in medians.items():
                ratio = medians["operant tensor"] / speed
                print(f"{task:26}{rows:6}  {name:18}{speed:12,.0f}{ratio:11.1f}x")


if __name__ == "__main__":
    main()
