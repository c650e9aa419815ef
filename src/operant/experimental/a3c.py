"""Asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

Worker processes share one set of parameters and the moments of one optimizer. Each worker,
independently and without a lock, copies the parameters, collects a few steps in its own environments, estimates
advantages, and updates the shared parameters by a gradient step. Other workers have updated them in the meantime, so
the gradient is slightly stale; the number of updates between reading and writing is reported (`staleness/mean` and
`staleness/most`).

Workers collect, estimate advantages and compute gradients as in `operant.control.a2c`; only the update differs.

What differs from the paper: processes replace threads, a worker may have several environments, and the optimizer may
be Adam instead of RMSProp; see `operant.control.a2c` for the differences of networks and advantage estimates.

It trains one seed at a time, on the CPU only. Workers run asynchronously, so two runs with the same seed differ, and a
resumed run continues from the same parameters with other random numbers: resume is statistical.
"""

import math
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import torch
import torch.multiprocessing
from torch import Tensor

from operant import streams
from operant.control.a2c import A2C, DIAGNOSTICS, A2CConfig
from operant.envs import BatchEnv, WorkerError, maker_like, only_here
from operant.nets import OPTIMIZERS
from operant.runtime.bounds import PositiveFloat, PositiveInt
from operant.runtime.budget import remaining, scheduled
from operant.runtime.learner import Metrics
from operant.runtime.local_hosts import start_method
from operant.runtime.metrics_window import told_by_environments, update_metrics
from operant.runtime.trial import require_makeable
from operant.state import State, all_or_nothing, clone, copy_into, restore
from operant.tensors import in_shared_memory, integers, rows_of_floats


