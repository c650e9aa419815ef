import errno

import pytest

from operant.cli.errors import FAILURE, explain
from operant.runtime.checkpoints import NonFiniteError
from operant.runtime.run_paths import RunError
from operant.tuning.failures import LIMIT, Failures, concerns_folder


@pytest.mark.parametrize(
    ("error", "concerns"),
    [
        (RunError("is being trained"), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), False),
        (RuntimeError("CUDA out of memory"), False),
    ],
)
def test_errors_of_folders(error, concerns):
    assert concerns_folder(error) is concerns


def test_only_unexpected_errors_in_a_row_end_a_search(tmp_path):
    failures = Failures()
    for _ in range(LIMIT):
        assert failures.add(NonFiniteError("the loss is NaN"), tmp_path) == "the loss is NaN"
    for _ in range(LIMIT - 1):
        reason = failures.add(MemoryError("no\nmemory " + "x" * 1000), tmp_path / "not there")
    failures.require_few(tmp_path)
    assert reason.startswith("MemoryError: no memory xxx")
    assert len(reason) == 500
    failures.clear()
    failures.add(MemoryError(), tmp_path)
    failures.require_few(tmp_path)
    for _ in range(LIMIT - 1):
        failures.add(MemoryError(), tmp_path)
    with pytest.raises(RunError, match=r"5 trials in a row failed") as caught:
        failures.require_few(tmp_path)
    assert explain(caught.value)[1] == FAILURE
    assert (tmp_path / "traceback.txt").read_text().startswith("MemoryError")
