import pytest

from faults.languages import RUNS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_training_resumes_bit_for_bit(tmp_path, start):
    output, error = start("faults.languages", tmp_path).communicate(timeout=580)
    assert output.split() == list(RUNS), error
