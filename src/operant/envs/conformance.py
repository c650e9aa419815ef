"""Conformance test of environments and wrappers: `check_batch_env`."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import gymnasium
import torch
from torch import Tensor

from operant.envs.base import BatchEnv, Step, Tree, begins_anew, is_mapping
from operant.envs.features import MASK
from operant.envs.spaces import ActionFormat, is_dict
from operant.envs.wrapper import Wrapper, for_evaluation, learned, start, unwrapped, wrappers
from operant.state import State, clone

_ATTRIBUTES = ("task", "rows", "observation_space", "action_space", "device", "always_valid")
_FLAGS = ("terminated", "truncated", "valid")


class ContractError(AssertionError):
    """Raised if an environment violates the interface `BatchEnv`."""


def check_batch_env(make: Callable[[], BatchEnv], *, seeds: Sequence[int] = (3, 5), steps: int = 100) -> None:
    """Step environments, and check the interface on which learners rely.

    Checks shapes, dtypes and devices; determinism given seeds and actions; that later steps do not modify earlier ones;
    that an environment continues bit for bit from a saved state, in the same and in another instance; and that wrappers
    do not learn in evaluations.

    Args:
        make: function that creates `B = len(seeds) * N` environments, the same at each call.
        seeds: seeds of the runs.
        steps: number of steps, enough for episodes to end.

    Raises:
        ContractError: a check fails; the message describes it.
    """
    env, other = _started(make, seeds), _started(make, seeds)
    _attributes(env)
    actions = _actions(env, 2 * steps)
    first, second = env.reset(), other.reset()
    _tree(env, first, "reset()")
    _require(_same(first, second), "two environments with the same seeds start with different observations")
    played = _play(env, actions[:steps], first)
    again = [other.step(action) for action in actions[:steps]]
    _require(_all_same(played, again), "not deterministic: the same seeds and actions lead to different steps")
    _resuming(make, env, (played[-1].obs, actions[steps:]), seeds)
    _evaluation(make, env, actions[:steps], seeds)
    for each in (env, other):
        each.close()
        each.close()


def try_once(env: BatchEnv, seeds: Sequence[int]) -> list[tuple[Wrapper, str]]:
    """Start environments, take one step, save their state, and check the shapes of everything.

    Args:
        env: environments that are used for nothing else.
        seeds: seeds of the runs.

    Returns:
        The wrappers and names of their public tensors that the step has changed and no state contains.

    Raises:
        ContractError: a check fails; the message describes it.
    """
    start(env, seeds)
    _attributes(env)
    obs = env.reset()
    _tree(env, obs, "reset()")
    before = [(wrapper, name, part.clone()) for wrapper in wrappers(env) for name, part in _unsaved(wrapper).items()]
    if not is_mapping(obs) or MASK not in obs:  # a random action may not be allowed
        _step(env, env.step(_actions(env, 1)[0]))
    for wrapper in wrappers(env):
        for name, values in wrapper.metrics().items():
            shape = [*values.shape] if isinstance(cast(object, values), Tensor) else f"a {type(values).__name__}"
            _require(
                shape == [len(seeds)], f"metrics()[{name!r}] must be a tensor of shape [{len(seeds)}], got {shape}"
            )
    try:
        env.state_dict()
    except AttributeError as error:
        raise ContractError(f"its state cannot be saved, as STATE names what it does not have: {error}") from error
    now = {wrapper: _unsaved(wrapper) for wrapper in wrappers(env)}
    return [(wrapper, name) for wrapper, name, part in before if not _same(now[wrapper].get(name, part), part)]


def _unsaved(wrapper: Wrapper) -> dict[str, Tensor]:
    """Return the public tensors of a wrapper that are not in its state, by name."""
    saved = {entry if isinstance(entry, str) else entry[1] for entry in wrapper.STATE}
    parts = {name: part for name, part in vars(wrapper).items() if name not in saved and not name.startswith("_")}
    return {name: part for name, part in parts.items() if isinstance(part, Tensor)}


def _started(make: Callable[[], BatchEnv], seeds: Sequence[int]) -> BatchEnv:
    env = make()
    start(env, seeds)
    return env


def _require(kept: bool, otherwise: str) -> None:
    if not kept:
        raise ContractError(otherwise)


def _attributes(env: BatchEnv) -> None:
    missing = [name for name in _ATTRIBUTES if not hasattr(env, name)]
    _require(not missing, f"the environment has no attribute {', '.join(missing)}")
    _require(env.rows >= 1, f"rows must be at least 1, got {env.rows}")
    ActionFormat.of(env.action_space, env.rows)


def _actions(env: BatchEnv, steps: int) -> list[Tensor]:
    """Draw actions `[B, ...]` from the action space, with a fixed seed."""
    space = deepcopy(env.action_space)
    space.seed(0)
    columns = [torch.stack([torch.as_tensor(space.sample()) for _ in range(env.rows)]) for _ in range(steps)]
    return [column.to(env.device) for column in columns]


def _play(env: BatchEnv, actions: Sequence[Tensor], obs: Tree) -> list[Step]:
    """Take and check steps, and check that later steps do not modify earlier ones."""
    steps: list[Step] = []
    copies: list[Any] = []
    names: set[str] | None = None
    for action in actions:
        step = env.step(action)
        _step(env, step)
        found = set(step.extras or {})
        _require(names is None or names == found, f"extras are {sorted(found)} at one step and others before")
        names = found
        steps.append(step)
        copies.append(clone(_parts(step)))
    _require(
        all(_same(_parts(step), copy) for step, copy in zip(steps, copies, strict=True)),
        "a step was modified after it was returned: return new tensors",
    )
    return steps


def _parts(step: Step) -> dict[str, Any]:
    return {name: part for name, part in step._asdict().items() if part is not None}


def _step(env: BatchEnv, step: Step) -> None:
    _require(isinstance(cast(object, step), Step), f"step() must return a Step, got {step!r:.80}")
    for name in ("reward", "score", *_FLAGS):
        tensor = getattr(step, name)
        dtype = "torch.bool" if name in _FLAGS else "a float"
        fits = tensor.dtype is torch.bool if name in _FLAGS else tensor.is_floating_point()
        _require(
            fits and tensor.shape == (env.rows,) and tensor.device.type == env.device.type,
            f"Step.{name} must be {dtype} of shape [{env.rows}] on {env.device}, got {tensor.dtype} "
            f"{[*tensor.shape]} on {tensor.device}",
        )
    _tree(env, step.obs, "Step.obs")
    _tree(env, step.final_obs, "Step.final_obs")
    _require(not env.always_valid or bool(step.valid.all()), "always_valid is true, but a step is invalid")
    goes_on = step.valid & ~(step.terminated | step.truncated)
    _require(
        _same(_rows(step.obs, goes_on), _rows(step.final_obs, goes_on)),
        "obs and final_obs differ although the episode continues",
    )
    for name, extra in (step.extras or {}).items():
        _require(
            extra.shape[:1] == (env.rows,),
            f"extras[{name!r}] must have {env.rows} rows, got shape {[*extra.shape]}",
        )


def _tree(env: BatchEnv, obs: Tree, where: str) -> None:
    """Check that the structure, shapes and devices of observations match their space."""

    def look(space: gymnasium.Space[Any], part: Tree, path: str) -> None:
        if is_dict(space):
            _require(
                isinstance(part, Mapping) and part.keys() == space.spaces.keys(),
                f"{path} must have the parts {sorted(space.spaces)}",
            )
            for name, inner in space.spaces.items():
                look(inner, part[name], f"{path}[{name!r}]")  # pyright: ignore[reportArgumentType, reportCallIssue]
            return
        shape = (env.rows, *(space.shape or ()))
        _require(isinstance(part, Tensor), f"{path} must be a tensor, got a {type(part).__name__}")
        tensor: Any = part
        _require(tuple(tensor.shape) == shape, f"{path} must have shape {[*shape]}, got {[*tensor.shape]}")
        _require(tensor.device.type == env.device.type, f"{path} must be on {env.device}, got {tensor.device}")

    look(env.observation_space, obs, where)


def _rows(tree: Tree, mask: Tensor) -> Tree:
    return tree[mask] if isinstance(tree, Tensor) else {name: _rows(part, mask) for name, part in tree.items()}


def _same(left: Any, right: Any) -> bool:
    """Return whether two trees of tensors are bitwise equal; NaN equals NaN."""
    if isinstance(left, Tensor):
        return (
            left.shape == right.shape
            and left.dtype == right.dtype
            and bool(
                ((left == right) | ((left != left) & (right != right))).all()  # noqa: PLR0124 - true for NaN
            )
        )
    if is_mapping(left):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple):
        items = cast(Sequence[Any], left)
        return len(items) == len(right) and all(_same(*pair) for pair in zip(items, right, strict=True))
    return bool(left == right)


def _all_same(left: Sequence[Step], right: Sequence[Step]) -> bool:
    return all(_same(_parts(one), _parts(other)) for one, other in zip(left, right, strict=True))


def _resuming(
    make: Callable[[], BatchEnv], env: BatchEnv, course: tuple[Tree, Sequence[Tensor]], seeds: Sequence[int]
) -> None:
    """Check that another environment, and the same one, continue unchanged from a saved state."""
    obs, actions = course
    saved: State = env.state_dict()
    before = clone(saved)
    expected = [env.step(action) for action in actions]
    _require(_same(saved, before), "later steps modified a saved state: return copies of tensors")
    if begins_anew(env):
        return
    fresh = _started(make, seeds)
    fresh.reset()
    for which, resumed in (("another", fresh), ("the same", env)):
        seen = resumed.load_state_dict(clone(saved))
        _require(_same(seen, obs), f"load_state_dict of {which} environment returns other observations than the last")
        _require(_same(resumed.state_dict(), saved), f"{which} environment has another state after loading it")
        again = [resumed.step(action) for action in actions]
        _require(_all_same(expected, again), f"{which} environment continues differently from a saved state")
    fresh.close()


def _evaluation(make: Callable[[], BatchEnv], env: BatchEnv, actions: Sequence[Tensor], seeds: Sequence[int]) -> None:
    """Check that the learned state of wrappers has a seed axis, and does not change in an evaluation."""
    before = {name: tensor.clone() for name, tensor in learned(env).items()}
    for name, tensor in before.items():
        _require(
            tensor.shape[:1] == (len(seeds),),
            f"learned state needs a first axis of {len(seeds)} seeds, but {name!r} has shape {[*tensor.shape]}",
        )
    played = for_evaluation(env, unwrapped(make()), seeds)
    played.reset()
    for action in actions:
        played.step(action)
    _require(_same(learned(env), before), "an evaluation changed the learned state: see Wrapper.training")
    played.close()