@dataclass(frozen=True)
class A3CConfig(A2CConfig):
    """Hyperparameters of asynchronous advantage actor-critic: those of A2C per worker, and those of workers."""

    num_envs: PositiveInt = 1
    """Number of environments per worker. More give less noisy and less frequent updates."""
    workers: PositiveInt = 16
    """Number of worker processes. More than there are CPU cores make gradients staler."""
    steps_per_iteration: PositiveInt = 2000
    """Environment steps of all workers together per iteration."""
    deadline: PositiveFloat = 120.0
    """Timeout of a worker in seconds, for its start and for each update."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        for name in ("normalize_obs", "normalize_reward"):
            if getattr(self, name):
                raise ValueError(f"{name} must be false: the workers share no statistics; a2c has them")
        if self.reward_channels:
            raise ValueError(
                f"reward_channels must be empty, got {', '.join(self.reward_channels)}: the workers' "
                "environments have no wrappers, so steps have no extra tensors; use a2c"
            )

    def planned_steps(self, budget: int) -> int:
        """Return the budget: how far asynchronous workers exceed it depends on their speed."""
        return budget

    @property
    def total_envs(self) -> int:
        """Number of environments of all workers."""
        return self.workers * self.num_envs


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {
        "workers": 4,
        "num_envs": 8,
        "num_steps": 64,
        "optimizer": "adam",
        "learning_rate": 3e-3,
        "estimator": "gae",
        "gae_lambda": 0.98,
        "ent_coef": 0.0,
    },
}
"""Presets by task, selected automatically. Other fields keep their defaults."""

MakeEnv = Callable[[int], BatchEnv]
"""Factory of the environments of a worker, given its seed; must be importable in another process."""

UPDATES, STEPS = 0, 1
"""Columns of `Shared.counts`."""


@dataclass(frozen=True)
class Shared:
    """Shared memory of all workers.

    Attributes:
        parameters: `[1, P]`.
        moments: moments of the optimizer, by the names in its `state_dict`.
        counts: updates and environment steps of each worker, `[W, 2]`; each worker writes only its own row, so counts
            are not lost.
    """

    parameters: Tensor
    moments: State
    counts: Tensor


class Worker:
    """One worker, in its own process.

    Args:
        index: index of the worker.
        config: hyperparameters.
        make_env: factory of its environments.
        seed: seed of its random streams.
        budget: environment steps of all workers, over which the learning rate decays to zero.
        shared: shared memory of all workers.
        compiled: whether its gradient is computed by a compiled program.
    """

    def __init__(
        self,
        index: int,
        config: A3CConfig,
        make_env: MakeEnv,
        *,
        seed: int,
        budget: int,
        shared: Shared,
        compiled: bool = False,
    ) -> None:
        self.index, self.config, self.budget, self.shared = index, config, budget, shared
        self.local = A2C(config, make_env(seed), seeds=[seed], budget=budget, algorithm="a3c")
        self.close = self.local.close
        self.local.gradient.compiled = compiled
        self.optimizer = OPTIMIZERS[config.optimizer](
            shared.parameters, epsilon=config.adam_eps, max_grad_norm=config.max_grad_norm
        )
        self.optimizer.adopt(shared.moments)
        self._told: dict[str, list[float]] = {}

    def run(self, target: int, stopped: Callable[[], bool]) -> list[list[float]]:
        """Update until all workers together have taken `target` steps, and report every update (`REPORT`)."""
        config, counts, agent = self.config, self.shared.counts, self.local.agent
        reports: list[Tensor] = []
        while (consumed := int(counts[:, STEPS].sum())) < target and not stopped():
            read = int(counts[:, UPDATES].sum())
            agent.parameters.copy_(self.shared.parameters)
            rollout = agent.collect(config.num_steps)
            gradient, losses = self.local.gradient(self.local.estimate_advantages(rollout))
            learning_rate = scheduled(config.learning_rate, config.lr_schedule, remaining(consumed, self.budget))
            staleness = int(counts[:, UPDATES].sum()) - read
            skipped = self.optimizer.skipped.clone()
            norm = self.optimizer.step(gradient, learning_rate=learning_rate)
            counts[self.index, UPDATES] += 1
            counts[self.index, STEPS] += self.local.rollout_steps
            episodes = [rollout.metrics[f"rollout/{name}"] for name in ("episodes", "episode_return", "episode_length")]
            self._hear(rollout.metrics)
            own = [torch.tensor([staleness]), self.optimizer.skipped - skipped]
            reports.append(torch.stack([*losses, norm, *episodes, *own]).double())
        return rows_of_floats(torch.cat(reports, dim=1)) if reports else [[] for _ in REPORT]

    def _hear(self, metrics: Metrics) -> None:
        """Accumulate the metrics of environments, weighted by the number of episodes."""
        episodes = float(metrics["rollout/episodes"])
        for name, value in metrics.items():
            if told_by_environments(name) and not math.isnan(mean := float(value)):
                total = self._told.setdefault(name, [0.0, 0.0])
                total[0], total[1] = total[0] + mean * episodes, total[1] + episodes

    def take_told(self) -> dict[str, list[float]]:
        """Return sum and count of the metrics of environments since the last call, by name."""
        told, self._told = self._told, {}
        return told


REPORT = (*DIAGNOSTICS, "episodes", "return", "length", "staleness", "skipped")
"""Values that a worker reports per update."""


def work(make_worker: Callable[[], Worker], connection: Connection) -> None:
    """Run a worker: update to each target received through the connection, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles interruptions
    torch.set_num_threads(1)
    try:
        worker = make_worker()
        try:
            while True:
                reports = worker.run(connection.recv(), connection.poll)
                connection.send((reports, worker.take_told()))
        finally:
            worker.close()
    except (EOFError, ConnectionError):
        return  # the parent has ended, or has closed the connection
    except Exception:
        with suppress(OSError):  # the parent may have closed the connection after an error of another worker
            connection.send(traceback.format_exc())


