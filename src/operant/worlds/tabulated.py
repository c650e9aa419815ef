"""A learned model of a finite world as a table: the predictions of an ensemble for every state and action.

The networks see states and actions as one-hot vectors, and predict the change of a vector. The successor is the index
of the largest entry, and samples of successors and ends are counted like those of an environment.
"""

import numpy as np
import torch

from operant.mdp import MDP
from operant.worlds.ensemble import LearnedModel


@torch.no_grad()
def tabulated(
    model: LearnedModel,
    *,
    states: int,
    actions: int,
    start: np.ndarray,
    generators: list[torch.Generator],
    samples: int = 20,
) -> list[MDP]:
    """Return the ensemble of each seed as a known model.

    Args:
        model: model of one-hot states and actions.
        states: number of states.
        actions: number of actions.
        start: `[states]`, the distribution of the first state.
        generators: one per seed, for the samples.
        samples: number of samples per network, state and action.

    Raises:
        ValueError: if the model has vectors of another size.
    """
    if model.width != states:
        raise ValueError(
            f"the model has observations of size {model.width}, expected one-hot vectors of {states} states"
        )
    members, device = model.members, model.parameters.device
    state, action = (
        part.flatten() for part in torch.meshgrid(torch.arange(states), torch.arange(actions), indexing="ij")
    )
    state, action = (part.repeat_interleave(samples).to(device) for part in (state, action))
    obs, acted = torch.eye(states, device=device)[state], torch.eye(actions, device=device)[action]
    shape = members, len(state), states + 1
    noise = torch.cat([torch.empty(shape, device=device).normal_(generator=g) for g in generators])
    rows = len(generators) * members
    prediction = model.predict(obs.expand(rows, -1, -1), acted.expand(rows, -1, -1), noise)
    chance = torch.cat([torch.empty(shape[:2], device=device).uniform_(generator=g) for g in generators])
    successors = prediction.next_obs.argmax(-1).view(len(generators), members, -1)
    ends = (chance >= prediction.continues).view_as(successors)
    rewards = prediction.rewards.view(len(generators), members, states, actions, samples).mean((1, 4))
    cells = (state * actions + action).expand(members, -1)
    tables = [
        _columns((cells * states + successors[seed]) * 2 + ends[seed], rewards[seed].cpu().numpy().astype(np.float64))
        for seed in range(len(generators))
    ]
    return [MDP.from_table(columns, states=states, actions=actions, start=start) for columns in tables]


def _columns(codes: torch.Tensor, rewards: np.ndarray) -> dict[str, np.ndarray]:
    """Return the transitions with their frequencies in the samples.

    Args:
        codes: `[K, n]` state, action, successor and termination, encoded as one number.
        rewards: `[states, actions]`.
    """
    states, actions = rewards.shape
    outcomes, counts = np.unique(codes.flatten().cpu().numpy(), return_counts=True)
    cell, outcome = np.divmod(outcomes, 2 * states)
    return {
        "s": cell // actions,
        "a": cell % actions,
        "s'": outcome // 2,
        "p": counts / (codes.numel() / rewards.size),
        "r": rewards.flatten()[cell],
        "terminates": outcome % 2,
    }
