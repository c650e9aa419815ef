"""Environment variables of processes that are started within a block: `environment_variables`."""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager


@contextmanager
def environment_variables(values: Mapping[str, str | None]) -> Generator[None]:
    """Set environment variables for the block, and restore them after it.

    Args:
        values: value of each variable; None: unset.
    """
    former = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(former)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
