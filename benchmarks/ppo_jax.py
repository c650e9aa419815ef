"""PPO on CartPole-v1 beside a single-program implementation in JAX: environment, rollout and updates in one `jax.jit`.

Both run the same algorithm: 64 environments x 32 steps, 4 epochs of 4 minibatches, separate networks 64-64 with tanh,
Adam, generalized advantages, advantages normalized by minibatch, gradients clipped by their norm, episodes cut after
500 steps bootstrap from their final observation. JAX trains several seeds by `vmap`, operant along its seed axis, with
updates as they are written and compiled. One core for all: JAX has more threads than it is told to have. Compilation is
excluded and printed. Rounds alternate, and medians are quoted.

    python benchmarks/ppo_jax.py [--rounds 5] [--seeds 1 16] [--profile]
"""

import argparse
import math
import os
import statistics
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

# One core and one thread for JAX, which looks at both when it is imported.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import torch

from operant.control import PPO, PPOConfig
from operant.envs import make
from operant.nets import programs

CONFIG = PPOConfig(
    num_envs=64, num_steps=32, num_epochs=4, num_minibatches=4, learning_rate=2.5e-3, hidden_sizes=(64, 64)
)
BATCH = CONFIG.num_envs * CONFIG.num_steps
UPDATES = 20
"""Rollouts with their updates in one call of the JAX program."""

Parameters = dict[str, list[tuple[jax.Array, jax.Array]]]


class Carry(NamedTuple):
    """All that goes from one rollout to the next."""

    parameters: Parameters
    first: Parameters
    second: Parameters
    count: jax.Array
    state: jax.Array
    age: jax.Array
    key: jax.Array
    returns: jax.Array


class Experience(NamedTuple):
    """One step of all environments."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    next_value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    ended: jax.Array


def network(key: jax.Array, outputs: int, gain: float) -> list[tuple[jax.Array, jax.Array]]:
    """Return orthogonal weights and zero biases."""
    sizes, gains = (4, *CONFIG.hidden_sizes, outputs), (math.sqrt(2), math.sqrt(2), gain)
    keys = jax.random.split(key, 3)
    orthogonal = jax.nn.initializers.orthogonal
    shapes = zip(keys, gains, pairwise(sizes), strict=True)
    return [(orthogonal(g)(k, shape), jnp.zeros(shape[1])) for k, g, shape in shapes]


def forward(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    """Apply a perceptron."""
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def cartpole(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Advance Gymnasium's CartPole-v1 by a step; return the state and whether it has failed."""
    x, x_dot, theta, theta_dot = state.T
    force = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(theta), jnp.sin(theta)
    push = (force + 0.05 * theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    x_acc = push - 0.05 * theta_acc * cos / 1.1
    new = (x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc)
    failed = (jnp.abs(new[0]) > 2.4) | (jnp.abs(new[2]) > 12 * 2 * math.pi / 360)
    return jnp.stack(new, axis=1), failed


def begin(key: jax.Array) -> Carry:
    """Return the start of a run."""
    actor, critic, starts, key = jax.random.split(key, 4)
    parameters = {"actor": network(actor, 2, 0.01), "critic": network(critic, 1, 1.0)}
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    state = jax.random.uniform(starts, (CONFIG.num_envs, 4), minval=-0.05, maxval=0.05)
    age = jnp.zeros(CONFIG.num_envs, jnp.int32)
    return Carry(parameters, zeros, zeros, jnp.zeros((), jnp.int32), state, age, key, jnp.zeros(()))


def act(carry: Carry, _: None) -> tuple[Carry, Experience]:
    """Take one step in every environment."""
    key, sampling, starting = jax.random.split(carry.key, 3)
    obs = carry.state
    logits = forward(carry.parameters["actor"], obs)
    action = jax.random.categorical(sampling, logits)
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
    state, terminated = cartpole(obs, action)
    age = carry.age + 1
    ended = terminated | (age >= 500)
    starts = jax.random.uniform(starting, state.shape, minval=-0.05, maxval=0.05)
    values = forward(carry.parameters["critic"], jnp.concatenate([obs, state]))[:, 0]
    value, next_value = jnp.split(values, 2)
    step = Experience(obs, action, log_prob, value, next_value, jnp.ones(len(age)), terminated, ended)
    state, age = jnp.where(ended[:, None], starts, state), jnp.where(ended, 0, age)
    return carry._replace(state=state, age=age, key=key), step


def advantages(steps: Experience) -> jax.Array:
    """Return generalized advantages `[T, N]`."""
    delta = steps.reward + CONFIG.gamma * jnp.where(steps.terminated, 0.0, steps.next_value) - steps.value

    def back(later: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        error, ended = row
        now = error + CONFIG.gamma * CONFIG.gae_lambda * jnp.where(ended, 0.0, later)
        return now, now

    return jax.lax.scan(back, jnp.zeros(CONFIG.num_envs), (delta, steps.ended), reverse=True)[1]


def loss(parameters: Parameters, part: tuple[jax.Array, ...]) -> jax.Array:
    """Return the clipped objective and the value loss, to be minimized."""
    obs, action, old, advantage, target = part
    log_probs = jax.nn.log_softmax(forward(parameters["actor"], obs))
    ratio = jnp.exp(jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0] - old)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - CONFIG.clip_range, 1 + CONFIG.clip_range)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
    value = forward(parameters["critic"], obs)[:, 0]
    return (CONFIG.vf_coef * 0.5 * (value - target) ** 2 - surrogate).mean()


