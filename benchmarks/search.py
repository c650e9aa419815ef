"""Simulations a second of a tree search with Gumbel noise, beside mctx: one perceptron, batches of 1 to 256.

The model is a network of two hidden layers of 128 units from a state of 32 numbers and one of 7 actions to the next
state, a reward, a prior and a value, the same shapes on both sides; a search has 32 simulations. One thread; medians
over rounds in which all have their turn. mctx compiles a whole search for one batch size before it is timed; operant
has compiled kernels for the trees, and calls the network in torch.

    python benchmarks/search.py [--rounds 7] [--mctx-python PATH] [--processor-time] [--json]

mctx needs JAX, which operant does not: give it an environment of its own (`pip install mctx`) and name its Python.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

STATE, ACTIONS, HIDDEN, SIMULATIONS = 32, 7, 128, 32
BATCHES = (1, 4, 16, 64, 256)


def ours(batch: int) -> Callable[[], None]:
    """Return what runs one search of operant."""
    import torch

    from operant.worlds.search import Expansion, Planner, search

    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    shapes = (STATE, HIDDEN), (ACTIONS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, STATE + ACTIONS + 2)
    of_state, of_action, second, last = (torch.randn(shape, generator=draw) / shape[0] ** 0.5 for shape in shapes)
    discount = torch.full((batch,), 0.99)

    def model(states: tuple[torch.Tensor, ...], actions: torch.Tensor) -> Expansion:
        hidden = torch.addmm(of_action.index_select(0, actions), states[0], of_state).relu_()
        outputs = ((hidden @ second).relu_() @ last).tanh_()
        state, logits, value, reward = outputs.split_with_sizes((STATE, ACTIONS, 1, 1), 1)
        return Expansion((state,), logits, value.squeeze(1), reward.squeeze(1), discount)

    states = torch.randn(batch, STATE, generator=draw)
    root = model((states,), torch.zeros(batch, dtype=torch.int64))
    noise = -torch.empty(batch, ACTIONS).exponential_(generator=draw).log()
    planner = Planner(simulations=SIMULATIONS, considered=ACTIONS, scale=0.1)

    def run() -> None:
        search(planner, root, model, noise)

    return run


def theirs(batch: int) -> Callable[[], None]:
    """Return what runs one search of mctx, compiled."""
    import jax
    import jax.numpy as jnp
    import mctx

    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    shapes = (STATE, HIDDEN), (ACTIONS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, STATE + ACTIONS + 2)
    weights = [jax.random.normal(key, shape) / shape[0] ** 0.5 for key, shape in zip(keys, shapes, strict=False)]

    def model(weights, states, actions):
        of_state, of_action, second, last = weights
        hidden = jax.nn.relu(states @ of_state + of_action[actions])
        outputs = jnp.tanh(jax.nn.relu(hidden @ second) @ last)
        return jnp.split(outputs, [STATE, STATE + ACTIONS, STATE + ACTIONS + 1], 1)

    def follow(weights, key, actions, states):
        state, logits, value, reward = model(weights, states, actions)
        discount = jnp.full(actions.shape, 0.99)
        found = mctx.RecurrentFnOutput(reward=reward[:, 0], discount=discount, prior_logits=logits, value=value[:, 0])
        return found, state

    @jax.jit
    def plan(weights, key, states):
        state, logits, value, _ = model(weights, states, jnp.zeros(batch, jnp.int32))
        root = mctx.RootFnOutput(prior_logits=logits, value=value[:, 0], embedding=state)
        return mctx.gumbel_muzero_policy(
            weights, key, root, follow, SIMULATIONS, max_num_considered_actions=ACTIONS
        ).action

    states = jax.random.normal(keys[4], (batch, STATE))
    plan(weights, keys[4], states).block_until_ready()
    return lambda: plan(weights, keys[4], states).block_until_ready()


def speed(run: Callable[[], None], clock: Callable[[], float], seconds: float = 1.0) -> float:
    """Return searches a second of a clock."""
    run()
    end, begin, count = time.perf_counter() + seconds, clock(), 0
    while time.perf_counter() < end:
        run()
        count += 1
    return count / (clock() - begin)


def peer(python: str, batch: int, *options: str) -> float:
    """Return mctx's searches a second, in a process of its own with one thread."""
    threads = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    command = [python, __file__, "--peer", str(batch), *options]
    found = subprocess.run(command, env=os.environ | threads, check=True, capture_output=True, text=True)
    return float(found.stdout)


def main() -> None:
    """Print simulations a second, and the ratio to mctx."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each (default: 7)")
    parser.add_argument("--mctx-python", help="the Python of an environment that has mctx")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--processor-time", action="store_true", help="for a machine that has other work")
    options = parser.parse_args()
    clock = time.process_time if options.processor_time else time.perf_counter
    if options.peer:
        print(speed(theirs(options.peer), clock))
        return
    also = ["--processor-time"] if options.processor_time else []
    runs = {batch: ours(batch) for batch in BATCHES}
    measured: dict[int, tuple[list[float], list[float]]] = {batch: ([], []) for batch in BATCHES}
    for _ in range(options.rounds):
        for batch, run in runs.items():
            measured[batch][0].append(speed(run, clock) * batch * SIMULATIONS)
            if options.mctx_python:
                measured[batch][1].append(peer(options.mctx_python, batch, *also) * batch * SIMULATIONS)
    table = {batch: [statistics.median(part) for part in parts if part] for batch, parts in measured.items()}
    if options.json:
        json.dump({"simulations_per_second": table}, sys.stdout)
        print()
        return
    print("batch  simulations/s" + ("     mctx  ratio" if options.mctx_python else ""))
    for batch, (own, *other) in table.items():
        print(f"{batch:5d}  {own:13,.0f}" + (f"  {other[0]:7,.0f}  {own / other[0]:5.2f}" if other else ""))
    if not options.mctx_python:
        print("\nmctx is left out: name its Python with --mctx-python")


if __name__ == "__main__":
    main()
