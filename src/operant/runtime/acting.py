"""Noise of a policy, and checks of the actions that it returns: `draw_noise`, `require_actions`, `try_policy`."""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor

from operant import streams
from operant.envs.base import BatchEnv, Tree, is_mapping
from operant.envs.spaces import ActionFormat, first_member, is_box, is_multi_discrete
from operant.runtime.learner import Policy

_MARGIN = 1e-3
"""Tolerance of the bounds of continuous actions, for rounding errors."""


def split(tree: Tree, seeds: int) -> Tree:
    """View a tree of `[S*N, ...]` as `[S, N, ...]`."""
    if is_mapping(tree):
        return {key: split(value, seeds) for key, value in tree.items()}
    return tree.view(seeds, -1, *tree.shape[1:])


def draw_noise(policy: Policy, rows: int, generators: Sequence[torch.Generator]) -> Tensor:
    """Draw the noise of sampled actions `[S, N, ...]`, of every seed from its own generator.

    Args:
        policy: policy of S seeds.
        rows: number of environments per seed, N.
        generators: one generator per seed.

    Raises:
        ValueError: `Policy.noise` returns something else than a tensor `[N, ...]`.
    """

    def draw(generator: torch.Generator) -> Tensor:
        noise = policy.noise(rows, generator)
        shape = tuple(noise.shape) if isinstance(noise, Tensor) else None  # pyright: ignore[reportUnnecessaryIsInstance] - of a user's policy
        if not shape or shape[0] != rows:
            raise ValueError(
                f"{type(policy).__name__}.noise must return a tensor of shape ({rows}, ...), the noise of {rows} "
                f"environments of one seed, got {noise if shape is None else shape!r}: leave out an axis of seeds"
            )
        return noise

    return streams.draw(generators, draw)


def require_actions(returned: Any, env: BatchEnv, seeds: int, name: str) -> None:
    """Check what `Policy.act` returned for all environments of all seeds.

    Args:
        returned: actions `[S, N, ...]` and the next hidden state.
        env: `S * N` environments.
        seeds: number of seeds, S.
        name: name of the policy in messages.

    Raises:
        ValueError: it is no such pair, or the actions have another shape or dtype or are outside the action space.
    """
    pair = cast(tuple[Any, ...], returned)
    if not isinstance(returned, tuple) or len(pair) != 2 or not isinstance(pair[0], Tensor):
        raise ValueError(
            f"{name}.act must return a pair, a tensor of actions and the next hidden state (None if there is none), "
            f"got {returned!r:.80}"
        )
    actions: Tensor = pair[0]
    form = ActionFormat.of(env.action_space, env.rows)
    expected = (seeds, env.rows // seeds, *form.shape[1:])
    if tuple(actions.shape) != expected:
        raise ValueError(
            f"{name}.act must return actions of shape {expected}, seeds and environments"
            f"{'' if expected[2:] == () else ' and the shape of an action'}, got {tuple(actions.shape)}"
        )
    try:
        form.check(actions.flatten(0, 1))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}.act: {error}") from error
    if (outside := _outside(actions, env.action_space)).any():
        raise ValueError(f"{name}.act returned the action {actions[outside][0].item()}, not in {env.action_space}")


def try_policy(policy: Policy, env: BatchEnv, seeds: int, name: str) -> None:
    """Let a policy act on first observations, greedily and with noise, and check its actions (`require_actions`).

    Args:
        policy: policy of S seeds.
        env: environments that are used for nothing else.
        seeds: number of seeds, S.
        name: name of the policy in messages.
    """
    obs = split(env.reset(), seeds)
    generators = streams.of_seeds(range(seeds), "trial", device=env.device)
    rows = env.rows // seeds
    with torch.no_grad():
        draw_noise(policy, rows + 1, generators)  # of one row, an axis of seeds and one of rows have the same size
        for noise in (None, draw_noise(policy, rows, generators)):
            require_actions(policy.act(obs, None, noise), env, seeds, name)


def _outside(actions: Tensor, space: gymnasium.Space[Any]) -> Tensor:
    """Return a mask of the components of actions that are outside the space."""
    if is_box(space):
        low, high = space.low - _MARGIN, space.high + _MARGIN
    else:
        low = first_member(space)
        count = space.nvec if is_multi_discrete(space) else space.n if isinstance(space, spaces.Discrete) else 2
        high = low + count - 1
    least, most = (torch.as_tensor(bound, device=actions.device) for bound in (low, high))
    return ~((actions >= least) & (actions <= most))
