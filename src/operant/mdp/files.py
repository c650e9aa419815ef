"""Models on disk: readable JSON for small models, NumPy's npz for large ones; neither can contain code."""

import errno
import io
import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from operant.mdp.entries import COLUMNS, Entries
from operant.mdp.model import MDP
from operant.mdp.validation import check_size, floats
from operant.runtime.files import replace_durably

SCHEMA = 1
"""Version of both formats."""
JSON_ROWS = 100_000
"""Maximum transitions, and maximum state-action pairs, of a model in JSON."""
JSON_BYTES = 2**26
"""Maximum size of a JSON file in bytes."""

_FORMAT = "operant.mdp"
_ARRAYS = ("indptr", "successors", "probabilities", "rewards", "terminates", "start")
_NUMBERS = ("schema", "states", "actions", "max_steps")
_NAMES = ("state_names", "action_names")
_NO_LIMIT = 0
# Errors of readers for invalid data; a damaged zip directory can also cause a seek to a negative position (EINVAL).
_DAMAGE = (ValueError, TypeError, KeyError, EOFError, RuntimeError, MemoryError, struct.error, BadZipFile)


def save(mdp: MDP, path: str | Path) -> None:
    """Write a model so that `load` returns bitwise the same numbers.

    Args:
        mdp: the model.
        path: path of the file; the suffix selects the format: `.json` (at most 100 000 transitions; a list of
            `[s, a, s', p, r, terminates]`, to read and to edit) or `.npz` (any size). An existing file is replaced.

    Raises:
        ValueError: if the suffix is unknown, or the model is too large for JSON.
        OSError: if the file cannot be written, e.g. because its folder does not exist.
    """
    path = Path(path)
    data = _npz_bytes(mdp) if _is_npz(path) else _json_bytes(mdp)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder for the model", str(path.parent))
    replace_durably(path, data)


def load(path: str | Path) -> MDP:
    """Read a model that `save` wrote, or JSON written by hand.

    In JSON, `start` (a list of S probabilities, or one state), `max_steps`, `state_names` and `action_names` (lists of
    texts) may be missing. Files are not trusted:
    allocation is bounded by the file size, compressed arrays and Python objects raise an error, and the model is
    validated like any other.

    Args:
        path: a file with the suffix `.json` (at most 64 MiB) or `.npz`.

    Raises:
        ValueError: if the file is not a model; the message has the reason.
        OSError: if the file cannot be read.
    """
    path = Path(path)
    read = _read_npz if _is_npz(path) else _read_json
    try:
        return read(path)
    except RecursionError as error:
        raise ValueError(f"{path} is not a model: it is nested too deeply") from error
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ValueError(f"{path} is not a model: {error}") from error


def _is_npz(path: Path) -> bool:
    if path.suffix not in (".json", ".npz"):
        raise ValueError(f"{path} has the suffix {path.suffix!r}, expected .json or .npz")
    return path.suffix == ".npz"


def _npz_bytes(mdp: MDP) -> bytes:
    numbers = (SCHEMA, mdp.states, mdp.actions, _NO_LIMIT if mdp.max_steps is None else mdp.max_steps)
    buffer = io.BytesIO()
    arrays = {name: getattr(mdp, name) for name in _ARRAYS}
    arrays |= {name: np.array(names, np.str_) for name in _NAMES if (names := getattr(mdp, name))}
    np.savez(buffer, allow_pickle=False, **arrays, **dict(zip(_NUMBERS, map(np.int64, numbers), strict=True)))
    return buffer.getvalue()


def _read_npz(path: Path) -> MDP:
    with ZipFile(path) as archive:
        packed = [item.filename for item in archive.infolist() if item.compress_type != ZIP_STORED]
    if packed:
        raise ValueError(f"{packed[0]} is compressed, so its size is unknown; write it with numpy.savez")
    with np.load(path, allow_pickle=False) as file:
        schema, states, actions, limit = (file[name].item() for name in _NUMBERS)
        _check_schema(schema)
        arrays = {name: file[name] for name in (*_ARRAYS, *_NAMES) if name in file or name in _ARRAYS}
    return MDP(states, actions, **arrays, max_steps=None if limit == _NO_LIMIT else limit)


def _json_bytes(mdp: MDP) -> bytes:
    _check_rows(max(mdp.successors.size, mdp.states * mdp.actions))
    rows = np.repeat(np.arange(mdp.states * mdp.actions), np.diff(mdp.indptr))
    columns = (*np.divmod(rows, mdp.actions), mdp.successors, mdp.probabilities, mdp.rewards, mdp.terminates)
    transitions = zip(*(column.tolist() for column in columns), strict=True)
    head = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "states": mdp.states,
        "actions": mdp.actions,
        "max_steps": mdp.max_steps,
        "start": mdp.start.tolist(),
        **{name: list(names) for name in _NAMES if (names := getattr(mdp, name))},
        "columns": list(COLUMNS),
    }
    lines = ",\n".join(json.dumps(transition) for transition in transitions)
    return f'{json.dumps(head)[:-1]}, "transitions": [\n{lines}\n]}}\n'.encode()


def _read_json(path: Path) -> MDP:
    size = path.stat().st_size
    if size > JSON_BYTES:
        raise ValueError(f"it has {size} bytes, expected at most {JSON_BYTES} in JSON; use .npz")
    loaded: object = json.loads(path.read_bytes(), parse_constant=_raise_for_constant)
    content = cast(dict[str, Any], loaded) if isinstance(loaded, dict) else {}
    if content.get("format") != _FORMAT:
        raise ValueError(f'it lacks "format": "{_FORMAT}"')
    _check_schema(content.get("schema"))
    entries = ("format", "schema", "states", "actions", "max_steps", "start", *_NAMES, "columns", "transitions")
    unknown = set(content) - set(entries)
    if unknown:
        raise ValueError(f"it has the unknown entry {min(unknown)!r}")
    states, actions = content.get("states"), content.get("actions")
    _check_rows(math.prod(check_size(states, actions)))
    named, listed = content.get("columns", list(COLUMNS)), content.get("transitions", [])
    columns = dict(zip(named, zip(*listed, strict=True), strict=True)) if listed else {}
    for name, column in columns.items():
        floats(column, f"column {name}")  # in a file of numbers, texts are not names
    start, max_steps = content.get("start"), content.get("max_steps")
    mdp = MDP.from_table(columns, states=states, actions=actions, start=start, max_steps=max_steps)
    mdp = replace(mdp, **{name: content[name] for name in _NAMES if name in content})
    return _as_listed(mdp, Entries.of(columns, states, actions))


def _as_listed(mdp: MDP, entries: Entries) -> MDP:
    """Return a model with its transitions as they are listed, if these are in the order of states and actions."""
    if (np.diff(entries.rows) < 0).any() or not entries.probabilities.all():
        return mdp
    counts = np.bincount(entries.rows, minlength=mdp.states * mdp.actions)
    return replace(
        mdp,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        successors=entries.successors,
        probabilities=entries.probabilities,
        rewards=entries.rewards,
        terminates=entries.terminates,
    )


def _check_rows(rows: int) -> None:
    if rows > JSON_ROWS:
        raise ValueError(f"{rows} transitions or state-action pairs are more than {JSON_ROWS}; use .npz")


def _raise_for_constant(name: str) -> NoReturn:
    raise ValueError(f"it contains {name}, expected finite numbers")


def _check_schema(schema: Any) -> None:
    if schema != SCHEMA:
        raise ValueError(f"it has schema {schema!r}, but this version of operant reads {SCHEMA}")
