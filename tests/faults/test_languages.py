import pytest

RUNS = {
    "grpo": ["--preset", "grpo", "--num-generations", "4", "--threads", "1"],
    "dapo": ["--preset", "dapo", "--num-generations", "4", "--num-minibatches", "2", "--threads", "2"],
    "prorl": [
        "--preset",
        "prorl",
        "--num-generations",
        "4",
        "--num-minibatches",
        "2",
        "--ref-reset-interval",
        "2",
        "--threads",
        "1",
    ],
    "rlhf": ["--num-minibatches", "2", "--num-iterations", "2", "--beta-target", "3", "--threads", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_training_resumes_bit_for_bit(name, tmp_path, start):
    algorithm = "rlhf" if name == "rlhf" else "grpo"
    process = start("faults.languages", algorithm, tmp_path, *RUNS[name])
    _, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
