"""What an object hands over so that it can be resumed exactly: nested plain data with tensors as leaves."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]
"""Nested dicts and lists whose leaves are tensors, ints, floats, strings, booleans or None; keys are strings."""


_STATE_SIZES = {16, 44, 5056}
"""Bytes in the state of a generator on CUDA, MPS and the CPU."""


class Part(dict[str, Any]):
    """A part of a state that says whether it has changed: parts with one and the same mark hold the same.

    Args:
        entries: what it holds.
        mark: any object; whoever makes the part gives it another one when what it holds changes.
    """

    def __init__(self, entries: Mapping[str, Any], *, mark: object) -> None:
        super().__init__(entries)
        self.mark = mark


def generator_state(generator: torch.Generator) -> Tensor:
    """Return the state of `generator` as a uint8 tensor on the CPU."""
    return generator.get_state().clone()


def set_generator_state(generator: torch.Generator, state: Tensor) -> None:
    """Continue `generator` from a state of `generator_state`.

    The state of a generator of another kind of device, which nothing can go on with here, seeds it instead: the stream
    is another one, and the same every time.
    """
    state = state.to(device="cpu", dtype=torch.uint8)
    if state.numel() == generator.get_state().numel() or state.numel() not in _STATE_SIZES:
        generator.set_state(state)
    else:
        generator.manual_seed(int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:8], "big") >> 1)


def copy_into(target: Tensor, source: Tensor, name: str) -> None:
    """Copy `source` into `target` in place, so that views of `target` stay valid.

    Raises:
        ValueError: the shapes differ, which means that the state belongs to another configuration.
    """
    if target.shape != source.shape:
        raise ValueError(
            f"state entry {name!r} has shape {tuple(source.shape)} but {tuple(target.shape)} is needed: "
            "the state was saved by a different configuration; load it with the configuration of its own run"
        )
    with torch.no_grad():
        target.copy_(source)


def copy_named(
    targets: Mapping[str, Tensor], sources: Mapping[str, Tensor], *, of: str, options: str = "configuration"
) -> None:
    """Copy tensors into others of the same names, in place.

    Args:
        targets: by name.
        sources: as many, by the same names.
        of: what the targets belong to, for the error, such as "model".
        options: what has to be the same as in the run that the sources come from, for the error.

    Raises:
        ValueError: the names or the shapes differ.
    """
    if targets.keys() != sources.keys():
        odd = min(targets.keys() ^ sources.keys())
        raise ValueError(
            f"the state and the {of} differ in what is trained, first in {odd!r}: load it with the {options} of its "
            "own run"
        )
    for name, target in targets.items():
        copy_into(target, sources[name], name)


def clone(state: Any) -> Any:
    """Return a deep copy of a state whose tensors are detached and share no memory with the original.

    Tensors of a `Part` come to the CPU: what is large enough to have parts may fill a device.
    """
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Part):
        return Part({key: value.detach().to("cpu", copy=True) for key, value in state.items()}, mark=state.mark)
    if isinstance(state, Mapping):
        return {key: clone(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [clone(value) for value in state]
    return state
