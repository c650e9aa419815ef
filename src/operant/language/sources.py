"""Readers of text examples: files, folders and objects of `datasets`, the Hugging Face Hub, lists of dicts.

Every example has a description of its position in the source, for error messages.
"""

import contextlib
import csv
import importlib
import json
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from operant.language.huggingface import at_home, hub_problem, is_path

__all__ = ["Row", "Source", "is_message", "read"]

Row = dict[str, Any]
"""One example, with TRL's column names."""
Source = str | Path | Iterable[Mapping[str, Any]] | Mapping[str, Iterable[Mapping[str, Any]]]

HUB_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?(?::[\w.-]+)?")
# Names of splits that are used if there is no split of the name before; the last ones are those of
# HuggingFaceH4/ultrafeedback_binarized.
OTHER_NAMES = {"train": ("train_prefs",), "test": ("validation", "eval", "test_prefs")}
# Columns of CSV files whose cells may be JSON: values, or lists of messages.
TYPED_CELLS = ("label", "labels", "margin", "completions", "ranks")
CONVERSATIONS = ("messages", "prompt", "completion", "chosen", "rejected")
# Columns with objects of different keys, to which Arrow adds the keys of the others with None.
TEMPLATE = ("tools", "chat_template_kwargs")
NESTED = (*CONVERSATIONS, "completions", "context", *TEMPLATE)


