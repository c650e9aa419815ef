import pytest

RUNS = {
    "grpo": ["--preset", "grpo", "--group", "4", "--threads", "1"],
    "dapo": ["--preset", "dapo", "--group", "4", "--minibatches", "2", "--threads", "2"],
    "prorl": ["--preset", "prorl", "--group", "4", "--minibatches", "2", "--reset-every", "2", "--threads", "1"],
    "rlhf": ["--minibatches", "2", "--epochs", "2", "--kl-target", "3", "--threads", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_training_that_is_killed_goes_on_bit_for_bit(name, tmp_path, start):
    algorithm = "rlhf" if name == "rlhf" else "grpo"
    process = start("faults.languages", algorithm, tmp_path, *RUNS[name])
    _, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
