"""What an object hands over so that it can be resumed exactly: nested plain data with tensors as leaves."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]
"""Nested dicts and lists whose leaves are tensors, ints, floats, strings, booleans or None; keys are strings."""


def generator_state(generator: torch.Generator) -> Tensor:
    """Return the state of `generator` as a uint8 tensor on the CPU."""
    return generator.get_state().clone()


def set_generator_state(generator: torch.Generator, state: Tensor) -> None:
    """Continue `generator` from a state of `generator_state`."""
    generator.set_state(state.to(device="cpu", dtype=torch.uint8))


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


def clone(state: Any) -> Any:
    """Return a deep copy of a state whose tensors are detached and share no memory with the original."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: clone(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [clone(value) for value in state]
    return state
