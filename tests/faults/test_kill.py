import pytest


@pytest.mark.parametrize("what", ["save", "rewind", "resume"])
def test_sigkill_at_any_moment_loses_nothing(what, tmp_path, start):
    process = start("faults.kills", what, tmp_path)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
