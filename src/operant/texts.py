"""Files in TOML and JSON, also with the byte order mark of Windows editors; errors name the file.

Functions take the path for errors, and its bytes or text if they are read in another way.
"""

import json
import tomllib
from pathlib import Path
from typing import Any


def decoded(data: bytes, path: Path) -> str:
    """Return the text of a file in UTF-8, without a byte order mark.

    Raises:
        ValueError: the bytes are not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from error


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return the tables in the text of a TOML file.

    Raises:
        ValueError: the text is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not TOML.
    """
    return parse_toml(decoded(path.read_bytes(), path), path)


def parse_json(data: bytes, path: Path) -> Any:
    """Return the value in the bytes of a JSON file.

    Raises:
        ValueError: the bytes are not JSON.
    """
    try:
        return json.loads(decoded(data, path))
    except (json.JSONDecodeError, RecursionError) as error:
        problem = "it is empty" if not data.strip() else error
        raise ValueError(f"{path} is not JSON: {problem}") from error
