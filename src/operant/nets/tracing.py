"""Whether a function is being traced, to become a program."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_tracing: ContextVar[bool] = ContextVar("tracing", default=False)


def tracing() -> bool:
    """Whether a program is being traced; it cannot write to memory from outside."""
    return _tracing.get()


@contextmanager
def traced() -> Generator[None]:
    """Mark the block as traced."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)
