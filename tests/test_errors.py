import pytest

from operant.envs.workers import EnvError
from operant.errors import ExplainedError
from operant.language.preferences import ConflictError, StoreError
from operant.runtime.run_paths import RunError


@pytest.mark.parametrize(
    ("kind", "base"),
    [(RunError, Exception), (EnvError, RuntimeError), (StoreError, OSError), (ConflictError, ValueError)],
)
def test_explained_errors_are_still_errors_of_their_kind(kind, base):
    error = kind("the reason")
    assert isinstance(error, ExplainedError)
    assert isinstance(error, base)
    assert str(error) == "the reason"