class Crew:
    """The worker processes; waiting for them always has a timeout.

    Args:
        config: hyperparameters.
        shared: shared memory of all workers.
        makers: one function per worker, called in its process.
    """

    def __init__(self, config: A3CConfig, shared: Shared, makers: Sequence[Callable[[], Worker]]) -> None:
        self.config, self.shared = config, shared
        # A fork server that has imported everything starts workers quickly; without one, each worker imports
        # everything.
        context: Any = torch.multiprocessing.get_context(start_method())
        context.set_forkserver_preload([__name__])
        self.connections: list[Connection] = []
        self.processes: list[Any] = []
        for maker in makers:
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(maker, theirs), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def run(self, target: int) -> tuple[list[list[float]], dict[str, float]]:
        """Run all workers to a target.

        Returns:
            Their reports of all updates, `[len(REPORT)][updates]`, and the means of the metrics of environments.

        Raises:
            WorkerError: if a worker failed, died, or made no update before the deadline. The message names it.
        """
        for index, connection in enumerate(self.connections):
            try:
                connection.send(target)
            except ConnectionError:
                self._lost(index)
        reports: list[list[float]] = [[] for _ in REPORT]
        told: dict[str, list[tuple[float, float]]] = {}
        pending = dict(enumerate(self.connections))
        seen, since = integers(self.shared.counts[:, UPDATES]), [time.monotonic()] * len(pending)
        while pending:
            ready = wait(list(pending.values()), timeout=min(1.0, self.config.deadline / 4))
            now, counts = time.monotonic(), integers(self.shared.counts[:, UPDATES])
            for index, connection in list(pending.items()):
                if counts[index] != seen[index]:
                    seen[index], since[index] = counts[index], now
                if connection in ready:
                    updates, heard = self._receive(index)
                    for column, values in zip(reports, updates, strict=True):
                        column.extend(values)
                    for name, total in heard.items():
                        told.setdefault(name, []).append(total)
                    del pending[index]
                elif now - since[index] > self.config.deadline:
                    self._fail(
                        f"worker {index} (process {self.processes[index].pid}) has made no update for "
                        f"{self.config.deadline:g} seconds. If its start or its steps are that slow, raise `deadline`; "
                        "`operant resume` continues from the last checkpoint"
                    )
        means = {name: sum(total for total, _ in parts) / sum(n for _, n in parts) for name, parts in told.items()}
        return reports, means

    def _receive(self, index: int) -> tuple[list[list[float]], dict[str, tuple[float, float]]]:
        try:
            answer = self.connections[index].recv()
        except (EOFError, ConnectionError):
            self._lost(index)
        if isinstance(answer, str):
            self._fail(f"worker {index} failed: {answer.strip().splitlines()[-1]}", answer)
        return answer

    def _lost(self, index: int) -> NoReturn:
        process = self.processes[index]
        process.join(1.0)
        self._fail(
            f"worker {index} (process {process.pid}) died with exit code {process.exitcode}. A negative exit code is "
            "the signal that killed it; -9 often means that the machine ran out of memory. `operant resume` continues "
            "from the last checkpoint"
        )

    def _fail(self, what: str, details: str = "") -> NoReturn:
        self.close()
        error = WorkerError(f"a3c: {what}")
        if details:
            error.add_note(details)
        raise error

    def close(self) -> None:
        """Stop all workers; kill those that do not stop."""
        for connection in self.connections:
            connection.close()
        until = time.monotonic() + 1.0
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()  # which also ends a stopped one
                process.join(5.0)