def template_inputs(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of the chat template in a row other than messages."""
    return {name: row[name] for name in TEMPLATE if row.get(name) is not None}


def read(source: Source, *, split: str) -> Iterator[tuple[str, Row]]:
    """Yield the examples of a source, each with a description of its position.

    Args:
        source: as for `operant.language.data.read_rows`.
        split: split to read, if the source has splits.

    Raises:
        FileNotFoundError: there is no such file or dataset.
        ValueError: the file is unreadable, or contains other data than examples.
    """
    if isinstance(source, str | Path):
        name = at_home(str(source))
        path = Path(name)
        if path.is_file():
            yield from _read_file(path, split)
            return
        rows = _from_datasets(name, path, split)
    else:
        rows, name = source, "the data"
    parts: Any = rows
    if isinstance(rows, Mapping):
        rows = _part(parts, split, name)
    of_arrow = type(rows).__module__.startswith("datasets.")
    if of_arrow and hasattr(rows, "with_format"):  # plain values, whatever format its users prefer
        rows = cast(Any, rows).with_format(None)
    elif type(rows).__module__.partition(".")[0] == "pandas":
        table, of_arrow = cast(Any, rows), True  # its lists are arrays if it comes from Arrow or Parquet
        rows = map(_listed, table.astype(object).where(table.notna(), None).to_dict("records"))
    for number, row in enumerate(rows, 1):
        found = _as_row(row, f"{name}, row {number}")
        yield f"{name}, row {number}", _without_none(found) if of_arrow else found


def _read_file(path: Path, split: str) -> Iterator[tuple[str, Row]]:
    """Yield the examples of one file."""
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise ValueError(f"{path} ends in {suffix!r}, expected one of {', '.join(READERS)}: convert or rename it")
    for where, row in READERS[suffix](path, split):
        yield f"{path}, {where}", _as_row(row, f"{path}, {where}")


def _as_row(row: Any, where: str) -> Row:
    """Return a copy of an example as a dict."""
    if not isinstance(row, Mapping):
        raise ValueError(f"{where}: found a {type(row).__name__}, expected an object with columns such as `prompt`")
    return dict(cast(Row, row))


def is_message(value: Any) -> bool:
    """Return whether a value is a message: an object with a role and content, or with tool calls."""
    if not isinstance(value, Mapping):
        return False
    message = cast(Mapping[str, Any], value)
    return isinstance(message.get("role"), str) and ("content" in message or bool(message.get("tool_calls")))


def _listed(value: Any) -> Any:
    """Return a value with plain lists and numbers for the arrays of NumPy and their elements, at any depth."""
    if isinstance(value, np.ndarray | np.generic):
        value = cast(Any, value).tolist()
    if isinstance(value, list):
        return [_listed(one) for one in cast(list[Any], value)]
    if isinstance(value, Mapping):
        return {key: _listed(one) for key, one in cast(Mapping[Any, Any], value).items()}
    return value


def _without_none(row: Row) -> Row:
    """Remove the keys with None that Arrow has added to messages and other inputs of chat templates, as TRL does."""
    return {column: _pruned(value, column in TEMPLATE) if column in NESTED else value for column, value in row.items()}


def _pruned(value: Any, inside: bool) -> Any:
    """Remove keys with None from messages, or from every object `inside` one."""
    if isinstance(value, list):
        return [_pruned(one, inside) for one in cast(list[Any], value)]
    if not isinstance(value, Mapping):
        return value
    given = cast(Mapping[str, Any], value)
    inside = inside or "role" in given
    return {key: _pruned(one, inside) for key, one in given.items() if one is not None or not inside}


def _is_column(part: Any) -> bool:
    """Return whether a list contains values of a column, not rows."""
    return isinstance(part, list | tuple) and not any(isinstance(row, Mapping) for row in cast(list[Any], part))


def _part(parts: Mapping[str, Any], split: str, name: str) -> Iterable[Any]:
    """Return a split, by one of its usual names."""
    names = (split, *OTHER_NAMES.get(split, ()))
    for known in names:
        if known in parts:
            return parts[known]
    expected = " or ".join(map(repr, names))
    fix = "rename one of them"
    if parts and all(map(_is_column, parts.values())):
        fix = "if these are columns, pass datasets.Dataset.from_dict(...), or a list of dictionaries"
    elif split == "test":
        fix = 'pass held-out data, as of `data["train"].train_test_split(test_size=0.1)`, or leave eval_dataset out'
    raise ValueError(f"{name} has no split {expected}, only {', '.join(map(repr, parts))}: {fix}")


class _RepeatedKeyError(ValueError):
    """Raised if an object has a key twice, of which `json` would silently keep the last."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise _RepeatedKeyError(f"an object has the key {repeated!r} twice: remove one")
    return found


def _json_lines(path: Path, split: str) -> Iterator[tuple[str, Any]]:
    """Read one JSON value per line, one at a time; skip empty lines."""
    del split
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    yield f"line {number}", json.loads(text, object_pairs_hook=_object)
                except _RepeatedKeyError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from error
                except json.JSONDecodeError as error:
                    raise ValueError(
                        f"{path}, line {number}, character {error.colno}: {error.msg}, expected one JSON object per "
                        "line: repair or remove the line (is the file truncated?)"
                    ) from error
                except UnicodeDecodeError as error:
                    raise _no_utf8(f"{path}, line {number}, byte {error.start + 1}") from error
                except RecursionError as error:
                    raise ValueError(f"{path}, line {number}: it is nested too deeply") from error


def _json(path: Path, split: str) -> Iterator[tuple[str, Any]]:
    """Read a list of objects, an object with a list for each split, or JSON Lines."""
    try:
        content: Any = json.loads(path.read_bytes().decode("utf-8-sig"), object_pairs_hook=_object)
    except _RepeatedKeyError as error:
        raise ValueError(f"{path}: {error}") from error
    except json.JSONDecodeError as error:
        with path.open("rb") as file:
            listed = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
        if not listed:
            yield from _json_lines(path, split)
            return
        raise ValueError(
            f"{path}, line {error.lineno}, character {error.colno}: {error.msg}, expected a list of JSON objects: "
            "repair the file"
        ) from error
    except UnicodeDecodeError as error:
        raise _no_utf8(f"{path}, byte {error.start + 1}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: it is nested too deeply") from error
    parts = cast(dict[str, Any], content) if isinstance(content, dict) else {}
    if parts and all(isinstance(part, list) and not _are_messages(part) for part in parts.values()):
        if not all(isinstance(row, Mapping) for part in parts.values() for row in part):
            raise ValueError(
                f"{path} is an object of the lists {', '.join(map(repr, parts))}, which are columns, expected a list "
                'of rows, such as [{"prompt": ..., "completion": ...}, ...], or one row per line (JSON Lines)'
            )
        content = _part(parts, split, str(path))
    rows: list[Any] = cast(list[Any], content) if isinstance(content, list) else [content]
    yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))


def _no_utf8(where: str) -> ValueError:
    """Return the error for text in another encoding."""
    return ValueError(f"{where}: the text is not UTF-8: convert the file")


