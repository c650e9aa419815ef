"""Kill forked command lines that train language models, and check that they end as uninterrupted ones.

`python -m faults.languages FOLDER` prints the names of the runs. A fork need not import torch and transformers again; a
separate process avoids forks of pytest.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from operant.cli import main
from operant.language import SFT, tasks  # noqa: F401  imported before the forks
from operant.language.models import build
from operant.runtime.metrics import read_records
from operant.runtime.run import Run

COMMON = [
    *("preference", "--model", "tiny", "--train-examples", "32", "--held-out", "2", "--max-completion-length", "10"),
    *("--prompts-per-batch", "4", "--budget", "24", "--evaluate-every", "24", "--checkpoint-seconds", "0"),
    *("--progress", "silent"),
]
SMALL = ("--num-generations", "4", "--threads", "1")
RUNS = {
    "grpo": ("grpo", "--preset", "grpo", *SMALL),
    "dapo": ("grpo", "--preset", "dapo", *SMALL[:2], "--num-minibatches", "2", "--threads", "2"),
    "prorl": ("grpo", "--preset", "prorl", *SMALL, "--num-minibatches", "2", "--ref-reset-interval", "2"),
    "rlhf": ("rlhf", *("--num-minibatches", "2", "--num-iterations", "2", "--beta-target", "3", "--threads", "2")),
}
KILLS = 4


def forked(arguments):
    """Run a command line in a fork and return its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            status = main(arguments)
        finally:
            os._exit(status)
    return pid


def finished(pid):
    """Return whether a fork ended by itself, and check that it succeeded."""
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFEXITED(status)


def checkpoints(folder):
    return {path.name for path in (folder / "checkpoints").glob("step_*")}


def kill_after(pid, folder, before, chance):
    """Kill a fork shortly after its next checkpoint; return whether it was still running."""
    while checkpoints(folder) <= before:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return not finished(pid)
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.1))
    os.kill(pid, signal.SIGKILL)
    return not finished(pid)


def kill_and_resume(algorithm, *options, folder):
    whole, broken = folder / "whole", folder / "broken"
    train = ["train", algorithm, *COMMON, *options]
    assert finished(forked([*train, "--run", str(whole)]))
    chance = random.Random(0)  # noqa: S311  not for secrets
    pid, kills = forked([*train, "--run", str(broken)]), 0
    resume = ["resume", str(broken), "--progress", "silent"]
    while kills < KILLS and kill_after(pid, broken, checkpoints(broken), chance):
        kills += 1
        pid = forked(resume)
    if kills == KILLS:
        assert finished(pid)
    assert kills >= 2, kills
    (one, consumed), (two, _) = (Run.open(path).checkpoints.latest() for path in (whole, broken))
    assert consumed >= 24
    assert one.name == two.name
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes(), file.name
    records = [read_records(Run.open(path).metrics_path) for path in (whole, broken)]
    losses = [[(r["consumed"], r.get("losses/policy")) for r in own] for own in records]
    assert losses[0] == losses[1]
    assert len({str(loss) for _, loss in losses[0]}) > 3


if __name__ == "__main__":
    torch.set_num_threads(1)
    build("tiny", seed=0)
    for name, words in RUNS.items():
        kill_and_resume(*words, folder=Path(sys.argv[1], name))
        sys.stdout.write(f"{name}\n")
