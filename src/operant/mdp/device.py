"""Sweeps on any PyTorch device with sparse matrix-vector products."""

import warnings

import numpy as np
import torch
from torch import Tensor

from operant.mdp.iteration import Iteration
from operant.runtime.machine import chosen_device
from operant.tensors import sparse_csr_tensor

__all__ = ["iterate_on_device"]

CHECKS = 10
"""Sweeps between checks of the bounds, which synchronize with the device."""


def _matrix(indptr: Tensor, successors: Tensor, probabilities: Tensor, columns: int) -> Tensor:
    with warnings.catch_warnings():  # PyTorch warns about its beta CSR
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)", category=UserWarning)
        size = (indptr.numel() - 1, columns)
        return sparse_csr_tensor(indptr, successors, probabilities, size, check_invariants=False)


def _select(rows: tuple[Tensor, Tensor, Tensor], chosen: Tensor, columns: int) -> Tensor:
    """Return some rows of a sparse matrix."""
    indptr, successors, probabilities = rows
    lengths = indptr[chosen + 1] - indptr[chosen]
    begins = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    shifts = torch.repeat_interleave(indptr[chosen] - begins[:-1], lengths)
    entries = torch.arange(shifts.numel(), device=shifts.device) + shifts
    return _matrix(begins, successors[entries], probabilities[entries], columns)


def iterate_on_device(solver: Iteration, device: str, *, evaluations: int = 0) -> None:
    """Alternate improvements of all states and sweeps over the policy's rows, until the bounds are close.

    Args:
        solver: a new solver with a discount, which is updated in place.
        device: a PyTorch device.
        evaluations: sweeps after an improvement; 0 for value iteration.

    Raises:
        ValueError: if there is no discount, or this machine has no such device.
    """
    device = chosen_device(device)
    problem, rows = solver.problem, solver.problem.rows
    if not problem.discounted:
        raise ValueError(f"gamma is {rows.gamma} and device is {device!r}, expected gamma below 1 with a device")
    sparse = (
        torch.as_tensor(rows.indptr.view(np.int64), device=device),
        torch.as_tensor(rows.successors.astype(np.int64), device=device),
        torch.as_tensor(rows.probabilities, device=device),
    )
    rewards, terminal = torch.as_tensor(rows.rewards, device=device), torch.as_tensor(problem.terminal, device=device)
    matrix, first_rows = _matrix(*sparse, problem.states), torch.arange(problem.states, device=device) * rows.actions
    values = torch.as_tensor(solver.values, device=device)
    for count in solver.rounds():
        table = (rewards + rows.gamma * (matrix @ values)).view(problem.states, rows.actions)
        best, actions = table.max(dim=1)
        before, values = values, best.masked_fill(terminal, 0.0)
        if not evaluations and count % CHECKS and count < solver.limit:
            continue
        change = (values - before)[~terminal]
        if change.numel():
            solver.change = change.min().item(), change.max().item()
        solver.values, solver.policy = values.cpu().numpy(), actions.masked_fill(terminal, -1).cpu().numpy()
        if solver.finished:
            break
        if problem.even:
            problem.center(solver.values, solver.change)
            values = torch.as_tensor(solver.values, device=device)
        if evaluations:
            chosen = first_rows + actions
            chain, earned = _select(sparse, chosen, problem.states), rewards[chosen].masked_fill(terminal, 0.0)
            for _ in range(evaluations):
                values = earned + rows.gamma * (chain @ values)