class A3C:
    """Learner for one seed, with workers that share its parameters.

    Args:
        config: hyperparameters.
        env: `config.num_envs` environments with the spaces of those of the workers; never stepped.
        seeds: one non-negative integer.
        budget: environment steps of all workers, over which the learning rate decays to zero.
        algorithm: name in the catalog, for messages.
        make_env: factory of a worker's environments, given its seed. Default: environments of the task of `env`.

    Attributes:
        consumed: environment steps of all workers so far.
        gradient_steps: number of gradient steps of a worker in the whole run.
        agent: the shared policy and value; the learner exposes its `act` and `noise`.
        gradient: gradient function of the workers, which compile it if it is `compiled` before they start.

    Raises:
        ValueError: if there are several seeds, the device is not the CPU, or no other process can make the task.
    """

    def __init__(
        self,
        config: A3CConfig,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "a3c",
        make_env: MakeEnv | None = None,
    ) -> None:
        if len(seeds) != 1:
            raise ValueError(
                f"a3c trains one seed at a time, got {list(seeds)}: start one run per seed (`--seeds 1`), or use a2c"
            )
        if env.device.type != "cpu":
            raise ValueError(f"a3c shares memory between processes and runs on the CPU, got device {env.device}")
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        whole = A2C(config, env, seeds=seeds, budget=budget, algorithm=algorithm)
        self.agent, self.act, self.noise, self.gradient = whole.agent, whole.act, whole.noise, whole.gradient
        self.learned, self.rollout_steps = whole.learned, whole.rollout_steps
        self.describe = whole.describe
        self.gradient_steps = whole.gradient_steps // config.workers
        parameters = in_shared_memory(self.agent.parameters)
        moments = whole.optimizer.state_dict()
        del moments["skipped"]  # each worker has its own count
        counts = torch.zeros(config.workers, 2, dtype=torch.int64)
        self.shared = Shared(
            parameters, {name: in_shared_memory(tensor) for name, tensor in moments.items()}, in_shared_memory(counts)
        )
        self.make_env = make_env or maker_like(env, config.num_envs)
        if make_env is None and only_here(env):
            require_makeable(env.task, self.make_env, deadline=config.deadline, algorithm="a3c", instead="a2c")
        self.crew: Crew | None = None

    @property
    def consumed(self) -> int:
        """Environment steps of all workers so far."""
        return int(self.shared.counts[:, STEPS].sum())

    def iterate(self) -> Metrics:
        """Run the workers for a part of the budget, and return the metrics."""
        if self.crew is None:
            self.crew = Crew(self.config, self.shared, self._makers())
        reports, told = self.crew.run(self.consumed + self.config.steps_per_iteration)
        *losses, episodes, returns, lengths, staleness, skipped = torch.tensor(reports, dtype=torch.float64)
        count = episodes.sum()
        metrics = {name: values.mean() for name, values in zip(DIAGNOSTICS, losses, strict=True)}
        metrics |= {
            # The mean over the episodes of an update is NaN if no episode ended.
            "rollout/episode_return": (returns.nan_to_num() * episodes).sum() / count,
            "rollout/episode_length": (lengths.nan_to_num() * episodes).sum() / count,
            "rollout/episodes": count,
            "staleness/mean": staleness.mean(),
            "staleness/most": staleness.max(),
            **update_metrics(torch.stack((skipped.new_tensor(len(skipped)), skipped.sum()))),
        }
        metrics |= {name: torch.tensor(mean, dtype=torch.float64) for name, mean in told.items()}
        return {name: value.reshape(1) for name, value in metrics.items()}

    def _makers(self) -> list[Callable[[], Worker]]:
        # Random streams depend on the start of the session, so a resumed run does not repeat random numbers.
        seeds = [streams.integer(self.seeds[0], "worker", index, self.consumed) for index in range(self.config.workers)]
        make = partial(
            Worker,
            config=self.config,
            make_env=self.make_env,
            budget=self.budget,
            shared=self.shared,
            compiled=self.gradient.compiled,
        )
        return [partial(make, index, seed=seed) for index, seed in enumerate(seeds)]

    def close(self) -> None:
        """Stop the workers and close the environments. It can be called twice."""
        if self.crew is not None:
            self.crew.close()
            self.crew = None
        self.agent.close()

    def state_dict(self) -> State:
        """Return parameters, optimizer and counters. Workers and environments start again after a resume."""
        return clone(
            {
                "parameters": self.shared.parameters,
                "moments": self.shared.moments,
                "counts": self.shared.counts.sum(0),
            }
        )

    @all_or_nothing
    def load_state_dict(self, state: State) -> None:
        """Restore a state, with other random numbers; an invalid state leaves the learner unchanged."""
        copy_into(self.shared.parameters, state["parameters"], "parameters")
        restore(self.shared.moments, state["moments"], "moments")
        self.shared.counts.zero_()
        copy_into(self.shared.counts[0], state["counts"], "counts")