def descend(carry: Carry, part: tuple[jax.Array, ...]) -> tuple[Carry, None]:
    """Take one step of Adam on a minibatch."""
    gradient = jax.grad(loss)(carry.parameters, part)
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
    scale = jnp.minimum(1.0, CONFIG.max_grad_norm / (norm + 1e-6))
    gradient = jax.tree.map(lambda leaf: leaf * scale, gradient)
    count = carry.count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, carry.first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, carry.second, gradient)
    rate = CONFIG.learning_rate / (1 - 0.9**count)
    correction = 1 / (1 - 0.999**count)

    def move(parameter: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return parameter - rate * m / (jnp.sqrt(v * correction) + CONFIG.adam_eps)

    parameters = jax.tree.map(move, carry.parameters, first, second)
    return carry._replace(parameters=parameters, first=first, second=second, count=count), None


def update(carry: Carry, _: None) -> tuple[Carry, None]:
    """Collect a rollout and improve on it."""
    carry, steps = jax.lax.scan(act, carry, None, length=CONFIG.num_steps)
    advantage = advantages(steps)
    batch = (steps.obs, steps.action, steps.log_prob, advantage, advantage + steps.value)
    flat = tuple(entry.reshape(BATCH, *entry.shape[2:]) for entry in batch)

    def epoch(carry: Carry, _: None) -> tuple[Carry, None]:
        key, shuffling = jax.random.split(carry.key)
        order = jax.random.permutation(shuffling, BATCH)
        parts = tuple(entry[order].reshape(CONFIG.num_minibatches, -1, *entry.shape[1:]) for entry in flat)
        return jax.lax.scan(descend, carry._replace(key=key), parts)

    carry, _ = jax.lax.scan(epoch, carry, None, length=CONFIG.num_epochs)
    length = BATCH / jnp.maximum(steps.ended.sum(), 1)
    return carry._replace(returns=length), None


class Peer:
    """The JAX program for some seeds, compiled."""

    def __init__(self, seeds: int) -> None:
        start = time.perf_counter()
        train = jax.vmap(lambda carry: jax.lax.scan(update, carry, None, length=UPDATES)[0])
        keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
        self.seeds, self.carry = seeds, jax.jit(jax.vmap(begin))(keys)
        self.program: Any = jax.jit(train).lower(self.carry).compile()
        self.compilation = time.perf_counter() - start

    def rate(self, seconds: float) -> float:
        """Return environment steps a second, all seeds together."""
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self.carry = jax.block_until_ready(self.program(self.carry))
            steps += UPDATES * BATCH * self.seeds
        return steps / (time.perf_counter() - start)

    def length(self) -> float:
        """Return the mean length of episodes in the last rollout, a sign that it learns."""
        return float(self.carry.returns.mean())


class Ours:
    """operant's learner for some seeds, compiled or as it is written."""

    def __init__(self, seeds: int, *, compiled: bool) -> None:
        env = make("CartPole-v1", CONFIG.num_envs, range(seeds), backend="tensor")
        self.seeds, self.learner = seeds, PPO(CONFIG, env, seeds=range(seeds), budget=10**9)
        self.lengths: list[float] = []
        for program in programs(self.learner):
            program.compiled = compiled
        start = time.perf_counter()
        self.learner.iterate()
        self.compilation = time.perf_counter() - start

    def rate(self, seconds: float) -> float:
        """Return environment steps a second, all seeds together."""
        before, start = self.learner.consumed, time.perf_counter()
        while time.perf_counter() - start < seconds:
            metrics = self.learner.iterate()
            self.lengths.append(float(torch.as_tensor(metrics["rollout/episode_length"]).nanmean()))
        return (self.learner.consumed - before) * self.seeds / (time.perf_counter() - start)

    def length(self) -> float:
        """Return the mean length of the episodes that ended lately."""
        return statistics.fmean([length for length in self.lengths[-20:] if math.isfinite(length)] or [math.nan])


def phases(ours: Ours, seconds: float) -> None:
    """Print the shares of the parts of an iteration, by the clock."""
    learner = ours.learner
    agent, env = learner.agent, learner.agent.collector.env
    spent: dict[str, float] = defaultdict(float)

    def timed(owner: Any, attribute: str, name: str) -> None:
        function = getattr(owner, attribute)

        def measured(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - start

        setattr(owner, attribute, measured)

    for owner, attribute, name in (
        (env, "step", "environment"),
        (agent, "collect", "collect"),
        (learner, "estimate_advantages", "estimate_advantages"),
        (learner, "gradient", "gradient"),
        (learner.optimizer, "step", "step"),
        (learner, "update", "update"),
    ):
        timed(owner, attribute, name)
    start = time.perf_counter()
    ours.rate(seconds)
    whole = time.perf_counter() - start
    parts = {
        "environment": spent["environment"],
        "rest of collecting": spent["collect"] - spent["environment"],
        "judging": spent["estimate_advantages"],
        "gradients": spent["gradient"],
        "Adam": spent["step"],
        "rest of improving": spent["update"] - spent["gradient"] - spent["step"],
        "rest": whole - spent["collect"] - spent["estimate_advantages"] - spent["update"],
    }
    print(f"{ours.seeds} seeds: " + ", ".join(f"{name} {part / whole:.0%}" for name, part in parts.items()))


def profile(seeds: int) -> None:
    """Print where the time of our updates goes: by part of an iteration, and by operation."""
    ours = Ours(seeds, compiled=True)
    ours.rate(2.0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        ours.rate(3.0)
    print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=18, max_name_column_width=40))
    phases(ours, 5.0)


def main() -> None:
    """Measure in alternating rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seeds in arguments.seeds:
        competitors = {
            "JAX": Peer(seeds),
            "operant": Ours(seeds, compiled=False),
            "operant, compiled": Ours(seeds, compiled=True),
        }
        rates: dict[str, list[float]] = {name: [] for name in competitors}
        for competitor in competitors.values():
            competitor.rate(1.0)
        for _ in range(arguments.rounds):
            for name, competitor in competitors.items():
                rates[name].append(competitor.rate(arguments.seconds))
        print(f"{seeds} seeds, environment steps a second in aggregate, medians of {arguments.rounds} rounds")
        base = statistics.median(rates["JAX"])
        for name, competitor in competitors.items():
            median = statistics.median(rates[name])
            print(
                f"  {name:18} {median:9,.0f}  {median / base:5.2f} x JAX, episodes of {competitor.length():.0f}, "
                f"first call {competitor.compilation:.1f} s"
            )
        if arguments.profile:
            profile(seeds)


if __name__ == "__main__":
    main()
