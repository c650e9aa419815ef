"""Identification of parameters of MuJoCo's models, whose contacts make the squared residuals a rough function of them.

The windows and their unknown start states are those of `identify`, but derivatives with respect to the start states are
differences over the width of the noise, and the parameters are not found by derivatives. In each round:

1. The start states are eliminated from the residuals, linearly.
2. CMA-ES (Hansen & Ostermeier 2001) minimizes the remaining squares over the logarithms of the parameters, in the
   coordinates of the present estimate of the posterior.
3. The start states move, and the noise is estimated again from the residuals.

Then importance sampling, whose proposals adapt to the draws before (population Monte Carlo; Cappé et al. 2004), gives
the mean and the covariance of the posterior. As long as few draws would have most of the weight, their weights are
raised to a power below 1, so the proposals are too wide rather than too narrow.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from operant import streams
from operant.envs import TENSOR_ENVS, BatchEnv, GymnasiumEnv
from operant.envs.randomize import MuJoCoPhysics
from operant.explore.shooting import Fit, Trajectories, windows
from operant.runtime.cma_es import require_cma, strategy_of
from operant.tensors import integers, linalg

WINDOW_WITH_CONTACTS = 5
"""Default number of actions per window: after several contacts, the state depends on the start too irregularly."""

FIRST_WIDTH = 0.3
"""Standard deviation of the first generation of CMA-ES, in the logarithms of the parameters."""

FARTHEST = math.log(20)
"""Maximum distance from the nominal values, in the logarithms of the parameters."""

MOST_ROUNDS = 10
"""Maximum number of rounds; about four are typical."""

STEPS = 3
"""Steps of the start states per round."""

SHARES = (1.0, 0.5, 0.25, 0.1)
"""Lengths that are tried for each step: beyond a contact, the whole one may lead nowhere."""

GENERATIONS = 20
"""Maximum number of generations of CMA-ES per round."""

DRAWS = 100
"""Number of draws per proposal."""

MOST_PROPOSALS = 6
"""Maximum number of proposals; about two are typical."""

FEWEST = 0.3
"""Minimum effective sample size, as a fraction of the draws."""

WIDER = 1.3
"""Factor of the standard deviation of proposals, which have to be wider than the posterior."""

EXACT = 1e-6
"""Minimum noise in standard deviations of the observations, as in recordings of this simulator itself."""

WORST = 1e100
"""Cost of a simulation that diverged."""


@runtime_checkable
class MuJoCoTask(Protocol):
    """An environment of MuJoCo whose state can be set from an observation, as Gymnasium's of version 5.

    Attributes:
        model: the model.
        data: the state of the simulation.
        frame_skip: steps of the simulation per action.
        observation_structure: numbers of components of the observation, which begins with `qpos` and `qvel`, and the
            number of positions which it leaves out, `skipped_qpos`.
        observation_space: space of observations.
        action_space: space of actions.
    """

    model: Any
    data: Any
    frame_skip: int
    observation_structure: Mapping[str, int]
    observation_space: Any
    action_space: Any

    def set_state(self, qpos: Any, qvel: Any) -> None:
        """Set positions and velocities."""
        ...

    def do_simulation(self, ctrl: Any, n_frames: int) -> None:
        """Apply an action for some steps of the simulation."""
        ...

    def _get_obs(self) -> Any: ...


def mujoco_task(env: BatchEnv) -> MuJoCoTask:
    """Return the single environment whose state can be set from an observation.

    Raises:
        ValueError: if there is none.
    """
    single = env.singles[0].unwrapped if isinstance(env, GymnasiumEnv) and env.singles else None
    if not hasattr(getattr(single, "model", None), "body_mass"):
        missing = "MuJoCo does not simulate it"
    elif not isinstance(single, MuJoCoTask):
        missing = "its environment lacks observation_structure, so observations do not determine its state"
    else:
        return single
    others = ", ".join(task for task, kind in TENSOR_ENVS.items() if kind.DEFAULTS)
    raise ValueError(
        f"{env.task!r} has no tensor environment, and {missing}; parameters can be identified of {others}, and of "
        "Gymnasium's tasks of MuJoCo with observation_structure, such as Hopper-v5"
    )


def identify_mujoco(
    task: str, single: MuJoCoTask, trajectories: Trajectories, names: Sequence[str], window: int
) -> tuple[Tensor, Tensor, Fit]:
    """Return mean `[P]` and covariance `[P, P]` of the logarithms of the factors, and the fit.

    Raises:
        ValueError: if a name is unknown, observations or actions have another size, the trajectories do not distinguish
            some parameters, or an estimate is too far from the nominal value.
        ModuleNotFoundError: if the package `cma` is not installed.
    """
    require_cma("identification with MuJoCo needs")
    problem = _Problem(task, single, trajectories, names, window)
    generator = np.random.Generator(np.random.PCG64(streams.seed_sequence(0, "identification")))
    logs, factor = torch.zeros(len(names)).double(), FIRST_WIDTH * torch.eye(len(names)).double()
    fit = problem.linearized(logs, problem.spread, 0.1 * _deviations(factor), 1e-3 * problem.spread)
    fit.covariance(names)  # or an error that names unknown parameters
    for number in range(MOST_ROUNDS):
        before, moved = fit.scale, _cma_es(problem.remaining(fit), logs, factor, generator)
        logs = logs + factor @ moved
        if logs.abs().max() > FARTHEST - 0.1:
            name = names[int(logs.abs().argmax())]
            raise ValueError(
                f"the factor of {name} is not between {math.exp(-FARTHEST):g} and {math.exp(FARTHEST):g}: correct the "
                "model, or record more movement"
            )
        noise = before.minimum(0.1 * problem.spread)
        for _ in range(STEPS):
            fit = problem.moved(logs, problem.linearized(logs, before, _deviations(factor).clamp(1e-5, 0.1), noise))
        factor = linalg.cholesky(fit.covariance(names))
        if number and moved.square().sum() < 1.0 and (fit.scale / before).log().abs().max() < 0.05:
            break
    mean, covariance = importance_sampling(problem.remaining(fit), logs, factor, generator)
    return mean, covariance, fit


def _deviations(factor: Tensor) -> Tensor:
    """Return the standard deviations `[P]` of a covariance, from its Cholesky factor."""
    return factor.square().sum(1).sqrt()


def _cma_es(cost: Callable[[Tensor], float], start: Tensor, factor: Tensor, generator: np.random.Generator) -> Tensor:
    """Return the `x [P]` at which `cost(start + factor @ x)` is least."""
    strategy = strategy_of(np.zeros(len(start)), 1.0, generator, maxiter=GENERATIONS, tolx=0.1)
    while not strategy.stop():
        asked = strategy.ask()
        strategy.tell(asked, [cost(start + factor @ torch.as_tensor(x)) for x in asked])
    return torch.as_tensor(np.array(strategy.mean))


def importance_sampling(
    cost: Callable[[Tensor], float], mean: Tensor, factor: Tensor, generator: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return mean `[P]` and covariance `[P, P]` of the density proportional to `exp(-cost)`.

    Args:
        cost: minus the logarithm of the density, up to a constant.
        mean: mean `[P]` of the first proposal.
        factor: Cholesky factor `[P, P]` of its covariance.
        generator: source of the draws.
    """
    covariance = factor @ factor.mT
    for number in range(MOST_PROPOSALS):
        unit = torch.as_tensor(generator.standard_normal((DRAWS, len(mean))))
        draws = mean + WIDER * unit @ linalg.cholesky(covariance).mT
        logs = 0.5 * unit.square().sum(1) - torch.tensor([cost(each) for each in draws], dtype=torch.float64)
        weights, power = _tempered(logs)
        mean = weights @ draws
        covariance = torch.einsum("n,np,nq->pq", weights, draws - mean, draws - mean)
        if number and power == 1.0:
            break
    return mean, covariance


