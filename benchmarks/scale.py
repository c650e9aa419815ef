"""What training in shards and in several processes costs, and what it gains: one thread each, medians of one run.

- `overhead`: an iteration with four shards in one process, over one with one shard, in turn: PPO and SAC with their
  presets (SAC with four environments a seed, and also with the networks of its paper), and GRPO with the built-in
  model and answers of at most 16 tokens. The clock is the processor's. PPO may cost 1.25 times as much, SAC and GRPO
  1.5 times.
- `speed`: two processes over one, each with four shards, on an environment that computes for half a millisecond a step,
  and GRPO. The clock is on the wall, so that the machine must be quiet and have two cores; two processes should be 1.5
  times as fast. The processor's time of the busiest process is printed, too: what two cores can gain at most.
- `gather`: seconds a call, and a megabyte, of both exchanges between two processes.
- `messages`: milliseconds of a call of an actor, and of one with a megabyte: in this process, in another one, on Ray.
- `memory`: megabytes of a process that trains a language model of 78 million parameters, alone and as one of two that
  share it (`--fsdp`): the tensors by purpose, and the peak of the process during two steps, above what it took before
  the model was loaded. A process of two should take at most 0.6 of one.

    python benchmarks/scale.py [--tasks overhead speed gather messages memory] [--rounds 15] [--json]
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import operant
from operant import catalog
from operant.build import package
from operant.runtime.settings import Settings
from operant.runtime.shards import Shards, within

SHARDS, PROCESSES, WARM = 4, 2, 2
ACTIONS = {"sac": 1300}
"""Rollouts before the iterations that count, of a few actions each: enough to compare those of shards together."""
BOUNDS = {"ppo": 1.25, "sac": 1.5, "grpo": 1.5}
SIZES = {"call": 1, "megabyte": 1 << 18}
"""Numbers of 32 bits in a tensor of each exchange."""
BUSY = 5e-4
"""Seconds of computation in a step of the slow environment, about."""

CASES: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "ppo, preset": ("ppo", "CartPole-v1", 1, {}),
    "ppo, preset, 8 seeds": ("ppo", "CartPole-v1", 8, {}),
    "sac, preset": ("sac", "Pendulum-v1", 1, {"num_envs": 4}),
    "sac, as in its paper": (
        *("sac", "Pendulum-v1", 1),
        {"num_envs": 4, "hidden_sizes": (256, 256), "learning_rate": 3e-4, "train_freq": 1, "rounds_per_iteration": 20},
    ),
    "grpo, 16 prompts x 8": (
        *("grpo", "preference", 1),
        {"prompts_per_batch": 16, "num_generations": 8, "max_completion_length": 16},
    ),
    "grpo, 32 prompts x 16": (
        *("grpo", "preference", 1),
        {"prompts_per_batch": 32, "num_generations": 16, "max_completion_length": 16},
    ),
}
SLOW: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "ppo, slow environment": (
        *("ppo", f"{Path(__file__).resolve()}:Busy", 1),
        {"num_envs": 8, "num_steps": 128, "num_minibatches": 4, "num_epochs": 4},
    ),
    "grpo, 32 prompts x 16": CASES["grpo, 32 prompts x 16"],
}

LAYERS, WIDTH, HEADS, INNER = 24, 512, 8, 1408
"""Size of the model whose memory is measured: many layers, as in models that do not fit into a device."""
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sft": ("sft", "arithmetic", {"batch_size": 16}),
    "sft, recomputed": ("sft", "arithmetic", {"batch_size": 16, "gradient_checkpointing": True}),
    "dpo": ("dpo", "preference", {"batch_size": 8}),
    "grpo": ("grpo", "preference", {"prompts_per_batch": 4, "num_generations": 4, "max_completion_length": 16}),
}
"""Algorithms whose memory is measured, with at most 128 tokens in a forward pass."""
SHARE = 0.6
"""Largest share of the memory of one process."""


class Busy(gymnasium.Env[np.ndarray, np.int64]):
    """An environment whose steps compute in Python."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Compute, whatever the action."""
        total, steps = 0.0, round(BUSY / 4e-8)
        for i in range(steps):
            total += i * 1e-9
        observation = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        return observation, float(observation[0] > 0) + 0.0 * total, bool(self.np_random.random() < 0.02), False, {}


