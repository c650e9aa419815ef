"""States of learners with sharded models, whole in the leading process: `collect`, `divide`, `receive`.

So a checkpoint is that of one process, whatever their number. A tensor of a state belongs to a sharded parameter if it
lies under its name, after `trunk.` in a critic, and has its shape: the parameter, its moments, its copies.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from operant.language.critic import TRUNK
from operant.language.sharded import ShardedModel, gathered
from operant.runtime.shards import Group

MARK = "sharded tensor"
"""Key of a tensor that is left out of a message: its type and shape."""


def collect(state: Any, group: Group) -> Any:
    """Return a state with whole tensors on the CPU in the leading process; a call of all processes."""
    return _mapped(state, lambda value, _: gathered(value, group) if isinstance(value, Tensor) else value)


def divide(state: Any, models: Sequence[ShardedModel]) -> tuple[Any, list[Tensor]]:
    """Return a whole state for a message, with marks in place of the tensors of sharded parameters; and these."""
    shapes = [{name: value.shape for name, value in model.named().items()} for model in models]
    taken: list[Tensor] = []

    def mark(value: Any, path: tuple[str, ...]) -> Any:
        names = [*path, *(key.removeprefix(TRUNK) for key in path if key.startswith(TRUNK))]
        if not isinstance(value, Tensor) or not any(own.get(name) == value.shape for own in shapes for name in names):
            return value
        taken.append(value)
        return {MARK: [str(value.dtype).removeprefix("torch."), list(value.shape)]}

    return _mapped(state, mark), taken


def receive(state: Any, tensors: Sequence[Tensor], mesh: DeviceMesh) -> Any:
    """Return a state of `divide` with the parts of this process in place of the marks; a call of all processes.

    Args:
        state: with marks.
        tensors: the whole ones, in the leading process.
        mesh: the devices of the processes.
    """
    left = iter(tensors)

    def part(value: Any, _: tuple[str, ...]) -> Any:
        if not isinstance(value, Mapping):
            return value
        kind, shape = cast(Mapping[str, Any], value)[MARK]
        whole = next(left, None)
        if whole is None:
            whole = torch.empty(shape, dtype=getattr(torch, kind), device=mesh.device_type)
        return distribute_tensor(whole.to(mesh.device_type), mesh, [Shard(0)])

    return _mapped(state, part)


def _mapped(state: Any, change: Callable[[Any, tuple[str, ...]], Any], path: tuple[str, ...] = ()) -> Any:
    """Return a state with its leaves, and marks, changed by a function of each and the keys above it."""
    if isinstance(state, Mapping) and MARK not in state:
        items = cast(Mapping[str, Any], state).items()
        return {key: _mapped(value, change, (*path, key)) for key, value in items}
    if isinstance(state, list | tuple):
        return [_mapped(value, change, path) for value in cast(Sequence[Any], state)]
    return change(state, path)
