"""State of objects for an exact resume: nested plain data with tensors as leaves.

A class names the attributes of its state, and inherits the rest:

    class Learner(Resumable):
        STATE = ("consumed", "agent", "optimizer", "batch_streams")
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial, wraps
from itertools import zip_longest
from operator import attrgetter
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from operant.tensors import from_numpy

State = dict[str, Any]
"""Nested dicts and lists whose leaves are tensors, ints, floats, strings, booleans or None; keys are strings."""


_STATE_SIZES = {16, 44, 5056}
"""Size in bytes of a generator's state on CUDA, MPS and the CPU."""


class StateError(ValueError):
    """Raised if a state belongs to another configuration.

    Attributes:
        entry: path of the mismatched part, such as `agent.parameters`.
        fault: description of the mismatch.
    """

    def __init__(self, entry: str, fault: str) -> None:
        super().__init__(entry, fault)
        self.entry, self.fault = entry, fault

    def __str__(self) -> str:
        return (
            f"state entry {self.entry!r} {self.fault}: the state was saved by a different configuration; load it "
            "with the configuration of the run that saved it"
        )

    def within(self, entry: str) -> "StateError":
        """Return the same error with `entry` prepended to the path."""
        return type(self)(f"{entry}.{self.entry}", self.fault)


class MissingError(StateError, KeyError):
    """Raised if a state lacks a part."""


@runtime_checkable
class Stateful(Protocol):
    """An object that saves and restores its state."""

    def state_dict(self) -> State:
        """Return the complete state for an exact resume, without copies (see `clone`)."""
        ...

    def load_state_dict(self, state: State) -> Any:
        """Restore a state returned by `state_dict`."""
        ...


class Part(dict[str, Any]):
    """A part of a state with change detection: parts with the same mark have the same contents.

    Args:
        entries: contents of the part.
        mark: any object; use a new one whenever the contents change.
    """

    def __init__(self, entries: Mapping[str, Any], *, mark: object) -> None:
        super().__init__(entries)
        self.mark = mark


def generator_state(generator: torch.Generator) -> Tensor:
    """Return the state of `generator` as a uint8 tensor on the CPU."""
    return generator.get_state().clone()


def set_generator_state(generator: torch.Generator, state: Tensor) -> None:
    """Set the state of `generator` to one returned by `generator_state`.

    The state of a generator on another type of device cannot be restored; a hash of it is used as the seed instead.
    The random numbers then differ from the original ones, but are the same every time.
    """
    state = state.to(device="cpu", dtype=torch.uint8)
    if state.numel() == generator.get_state().numel() or state.numel() not in _STATE_SIZES:
        generator.set_state(state)
    else:
        generator.manual_seed(int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:8], "big") >> 1)


def copy_into(target: Tensor, source: Tensor, name: str) -> None:
    """Copy `source` into `target` in place, so that views of `target` stay valid.

    Raises:
        StateError: the shapes differ, so the state belongs to another configuration.
    """
    if target.shape != source.shape:
        raise StateError(name, f"has shape {tuple(source.shape)} but {tuple(target.shape)} is needed")
    with torch.no_grad():
        target.copy_(source)


def copy_named(
    targets: Mapping[str, Tensor], sources: Mapping[str, Tensor], *, of: str, options: str = "configuration"
) -> None:
    """Copy tensors in place into tensors of the same names.

    Args:
        targets: tensors to overwrite, by name.
        sources: tensors to copy, with the same names and shapes.
        of: owner of the targets for the error message, such as "model".
        options: options that must match those of the saved run, for the error message.

    Raises:
        ValueError: the names or the shapes differ.
    """
    if targets.keys() != sources.keys():
        mismatch = min(targets.keys() ^ sources.keys())
        raise ValueError(
            f"the state and the {of} differ in trained parameters, first in {mismatch!r}: load it with the {options} "
            "of the run that saved it"
        )
    for name, target in targets.items():
        copy_into(target, sources[name], name)


def clone(state: Any) -> Any:
    """Return a deep copy of a state whose tensors are detached and share no memory with the original.

    Tensors of a `Part` are copied to the CPU, since they may be too large to be copied on their device.
    """
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Part):
        return Part({key: value.detach().to("cpu", copy=True) for key, value in state.items()}, mark=state.mark)
    if isinstance(state, Mapping):
        return {key: clone(value) for key, value in cast(Mapping[str, Any], state).items()}
    if isinstance(state, list | tuple):
        return [clone(value) for value in cast(Sequence[Any], state)]
    return state


