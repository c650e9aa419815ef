"""The script for SLURM in the documentation, with SLURM's commands replaced, on two processes of this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
FAKES = {
    "scontrol": '[ "$1" = requeue ] && echo "$2" >> "$REQUEUED" || echo localhost',
    "srun": 'exec "$@"',
    "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
}


@pytest.fixture
def job(tmp_path):
    """Return a function that runs the script for one run on several nodes."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, line in FAKES.items():
        (tools / name).write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    (script,) = [part for part in PAGE.read_text(encoding="utf-8").split("```bash\n") if "srun torchrun" in part]
    small = (
        f"--seeds 1 --budget 24 --batch-size 6 --train-examples 64 --held-out 8 --progress silent --run {tmp_path}/one"
    )
    changes = {
        "/shared/runs/one": f"{tmp_path}/one",
        '--model small --run "$run"': small,
        "--nproc-per-node 8": "--nproc-per-node 2",
        ":29400": ":0",
    }
    text = script.partition("```")[0]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)

    def run(**variables):
        values = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node", "SLURM_JOB_NUM_NODES": "1", **variables}
        values |= {"PATH": f"{tools}:{os.environ['PATH']}", "REQUEUED": str(tmp_path / "requeued")}
        return subprocess.run(
            ["bash", "-c", text], env={**os.environ, **values}, capture_output=True, text=True, timeout=400, check=False
        )

    return run


@pytest.mark.skipif(sys.platform != "linux", reason="a script of bash")
def test_a_job_of_slurm_trains_and_is_queued_again_after_a_failure(job, tmp_path):
    done = job()
    assert (tmp_path / "one" / "run.json").exists(), done.stderr
    assert not (tmp_path / "requeued").exists(), done.stderr
    assert (tmp_path / "one" / "checkpoints" / f"step_{24:012d}").exists()
    (tmp_path / "one" / "run.json").write_text("damaged", encoding="utf-8")
    job()
    assert (tmp_path / "requeued").read_text(encoding="utf-8") == "7\n"
    job(SLURM_RESTART_COUNT="20")
    assert (tmp_path / "requeued").read_text(encoding="utf-8") == "7\n", "not without end"
