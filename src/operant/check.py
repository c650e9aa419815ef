"""Conformance test of learners, like Gymnasium's `check_env`: `check_learner`."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, cast

import torch
from torch import Tensor

from operant.build import check_names, find, package
from operant.envs.base import is_mapping
from operant.runtime.acting import try_policy
from operant.runtime.encoding import flatten, unflatten
from operant.runtime.learner import METHODS, HasWeights
from operant.runtime.metrics_window import LOSSES
from operant.runtime.settings import Settings
from operant.state import State, clone
from operant.tensors import nested

Make = Callable[[Sequence[int]], Any]
"""Function that creates a new learner for the given seeds."""

ACTING = ("act", "noise")
"""Methods of policies, which learners in other packages than deep control may lack."""

_ENVIRONMENTS = ("env", "agent.collector.env", "collector.env")

RESUMABLE = "name it in STATE, if the learner inherits from operant.state.Resumable"


class LearnerError(Exception):
    """Raised if a learner violates the contract; the message describes the violation and its fix."""


def check_learner(
    learner: str | type | Make,
    task: str | None = None,
    *,
    seeds: Sequence[int] = (0, 1),
    iterations: int = 2,
    rtol: float = 1e-5,
    budget: int = 10_000,
    **parameters: Any,
) -> None:
    """Check that a learner can be trained, saved and resumed, and that its seeds are independent.

    Creates several learners, runs a few iterations of each, and checks that

    - `consumed` grows, and each metric is one number or one per seed and is not modified later;
    - learners with equal seeds give the same results, bit for bit;
    - a new learner that loads the state of another continues with the same results, bit for bit;
    - loading a state that lacks an entry, or has a tensor of another shape, raises an error and changes nothing;
    - every seed gives the same results alone and with other seeds;
    - a policy returns actions of the right shape within the action space, greedily and with noise, if the learner has
      one and its environments are known: with a task, or as the attribute `env`;
    - `close` can be called twice.

    Use small networks and few environments: the check runs about ten iterations.

        check_learner(lambda seeds: Mine(config, make("CartPole-v1", 4, seeds), seeds=seeds, budget=1000))

    Args:
        learner: function that creates a new learner for the given seeds. With a task, a tabular or deep-control
            algorithm as in `operant.train`: a name, a class, or its path.
        task: training task of the algorithm.
        seeds: seeds of the learners; with a single seed, independence between seeds is not checked.
        iterations: iterations before the state is saved, enough for every part of the state to change.
        rtol: tolerance between a seed alone and with others, relative to the largest absolute value in the tensor or
            to 1, whichever is larger.
        budget: training budget of the algorithm.
        **parameters: fields of the algorithm's configuration.

    Raises:
        LearnerError: the learner violates the contract.
        ValueError: a name is unknown, or a value out of its range.
    """
    if not len(seeds) or iterations < 1:
        raise ValueError(f"at least one seed and one iteration are needed, got seeds={seeds} and {iterations=}")
    with ExitStack() as stack:

        def make(seeds_: Sequence[int]) -> Any:
            if task is not None or isinstance(learner, str):
                made = _named(learner, task, seeds_, budget, parameters)
            else:
                made = learner(seeds_)
            _require_parts(made)
            stack.callback(_close, made)
            return made

        first = make(seeds)
        _check_steps(first, iterations, len(seeds))
        _check_repeats(first, make(seeds), iterations)
        _check_resumption(first, make(seeds))
        _check_refusals(first, make(seeds))
        if len(seeds) > 1:
            _check_neighbors(make, seeds, iterations, rtol)
        _check_actions(make(seeds), len(seeds))
        _check_close(first)


def _named(learner: Any, task: str | None, seeds: Sequence[int], budget: int, parameters: Mapping[str, Any]) -> Any:
    entry = find(learner)
    if task is None:
        raise ValueError(f"{entry.name} needs a task for the check: check_learner({entry.name!r}, 'CartPole-v1')")
    if entry.package == "language":
        raise ValueError(f"{entry.name} trains a language model: pass check_learner a function that makes its learner")
    check_names(entry, parameters)
    settings = Settings(algorithm=entry.name, task=task, seeds=tuple(seeds), budget=budget, compile="off")
    config = package(entry).configuration(entry, task, None, **parameters)
    return package(entry).assemble(entry, settings, config, device="cpu").learner


def _require_parts(learner: Any) -> None:
    acts = any(hasattr(learner, name) for name in ACTING)
    for name in METHODS:
        if not callable(getattr(learner, name, None)) and (acts or name not in ACTING):
            raise LearnerError(
                f"{type(learner).__name__} has no method {name!r}: see operant.runtime.learner.ControlLearner; "
                "operant.state.Resumable provides state_dict and load_state_dict"
            )
    consumed = getattr(learner, "consumed", None)
    if type(consumed) is not int or consumed != 0:
        raise LearnerError(
            f"consumed is {consumed!r} before the first iteration: it must be an int, the budget that each seed has "
            "used, and start at 0"
        )


def _check_steps(learner: Any, iterations: int, seeds: int) -> None:
    earlier: dict[str, tuple[Tensor, Tensor]] = {}
    for _ in range(iterations):
        before = learner.consumed
        metrics = learner.iterate()
        if type(learner.consumed) is not int or learner.consumed <= before:
            raise LearnerError(
                f"consumed was {before} before an iteration and is {learner.consumed!r} after it: it must grow by "
                "the steps per seed in the iteration, or training never ends"
            )
        for name, (metric, copy) in earlier.items():
            if not _equal(metric, copy):
                raise LearnerError(
                    f"metric {name!r} was changed by the next iteration: report a copy (`tensor.clone()`), since "
                    "metrics are recorded later"
                )
        if not isinstance(metrics, Mapping):
            raise LearnerError(
                f"iterate returned {metrics!r}: it must return a mapping of metrics, {{}} if there are none"
            )
        reported = cast(Mapping[Any, Any], metrics)
        _check_metrics(reported, seeds)
        earlier = {name: (value, value.clone()) for name, value in reported.items() if isinstance(value, Tensor)}


def _check_metrics(metrics: Mapping[Any, Any], seeds: int) -> None:
    for name, value in metrics.items():
        if not isinstance(name, str) or not isinstance(value, Tensor | float | int):
            raise LearnerError(
                f"metric {name!r} is a {type(value).__name__}: metrics must be floats or tensors with names such as "
                "'losses/policy'"
            )
        metric = torch.as_tensor(value).detach().double().cpu()
        if metric.shape not in ((), (seeds,)):
            raise LearnerError(
                f"metric {name!r} has shape {tuple(metric.shape)}: it must be one number, or one per seed, "
                f"({seeds},); take the mean over the rest"
            )
        if bool(metric.isinf().any()) or (name.startswith(LOSSES) and bool(metric.isnan().any())):
            raise LearnerError(
                f"metric {name!r} is {nested(metric)}: metrics must not be Inf, and losses must not be NaN; other "
                "metrics without a value in an iteration may be NaN or left out"
            )


def _check_repeats(first: Any, again: Any, iterations: int) -> None:
    for _ in range(iterations):
        again.iterate()
    if entry := _difference(_state(first), _state(again)):
        raise LearnerError(
            f"two learners with the same seeds differ in state entry {entry} after {iterations} iterations: draw all "
            "random numbers from streams of the seed (operant.streams), and keep no state outside the learner"
        )


def _check_resumption(learner: Any, fresh: Any) -> None:
    state = _stored(learner)
    fresh.load_state_dict(state)
    if fresh.consumed != learner.consumed:
        raise LearnerError(
            f"consumed is {fresh.consumed} after loading a state saved at {learner.consumed}: {RESUMABLE}"
        )
    if entry := _difference(state, _state(fresh)):
        raise LearnerError(f"state entry {entry} differs after loading: load_state_dict must restore it")
    expected, got = learner.iterate(), fresh.iterate()
    entry = _difference(_state(learner), _state(fresh))
    differing_metrics = [name for name in expected if name not in got or not _equal(expected[name], got[name])]
    if entry or differing_metrics:
        what = f"state entry {entry}" if entry else f"metric {differing_metrics[0]!r}"
        raise LearnerError(
            f"{what} differs between the next iterations with and without saving and loading: "
            "the state lacks something that iterate uses, such as a random stream, a schedule or the environment; "
            f"{RESUMABLE}"
        )


def _check_refusals(other: Any, learner: Any) -> None:
    learner.iterate()
    before, state = _stored(learner), _stored(other)
    invalid_states = {f"that lacks {name!r}": {k: part for k, part in state.items() if k != name} for name in state}
    found = _first_tensor(state)
    if found:
        path, tensor = found
        invalid_states[f"whose tensor {path} has another shape"] = _with(
            state, path, tensor.new_zeros(len(tensor) + 1, 2)
        )
    for what, bad in invalid_states.items():
        try:
            learner.load_state_dict(clone(bad))
        except (ValueError, LookupError, TypeError, RuntimeError):
            if entry := _difference(before, _state(learner)):
                raise LearnerError(
                    f"a state {what} raised an error, but has changed state entry {entry}: inherit from "
                    "operant.state.Resumable, or decorate load_state_dict with operant.state.all_or_nothing"
                ) from None
            continue
        raise LearnerError(
            f"a state {what} was loaded without an error: read every entry, and copy tensors with "
            "operant.state.copy_into, which checks their shapes"
        )


def _check_neighbors(make: Make, seeds: Sequence[int], iterations: int, rtol: float) -> None:
    """Compare every seed among the others with that seed alone, after some iterations."""
    block = make(seeds)
    together = _results(block, iterations)
    for index, seed in enumerate(seeds):
        alone = _results(make([seed]), iterations)
        for what, with_others in together.items():
            if what not in alone:
                raise LearnerError(
                    f"{what} is reported for several seeds but not for a single one: always report the same"
                )
            _compare(what, (with_others, alone[what]), index, seed, rtol)


def _results(learner: Any, iterations: int) -> dict[str, Tensor]:
    """Return the metrics of the last of some iterations, and the weights or else the tensors of the state."""
    reported: Mapping[str, Any] = {}
    for _ in range(iterations):
        reported = learner.iterate()
    found = {f"metric {name!r}": torch.as_tensor(value) for name, value in reported.items()}
    if isinstance(learner, HasWeights) and is_mapping(weights := learner.learned):
        return found | {f"weight {name!r}": tensor for name, tensor in weights.items()}
    tensors = flatten(_state(learner))[1]
    return found | {f"state entry {path}": part for path, part in tensors.items() if part.is_floating_point()}


def _compare(what: str, pair: tuple[Tensor, Tensor], index: int, seed: int, rtol: float) -> None:
    left, right = (tensor.detach() for tensor in pair)
    if not left.dim() or left.shape[1:] != right.shape[1:] or len(right) != 1 or index >= len(left):
        return
    here, there = left[index].double().cpu(), right[0].double().cpu()
    scale = max(1.0, float(there.nan_to_num().abs().max())) if there.numel() else 1.0
    if not torch.allclose(here, there, rtol=0.0, atol=rtol * scale, equal_nan=True):
        raise LearnerError(
            f"{what} of seed {seed} differs by {float((here - there).abs().max()):.3g} from its value without the "
            "other seeds: sum losses over seeds, clip and normalize each seed separately, and use separate random "
            "streams for each"
        )


def _check_actions(learner: Any, seeds: int) -> None:
    env = next((found for path in _ENVIRONMENTS if (found := _attribute(learner, path)) is not None), None)
    if env is None or not hasattr(learner, "act"):
        return
    try:
        try_policy(learner, env, seeds, type(learner).__name__)
    except ValueError as error:
        raise LearnerError(str(error)) from error


def _attribute(thing: Any, path: str) -> Any:
    for name in path.split("."):
        thing = getattr(thing, name, None)
    return thing


def _check_close(learner: Any) -> None:
    learner.close()
    try:
        learner.close()
    except Exception as error:
        raise LearnerError(f"close failed when called twice ({error!r}): the second call must do nothing") from error


def _close(learner: Any) -> None:
    with suppress(Exception):  # do not hide the error of a failed check
        learner.close()


def _state(learner: Any) -> State:
    try:
        state = clone(learner.state_dict())
        flatten(state)
    except TypeError as error:
        raise LearnerError(f"state_dict returned a value that checkpoints cannot store: {error}") from error
    return state


def _stored(learner: Any) -> State:
    """Return a learner's state after a round trip through a checkpoint."""
    structure, tensors = flatten(_state(learner))
    return unflatten(json.loads(json.dumps(structure)), {name: t.detach().cpu().clone() for name, t in tensors.items()})


def _difference(left: State, right: State) -> str | None:
    """Return the first difference of two states."""
    (structure, tensors), (other, others) = flatten(left), flatten(right)
    for path in [*tensors, *others]:
        if path not in tensors or path not in others or not _equal(tensors[path], others[path]):
            return path
    if structure == other:
        return None
    return next((f"/{key}" for key in structure if structure[key] != other.get(key)), f"/{min(other)}")


def _equal(left: Any, right: Any) -> bool:
    one, other = torch.as_tensor(left).detach().cpu(), torch.as_tensor(right).detach().cpu()
    if one.is_floating_point():
        one, other = one.nan_to_num(math.pi), other.nan_to_num(math.pi)
    return one.shape == other.shape and torch.equal(one, other)


def _first_tensor(state: State) -> tuple[str, Tensor] | None:
    """Return the first tensor with at least one dimension that is not a random stream's state, and its path."""
    found = flatten(state)[1].items()
    return next(((path, t) for path, t in found if t.dim() and t.is_floating_point() and "env" not in path), None)


def _with(state: State, path: str, tensor: Tensor) -> State:
    structure, tensors = flatten(state)
    return unflatten(structure, {**tensors, path: tensor})