def learner(case: tuple[str, str, int, dict[str, Any]], shards: int) -> Any:
    """Return the learner of a case, for this process."""
    name, task, seeds, values = case
    entry = catalog.find(name)
    config = operant.configure(name, task, **values)
    settings = Settings(name, task, seeds=tuple(range(seeds)), budget=10**7, shards=shards, compile="off")
    return package(entry).assemble(entry, settings, config, device="cpu").learner


def seconds(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Return the seconds of a call."""
    start = clock()
    work()
    return clock() - start


def overhead(rounds: int) -> dict[str, dict[str, float]]:
    """Return milliseconds an iteration with one shard and with several, and their ratio."""
    found: dict[str, dict[str, float]] = {}
    for name, case in CASES.items():
        made = {count: learner(case, count) for count in (1, SHARDS)}
        times: dict[int, list[float]] = {count: [] for count in made}
        for one in made.values():
            one.iterate()
            for _ in range(ACTIONS.get(case[0], 0)):
                one.collect()
        for turn in range(rounds + WARM):
            for count, one in made.items():
                spent = seconds(one.iterate)
                if turn >= WARM:
                    times[count].append(1e3 * spent)
        one, several = (statistics.median(times[count]) for count in made)
        found[name] = {"one": one, "several": several, "ratio": several / one, "bound": BOUNDS[case[0]]}
        print(f"{name:28}{one:10.1f}{several:10.1f}{several / one:8.2f}   at most {BOUNDS[case[0]]}", flush=True)
    return found


def workers(count: int, work: str, rounds: int, folder: str = "") -> list[dict[str, float]]:
    """Run `worker` in several processes, and return what each has measured."""
    program = [str(Path(__file__).resolve()), "--worker", work, "--rounds", str(rounds), "--model", folder, "--json"]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"] if count > 1 else []
    done = subprocess.run(
        [sys.executable, *launcher, *program],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},  # freed memory is given back
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{work} failed on {count} processes:\n{done.stderr[-2000:]}")
    return [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if line.startswith("measured")]


def worker(work: str, rounds: int, folder: str) -> dict[str, float]:
    """Measure one case in this process, which may be one of a group."""
    from operant.scale.processes import Processes, started

    measure = partial(model_memory, work, folder) if work in MODELS else partial(iterations, work, rounds)
    if not started():
        return measure()
    processes = Processes(sharded=work in MODELS)
    with within(processes):
        found = exchanges(rounds) if work == "gather" else measure()
    if processes.rank:
        processes.receive()  # the leading process is finished
    processes.close()
    return found


def iterations(work: str, rounds: int) -> dict[str, float]:
    """Return seconds of an iteration, on the wall and of this process."""
    made = learner(SLOW[work], SHARDS)
    wall, own = list[float](), list[float]()
    for _ in range(rounds + WARM):
        start, busy = time.perf_counter(), time.process_time()
        made.iterate()
        wall.append(time.perf_counter() - start)
        own.append(time.process_time() - busy)
    return {"wall": statistics.median(wall[WARM:]), "busy": statistics.median(own[WARM:])}


def exchanges(rounds: int) -> dict[str, float]:
    """Return seconds of the exchanges of tensors, and of states, by their sizes."""
    shards, found = Shards(PROCESSES), dict[str, float]()
    for name, size in SIZES.items():
        own = torch.zeros(1, size)
        for kind, work in {
            "tensors": lambda own=own: shards.gather_tensors(own),
            "states": lambda own=own: shards.gather([{"own": own}]),
        }.items():
            times = [seconds(work, time.perf_counter) for _ in range(10 * rounds)]
            found[f"{kind}, a {name}"] = statistics.median(times)
    return found


def speed(rounds: int) -> dict[str, dict[str, float]]:
    """Return seconds an iteration in one process and in two, in turn, and their ratio."""
    found: dict[str, dict[str, float]] = {}
    for name in SLOW:
        (one,), several = workers(1, name, rounds), workers(PROCESSES, name, rounds)
        wall, busiest = max(each["wall"] for each in several), max(each["busy"] for each in several)
        found[name] = {
            **{"one": one["wall"], "several": wall, "ratio": one["wall"] / wall},
            **{"busy": one["busy"], "busiest": busiest, "at most": one["busy"] / busiest},
        }
        print(
            f"{name:28}{1e3 * one['wall']:10.1f}{1e3 * wall:10.1f}{one['wall'] / wall:8.2f}   processor: "
            f"{1e3 * one['busy']:.1f} and {1e3 * busiest:.1f}, {one['busy'] / busiest:.2f}",
            flush=True,
        )
    return found


def gather(rounds: int) -> dict[str, float]:
    """Return seconds of each exchange between two processes."""
    found = workers(PROCESSES, "gather", rounds)[0]
    for name, spent in found.items():
        print(f"{name:28}{1e3 * spent:10.3f} ms")
    return found


def messages(rounds: int) -> dict[str, float]:
    """Return seconds of a call of an actor, with nothing and with a megabyte, by where the actor is."""
    from operant.runtime.local_hosts import InlineHost, ProcessHost
    from operant.scale.ray_cluster import cluster

    found, blob = dict[str, float](), bytes(1 << 20)
    for name, opened in {
        "inline": nullcontext(InlineHost()),
        "processes": nullcontext(ProcessHost()),
        "ray": cluster(),
    }.items():
        with opened as host:
            actor = host.actor(Counter)
            for size, given in {"call": [], "megabyte": [blob]}.items():
                reply = partial(_reply, actor, given)
                found[f"{name}, a {size}"] = statistics.median(
                    seconds(reply, time.perf_counter) for _ in range(10 * rounds)
                )
            for size in SIZES:
                print(f"{name + ', a ' + size:28}{1e3 * found[f'{name}, a {size}']:10.3f} ms", flush=True)
            actor.kill()
    return found


def _reply(actor: Any, given: Any) -> Any:
    return actor.call("update", given).result(100)


def model_memory(work: str, folder: str) -> dict[str, float]:
    """Return megabytes of this process that trains the model in a folder: of tensors by purpose, and at the peak."""
    _trainer(work, "tiny").iterate()  # what is imported, and allocated once, does not count
    gc.collect()
    before = _resident("VmRSS")
    made = _trainer(work, folder)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(2):
        made.iterate()
    peak = _resident("VmHWM") - before
    moments = [value for own in made.stepper.state_dict()["moments"].values() for value in own.values()]
    trained = _megabytes(made.model.trained().values())
    return {"weights": trained, "gradients": trained, "moments": _megabytes(moments), "peak": peak}


def _trainer(work: str, model: str) -> Any:
    """Return the learner of a case with a model."""
    name, task, values = MODELS[work]
    entry = catalog.find(name)
    common = {"model": model, "micro_batch_tokens": 128, "held_out": 8, "train_examples": 64}
    config = operant.configure(name, task, **common, **values)
    settings = Settings(name, task, seeds=(0,), budget=10**6)
    return package(entry).assemble(entry, settings, config, device="cpu").learner.learners[0]


def _megabytes(values: Iterable[Any]) -> float:
    """Return the size of the parts of tensors in this process."""
    return sum(getattr(value, "to_local", lambda value=value: value)().nbytes for value in values) / 2**20


def _resident(name: str) -> float:
    """Return megabytes of memory of this process, now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**10


def memory(_: int) -> dict[str, dict[str, float]]:
    """Return megabytes of one process, of the larger of two, and their ratio."""
    from operant.language.models import random_network
    from operant.language.tokenizer import character_tokenizer

    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        random_network("llama", WIDTH, LAYERS, HEADS, inner=INNER, seed=0).save_pretrained(folder)
        character_tokenizer().save_pretrained(folder)
        for work in MODELS:
            (one,), two = workers(1, work, 1, folder), workers(PROCESSES, work, 1, folder)
            for part in one:
                alone, most = one[part], max(each[part] for each in two)
                found[f"{work}: {part}"] = {"one": alone, "several": most, "ratio": most / alone, "bound": SHARE}
                print(
                    f"{work + ': ' + part:28}{alone:10.0f}{most:10.0f}{most / alone:8.2f}   at most {SHARE}", flush=True
                )
    return found


TASKS: dict[str, Callable[[int], Any]] = {
    "overhead": overhead,
    "speed": speed,
    "gather": gather,
    "messages": messages,
    "memory": memory,
}
UNITS = {"memory": "megabytes"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=15, help="iterations of each, after the first ones")
    parser.add_argument("--json", action="store_true", help="print one line with all numbers at the end")
    parser.add_argument("--worker", choices=[*SLOW, *MODELS, "gather"], help=argparse.SUPPRESS)
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.worker:
        measured = json.dumps(worker(args.worker, args.rounds, args.model))
        print(f"measured {measured}\n", end="", flush=True)  # one write, since the workers share a pipe
        return
    found: dict[str, Any] = {}
    for task in args.tasks:
        print(f"\n{task}: {UNITS.get(task, 'milliseconds')} of one and of several, and their ratio")
        found[task] = TASKS[task](args.rounds)
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