def save(value: Any, entry: str = "") -> Any:
    """Return the state of a value, without copying tensors or states of objects.

    Args:
        value: a tensor, random generator, array, object with a state (`Stateful`), named tuple (only its arrays and
            named tuples are saved), JSON value, or a list or mapping of these.
        entry: path of the value, for error messages.

    Raises:
        TypeError: the value has another type.
    """
    match value:
        case Tensor() | None | bool() | int() | float() | str():
            saved = value
        case torch.Generator():
            saved = generator_state(value)
        case np.ndarray():
            saved = from_numpy(_signed(value).copy())
        case Stateful():
            saved = value.state_dict()
        case Mapping():
            saved = _saved(cast(Mapping[str, Any], value), entry)
        case tuple() if fields := _fields(value):
            saved = _saved(fields, entry)
        case list() | tuple():
            saved = [save(item, f"{entry}.{number}") for number, item in enumerate(cast(Sequence[Any], value))]
        case _:
            raise TypeError(
                f"state entry {entry!r} is a {type(value).__name__}, which cannot be saved; give it state_dict and "
                "load_state_dict, or name its parts"
            )
    return saved


def restore(value: Any, state: Any, entry: str, growing: Set[str] = frozenset()) -> Any:
    """Restore a value from its state. Tensors, generators and objects are modified in place, other values replaced.

    Args:
        value: the current value.
        state: result of `save` for a value of the same configuration.
        entry: path of the value, for error messages.
        growing: names of arrays in named tuples whose last dimension may differ.

    Returns:
        The restored value.

    Raises:
        StateError: the state belongs to another configuration; parts before the mismatch are already modified.
    """
    match value:
        case Tensor():
            copy_into(value, _checked(state, Tensor, entry), entry)
        case torch.Generator():
            set_generator_state(value, _checked(state, Tensor, entry))
        case np.ndarray():
            return _array(value, _checked(state, Tensor, entry).numpy(), entry, entry.rpartition(".")[2] in growing)
        case Stateful():
            load_part(value, {entry: _checked(state, Mapping, entry)}, entry)
        case tuple() if fields := _fields(value):
            return cast(Any, value)._replace(**_restored(fields, _checked(state, Mapping, entry), f"{entry}.", growing))
        case _ if _is_json(value):
            return _replacement(value, state, entry)
        case Mapping():
            items = cast(Mapping[str, Any], value)
            changed = _restored(items, _checked(state, Mapping, entry), f"{entry}.", growing)
            return changed if any(changed[name] is not item for name, item in items.items()) else items
        case _:
            saved = _checked(state, list | tuple, entry)
            if len(saved) != len(value):
                raise StateError(entry, f"has {len(saved)} parts but {len(value)} are needed")
            pairs = zip(value, saved, strict=True)
            items = [
                restore(item, part_state, f"{entry}.{number}", growing)
                for number, (item, part_state) in enumerate(pairs)
            ]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return cast(Any, value)


def load_part(owner: Stateful, state: State, entry: str) -> Any:
    """Load one entry of a state into its owner, and return the result of `load_state_dict`.

    Raises:
        StateError: the entry is missing or belongs to another configuration; the message names the mismatched part.
    """
    if entry not in state:
        raise MissingError(entry, "is missing")
    try:
        return owner.load_state_dict(state[entry])
    except StateError as error:
        raise error.within(entry) from error


class DeclaredState:
    """Base class that saves and restores the attributes listed in `STATE`, in that order.

    Parts of a learner inherit from this class. States are not copied, and an invalid one may be partly loaded.
    Learners inherit from `Resumable`.
    """

    STATE: ClassVar[tuple[str | tuple[str, str], ...]] = ()
    """Names of the saved attributes, or pairs of the name in the state and the path of the attribute, such as
    `("parameters", "agent.parameters")`."""
    GROWING: ClassVar[frozenset[str]] = frozenset()
    """Names of arrays in named tuples whose last dimension may change."""

    def state_dict(self) -> State:
        """Return the complete state for an exact resume, without copies."""
        return {entry: save(value, entry) for entry, value in _declared(self).items()}

    def load_state_dict(self, state: State) -> Any:
        """Restore a state exactly.

        Raises:
            StateError: the state belongs to another configuration; the message names the mismatched part.
        """
        parts, paths = _declared(self), _paths(self)
        for entry, value in _restored(parts, state, "", self.GROWING).items():
            if value is not parts[entry]:
                owner, _, name = paths[entry].rpartition(".")
                setattr(attrgetter(owner)(self) if owner else self, name, value)


