"""Exact conversion of a state (`operant.state`) to JSON plus named tensors, and back.

In the JSON, `{"$tensor": path}` is a tensor, `{"$float": "nan"}` a float that JSON lacks and `{"$int": "0x..."}` an
integer of more than 64 bits; a key of the state that begins with `$` gets a second one. Other floats are written as the
shortest decimal that reads back to the same bits. Tensors are named by their path, as JSON pointers (RFC 6901).
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from operant.state import State


def flatten(state: State) -> tuple[Any, dict[str, Tensor]]:
    """Return `state` as JSON, and its tensors by path. Tuples become lists.

    Raises:
        TypeError: a leaf is not a tensor, int, float, str, bool or None, or a key is not a string; the message has its
            path.
    """
    tensors: dict[str, Tensor] = {}
    return _encode(state, "", tensors), tensors


def unflatten(structure: Any, tensors: Mapping[str, Tensor]) -> State:
    """Restore a state from the result of `flatten`.

    Raises:
        KeyError: a tensor is missing.
    """
    return _decode(structure, tensors)


def size_in_bytes(state: State) -> int:
    """Return the bytes of the tensors of a state.

    Raises:
        TypeError: as for `flatten`.
    """
    return sum(tensor.nbytes for tensor in flatten(state)[1].values())


def digest(state: State) -> str:
    """Return the SHA-256 of a state: its JSON, then name, type, shape and bytes of each tensor in the order of names.

    It depends neither on the devices of tensors nor on the order of keys.

    Raises:
        TypeError: as for `flatten`.
    """
    structure, tensors = flatten(state)
    found = hashlib.sha256(json.dumps(structure, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        dense = tensor.detach().cpu().contiguous()
        found.update(f"\n{name} {dense.dtype} {tuple(dense.shape)}\n".encode())
        found.update(dense.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized or value.dtype is torch.complex128:
            kind = f"a {value.layout} tensor of {value.dtype} on {value.device}"
            raise TypeError(f"state entry {path} is {kind}, which a checkpoint cannot store; use dense, real tensors")
        tensors[path] = value
        return {"$tensor": path}
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value)
        return {_key(key, path): _encode(item, f"{path}/{pointer(key)}", tensors) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, f"{path}/{i}", tensors) for i, item in enumerate(cast(list[Any], value))]
    if value is None or isinstance(value, bool | str):
        return value
    if type(value) is int:
        return value if value.bit_length() <= 64 else {"$int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    raise TypeError(
        f"state entry {path or '/'} is a {type(value).__name__}, which a checkpoint cannot store; "
        "use tensors, ints, floats, strings, booleans, None, and dicts and lists of them"
    )


def _key(key: Any, path: str) -> str:
    if type(key) is not str:
        raise TypeError(f"state entry {path or '/'} has the key {key!r}; keys must be strings")
    return f"${key}" if key.startswith("$") else key


def pointer(key: Any) -> str:
    """Return a key, escaped for a path."""
    return str(key).replace("~", "~0").replace("/", "~1")


def _decode(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensors) for item in cast(list[Any], node)]
    if not isinstance(node, dict):
        return node
    entries = cast(dict[str, Any], node)
    if "$tensor" in entries:
        return tensors[entries["$tensor"]]
    if "$float" in entries:
        return float(entries["$float"])
    if "$int" in entries:
        return int(entries["$int"], 16)
    return {key[1:] if key.startswith("$") else key: _decode(item, tensors) for key, item in entries.items()}