def _tempered(logs: Tensor) -> tuple[Tensor, float]:
    """Return weights `[n]`, and the largest power up to 1 with which they have the required effective sample size."""
    low, high = 0.0, 1.0
    power = high
    for _ in range(40):
        weights = (power * (logs - logs.max())).softmax(0)
        if weights.square().sum() * FEWEST * len(logs) <= 1:
            if power == 1.0:
                return weights, power
            low = power
        else:
            high = power
        power = (low + high) / 2
    return (low * (logs - logs.max())).softmax(0), low


class _Problem:
    """Windows of trajectories, their start states, and an environment for them.

    Attributes:
        starts: `[W, D]` observed components of the state at the start of each window.
        spread: `[D]` standard deviation of the observations.
    """

    def __init__(
        self, task: str, single: MuJoCoTask, trajectories: Trajectories, names: Sequence[str], window: int
    ) -> None:
        structure = single.observation_structure
        self.skipped, self.positions = structure.get("skipped_qpos", 0), structure["qpos"]
        components = self.positions + structure["qvel"]
        sizes = sorted({components, *single.observation_space.shape})
        if trajectories.observations.shape[2] not in sizes:
            raise ValueError(
                f"observations of {task} have {' or '.join(map(str, sizes))} components, got "
                f"{trajectories.observations.shape[2]}"
            )
        if tuple(trajectories.actions.shape[2:]) != single.action_space.shape:
            raise ValueError(
                f"actions of {task} have the shape {list(single.action_space.shape)}, got "
                f"{list(trajectories.actions.shape[2:])}"
            )
        self.reset: Callable[[Any, Any], None] = import_module("mujoco").mj_resetData
        self.shown: Callable[[], np.ndarray] = single._get_obs  # pyright: ignore[reportPrivateUsage] - no public one
        self.single, self.names, self.physics = single, names, MuJoCoPhysics([single.model], names, task)
        obs, actions, observed = windows(trajectories, window)
        self.observed, self.actions = obs[..., :components], actions.numpy()
        self.lengths = integers(observed.sum(1))
        self.seen = observed.unsqueeze(2).expand_as(self.observed)
        self.starts = self.observed[:, 0].clone()
        self.spread = self.observed[observed].std(0).clamp(min=1e-9)

    def linearized(self, logs: Tensor, scale: Tensor, wide: Tensor, noise: Tensor) -> Fit:
        """Return the residuals and their central differences.

        Args:
            logs: `[P]` logarithms of the factors.
            scale: `[D]` by which residuals are divided.
            wide: `[P]` steps of the logarithms.
            noise: `[D]` steps of the components of the start states.
        """
        width = torch.cat([wide, noise.maximum(EXACT * self.spread)])
        differences: list[Tensor] = []
        for change in width.diag():
            by_logs, by_starts = change.split_with_sizes([len(logs), len(noise)])
            up = self._residual(logs + by_logs, self.starts + by_starts, scale)
            down = self._residual(logs - by_logs, self.starts - by_starts, scale)
            differences.append((down - up) / (2 * change.sum()))
        by_logs, by_starts = torch.stack(differences, 2).split_with_sizes([len(logs), len(noise)], 2)
        return Fit(self._residual(logs, self.starts, scale), by_logs, by_starts, scale, self.seen.flatten(1))

    def moved(self, logs: Tensor, fit: Fit) -> Fit:
        """Move start states where that makes the residuals smaller, and return the fit there, with its noise."""
        steps = linalg.lstsq(fit.by_starts, fit.residual.unsqueeze(2)).solution.squeeze(2)
        begin, residual = self.starts, fit.residual
        for share in SHARES:
            trial = self._residual(logs, begin + share * steps, fit.scale)
            better = (trial.square().sum(1) < residual.square().sum(1)).unsqueeze(1)
            self.starts = torch.where(better, begin + share * steps, self.starts)
            residual = torch.where(better, trial, residual)
        return replace(fit, residual=residual).reweighted(EXACT * self.spread)

    def remaining(self, fit: Fit) -> Callable[[Tensor], float]:
        """Return half the sum of the squared residuals as a function of the parameters, start states eliminated."""
        basis, _ = linalg.qr(fit.by_starts)

        def cost(logs: Tensor) -> float:
            if logs.abs().max() > FARTHEST:
                return WORST
            residual = self._residual(logs, self.starts, fit.scale).unsqueeze(2)
            squares = 0.5 * (residual - basis @ (basis.mT @ residual)).square().sum().item()
            return squares if squares < WORST else WORST

        return cost

    def _residual(self, logs: Tensor, starts: Tensor, scale: Tensor) -> Tensor:
        """Return the residuals `[W, m]` at logarithms of factors `[P]` and start states `[W, D]`."""
        self.physics.apply(dict(zip(self.names, logs.exp().unsqueeze(1), strict=True)))
        shown = np.empty(self.observed.shape)
        for i, start in enumerate(starts.numpy()):
            self._simulate(start, self.actions[i, : self.lengths[i] - 1], shown[i])
        return ((self.observed - torch.as_tensor(shown)) / scale).masked_fill(~self.seen, 0.0).flatten(1)

    def _simulate(self, start: np.ndarray, actions: np.ndarray, shown: np.ndarray) -> None:
        """Write the observations `[K+1, D]` from a start state `[D]` on."""
        single = self.single
        # What solvers remember from other simulations would change the result a little.
        self.reset(single.model, single.data)
        # The dynamics do not depend on positions that observations leave out.
        single.set_state(np.pad(start[: self.positions], (self.skipped, 0)), start[self.positions :])
        shown[0] = self.shown()[: len(start)]
        for row, action in zip(shown[1:], actions, strict=False):
            single.do_simulation(action, single.frame_skip)
            row[:] = self.shown()[: len(start)]