def _csv(path: Path, split: str) -> Iterator[tuple[str, Any]]:
    """Read a table with a header; cells are strings, except for JSON in columns with another type."""
    del split
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        csv.field_size_limit(2**31 - 1)  # texts may exceed its default of 131 072 characters
        try:
            if repeated := [column for column, count in Counter(reader.fieldnames or ()).items() if count > 1]:
                raise ValueError(
                    f"{path}: the header has the column {repeated[0]!r} more than once: rename one of them"
                )
            for row in reader:
                where = f"line {reader.line_num}"
                if None in row or None in row.values():
                    raise ValueError(
                        f"{path}, {where}: more or fewer cells than the {len(row.keys() - {None})} of the header: put "
                        "quotes around cells with commas, quotes or line breaks"
                    )
                yield where, {column: _cell(column, cell) for column, cell in row.items()}
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.reader.line_num}: {error}: repair the line") from error
        except UnicodeDecodeError as error:
            raise _no_utf8(str(path)) from error


def _cell(column: str, cell: str) -> Any:
    """Return the value of a cell; text that is not JSON, or no list of messages where one may be, stays text."""
    if column not in TYPED_CELLS + CONVERSATIONS:
        return cell
    if not cell and column not in CONVERSATIONS[1:]:
        return None
    try:
        value: Any = json.loads(cell.lower() if column == "label" else cell)
    except (json.JSONDecodeError, RecursionError):
        return cell
    return value if column in TYPED_CELLS or _are_messages(value) else cell


def _are_messages(value: Any) -> bool:
    """Return whether a value is a list of messages."""
    messages = cast(list[Any], value) if isinstance(value, list) else []
    return bool(messages) and all(map(is_message, messages))


def _parquet(path: Path, split: str) -> Iterator[tuple[str, Any]]:
    """Read a Parquet file, one row group at a time."""
    del split
    import pyarrow  # pyright: ignore[reportMissingTypeStubs] - it has none
    from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]

    read, damage = cast(Any, parquet).ParquetFile, cast(type[Exception], pyarrow.ArrowException)  # pyright: ignore[reportUnknownMemberType]

    try:
        with read(path) as file:
            number = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", _without_none(row)
    except damage as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from error


READERS = {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet, ".csv": _csv}


def _from_datasets(source: str, path: Path, split: str) -> Any:
    """Load a saved dataset, or one of the Hub, as `owner/name` or `owner/name:configuration`."""
    on_hub = HUB_NAME.fullmatch(source) and not is_path(source) and path.suffix.lower() not in READERS
    if not path.is_dir() and not on_hub:
        raise FileNotFoundError(
            f"there is no file {source!r}: expected a file ({', '.join(READERS)}), a folder written by `save_to_disk`, "
            "or the name of a dataset on the Hugging Face Hub"
        )
    datasets: Any = importlib.import_module("datasets")

    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        return datasets.load_from_disk(source)
    name, _, configuration = (source, "", "") if path.is_dir() else source.partition(":")
    problem = "" if path.is_dir() else hub_problem()
    try:
        with _cache_only(datasets) if problem else contextlib.nullcontext():
            return _load(datasets, name, configuration or None, split)
    except Exception as error:  # many causes: no network, no such name, no such split, a choice of configurations
        place = "the folder" if path.is_dir() else "there is no such file or folder, and from the Hub the dataset"
        cause = f"{type(error).__name__}: {error}"
        if problem and isinstance(error, ConnectionError):
            cause = f"the Hub cannot be reached: {problem}; and its cache on this machine lacks the dataset"
        raise FileNotFoundError(
            f"{source!r}: {place} cannot be loaded ({cause}). Expected a file "
            f"({', '.join(READERS)}), a folder written by `save_to_disk`, or the name of a dataset on the Hugging Face "
            "Hub (`owner/name` or `owner/name:configuration`), with network access"
        ) from error


def _load(datasets: Any, name: str, configuration: str | None, split: str) -> Any:
    """Load a split of a dataset, by one of its usual names."""
    try:
        return datasets.load_dataset(name, configuration, split=split)
    except ValueError as error:  # it lists the splits
        other = next((known for known in OTHER_NAMES.get(split, ()) if repr(known) in str(error)), None)
        if other is None:
            raise
        return datasets.load_dataset(name, configuration, split=other)


@contextlib.contextmanager
def _cache_only(datasets: Any) -> Generator[None]:
    """Make `datasets` load from its cache alone, without the retries of requests, which take half a minute."""
    before, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