class Resumable(DeclaredState):
    """Base class that saves copies of the attributes listed in `STATE`, and restores all of them or none."""

    def state_dict(self) -> State:
        """Return a copy of the complete state for an exact resume."""
        return clone(super().state_dict())

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly; an invalid state leaves the object unchanged.

        Raises:
            StateError: the state belongs to another configuration; the message names the mismatched part.
        """
        _load_or_keep(super().load_state_dict, state, self.state_dict())


L = TypeVar("L", bound=Callable[..., None])


def all_or_nothing(load: L) -> L:
    """Decorate a `load_state_dict` so that an invalid state leaves the object unchanged.

    Parts are loaded one after another, so an error may occur after some of them are loaded. The object's state is
    therefore copied before, and loaded again after an error.
    """

    @wraps(load)
    def load_or_restore(owner: Stateful, state: State) -> None:
        _load_or_keep(partial(load, owner), state, clone(owner.state_dict()))

    return cast(L, load_or_restore)


def _load_or_keep(load: Callable[[State], Any], state: State, current: State) -> None:
    """Load a state, or restore the current one if that fails."""
    try:
        load(state)
    except Exception:
        load(current)
        raise


def _paths(owner: DeclaredState) -> dict[str, str]:
    return dict((part, part) if isinstance(part, str) else part for part in owner.STATE)


def _declared(owner: DeclaredState) -> dict[str, Any]:
    return {entry: attrgetter(path)(owner) for entry, path in _paths(owner).items()}


def _saved(parts: Mapping[str, Any], entry: str) -> State:
    return {name: save(item, f"{entry}.{name}") for name, item in parts.items()}


def _restored(
    parts: Mapping[str, Any], state: Mapping[str, Any], prefix: str, growing: Set[str] = frozenset()
) -> dict[str, Any]:
    for name in parts:
        if name not in state:
            raise MissingError(f"{prefix}{name}", "is missing")
    for name in state:
        if name not in parts:
            raise StateError(f"{prefix}{name}", "is unknown here")
    return {name: restore(value, state[name], f"{prefix}{name}", growing) for name, value in parts.items()}


def _fields(value: Any) -> dict[str, Any]:
    """Return the array and named-tuple fields of a named tuple; empty for other values."""
    names: tuple[str, ...] = getattr(value, "_fields", ())
    items = {name: getattr(value, name) for name in names}
    return {name: item for name, item in items.items() if isinstance(item, np.ndarray | tuple)}


def _signed(array: Any) -> Any:
    """Return a uint64 array of random streams as int64 with the same bits, since checkpoints do not support uint64."""
    return array.view(np.int64) if array.dtype == np.uint64 else array


def _array(like: Any, saved: Any, entry: str, growing: bool) -> Any:
    axes = slice(None, -1 if growing else None)
    if saved.shape[axes] != like.shape[axes] or saved.ndim != like.ndim:
        raise StateError(entry, f"has shape {saved.shape} but {like.shape} is needed")
    return np.array(saved).view(np.uint64) if like.dtype == np.uint64 else np.array(saved, like.dtype)


def _is_json(value: Any) -> bool:
    """Return whether a value is a JSON value, which is replaced rather than modified."""
    if isinstance(value, Mapping):
        return all(_is_json(item) for item in cast(Mapping[str, Any], value).values())
    if isinstance(value, list | tuple):
        return all(_is_json(item) for item in cast(Sequence[Any], value))
    return value is None or isinstance(value, bool | int | float | str)


def _replacement(value: Any, state: Any, entry: str) -> Any:
    if isinstance(state, list) and isinstance(value, list) and not _is_json(state):
        raise StateError(entry, f"has {len(cast(list[Any], state))} parts but {len(cast(list[Any], value))} are needed")
    if not _is_json(state) or (value is not None and state is not None and _kind(value) != _kind(state)):
        raise StateError(entry, f"is {_kind(state)} but {_kind(value)} is needed")
    return _with_tuples(value, state, entry)


def _with_tuples(value: Any, state: Any, entry: str) -> Any:
    """Return a copy of JSON values, with tuples and named tuples where the current value has them."""
    if isinstance(value, Mapping) and isinstance(state, Mapping):
        known, items = cast(Mapping[str, Any], value), cast(Mapping[str, Any], state)
        return {name: _with_tuples(known.get(name), item, f"{entry}.{name}") for name, item in items.items()}
    if not isinstance(value, list | tuple) or not isinstance(state, list | tuple):
        return clone(state)
    parts, saved = cast(Sequence[Any], value), cast(Sequence[Any], state)
    pairs = enumerate(zip_longest(parts[: len(saved)], saved))
    items = [_with_tuples(part, item, f"{entry}.{number}") for number, (part, item) in pairs]
    if not hasattr(parts, "_fields"):
        return tuple(items) if isinstance(value, tuple) else items
    if len(saved) != len(parts):
        raise StateError(entry, f"has {len(saved)} parts but {len(parts)} are needed")
    return cast(Any, value)._make(items)


def _kind(value: Any) -> str:
    kinds: dict[str, Any] = {"None": type(None), "a string": str, "a number": int | float, "a list": (list, tuple)}
    return next((name for name, type_ in kinds.items() if isinstance(value, type_)), f"a {type(value).__name__}")


def _checked(state: Any, kind: Any, entry: str) -> Any:
    if not isinstance(state, kind):
        expected = {Tensor: "a tensor", Mapping: "a dict"}.get(kind, "a list")
        raise StateError(entry, f"is {_kind(state)} but {expected} is needed")
    return state
