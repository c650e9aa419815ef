"""Storage of Python objects (examples and models) as files from which a run can be rebuilt.

Files are named after their content, `objects/<kind>-<SHA-256>`, next to the runs, so equal objects are stored once.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operant.language.data import kind
from operant.language.huggingface import Tokenizer
from operant.language.layouts import standard
from operant.language.sources import read
from operant.runtime.files import replace_durably
from operant.runtime.inputs import digest

DATA = ("dataset", "eval_dataset")
"""Parameters that accept examples: lists of dictionaries, tables of pandas, `datasets.Dataset` or `DatasetDict`."""


def stored(task: Any, parameters: Mapping[str, Any], folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return task and parameters with examples and models replaced by paths.

    Args:
        task: a name, a path, or examples; None if the parameters contain a data set.
        parameters: keyword arguments of `operant.train`; a model needs its tokenizer as `tokenizer` or
            `processing_class`.
        folder: folder of the files.

    Raises:
        ValueError: examples are invalid or have values that JSON cannot represent, or a model comes without its
            tokenizer; nothing was written.
        OSError: the folder is not writable.
    """
    found = dict(parameters)
    if task is not None and not isinstance(task, str | Path):
        if found.get("dataset") is not None:
            raise ValueError("there are examples both as task and as dataset: leave out one of them")
        task, found["dataset"] = None, task
    given = [name for name in DATA if name in found and not isinstance(found[name], str | Path)]
    data = {name: _lines_of(found[name], name) for name in given}
    tokenizer = found.pop("tokenizer", found.pop("processing_class", None))
    if "model" in found and not isinstance(found["model"], str | Path):
        found["model"] = str(model_folder(found["model"], tokenizer, folder))
    elif tokenizer is not None:
        raise ValueError("tokenizer needs a model object: leave it out, since the folder of a model contains its own")
    found |= {name: str(_rows_file(lines, folder, name)) for name, lines in data.items()}
    return ("dataset" if task is None and found.get("dataset") else task), found


def _lines_of(rows: Any, name: str) -> bytes:
    """Return examples as JSON Lines.

    Raises:
        ValueError: there is no example, or one is invalid or has values that JSON cannot represent.
    """
    lines: list[str] = []
    found = list(read(rows, split="test" if name == "eval_dataset" else "train"))
    if not found:
        raise ValueError(f"{name} has no rows, expected at least 1")
    for where, row in found:
        try:
            lines.append(_json(row))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}: {where} cannot be saved with the run: {error}{_place(row)}. Use columns of text, finite "
                "numbers, lists and dictionaries, with None for missing values, or a file"
            ) from error
    if known := [row for line in lines if (row := standard(json.loads(line))) is not None]:
        kind(known)
    return "".join(f"{line}\n" for line in lines).encode()


def _json(value: Any) -> str:
    """Return a value as JSON.

    Raises:
        TypeError: JSON has no such type.
        ValueError: a number is NaN or Inf.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_of_array)


def _place(row: Mapping[str, Any]) -> str:
    """Return a description of the first column whose value JSON cannot represent; empty if a name is the cause."""
    for column, value in row.items():
        try:
            _json(value)
        except (TypeError, ValueError):
            return f" (column {column!r} with the value {value!r:.80})"
    return ""


def _of_array(value: Any) -> Any:
    """Return an array or a number of NumPy or PyTorch as lists and numbers."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"it has a value of type {type(value).__name__}")
    return value.tolist()


def _rows_file(data: bytes, folder: Path, name: str) -> Path:
    """Write examples to a file, and return its path."""
    path = folder / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        replace_durably(path, data)
    return path


def model_folder(model: Any, tokenizer: Tokenizer | None, folder: Path) -> Path:
    """Save a model of transformers or peft with its tokenizer, as safetensors, and return the folder.

    Raises:
        ValueError: the object is not such a model, or there is no tokenizer.
    """
    if not hasattr(model, "save_pretrained"):
        raise ValueError(
            f"model is of type {type(model).__name__}, expected a model of transformers or peft, the folder or Hub "
            "name of one, or a built-in one"
        )
    if tokenizer is None:
        raise ValueError("a model object needs its tokenizer: pass tokenizer=..., or the folder of both")
    if not hasattr(tokenizer, "save_pretrained"):
        raise ValueError(f"tokenizer must be one of transformers, got {tokenizer!r:.80}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "model"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        path = folder / f"model-{digest(made)[:16]}"
        if not path.exists():
            shutil.move(made, path)
    return path
