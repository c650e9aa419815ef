"""Kill forked trainers with SIGKILL and check the files: `python -m faults.kills (save|resume|rewind) FOLDER`.

Forks are cheap, new processes import torch; a separate process avoids forks of pytest.
"""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from faults.trainer import go_on, make
from operant.runtime import checkpoints as module
from operant.runtime.checkpoints import Checkpoints, load, verify
from operant.runtime.metrics import read_records, rewind
from operant.runtime.run import Run
from runtime.tiny import Regression

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "tests.write"}


def killed_at(n, action):
    """Run `action` in a fork that kills itself at its `n`-th file operation; return whether it was killed."""
    pid = os.fork()
    if pid == 0:
        arm(n)
        try:
            action()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"operation {n}: the fork failed"
    return os.WIFSIGNALED(status)


def arm(n):
    count = 0

    def hook(event, arguments):
        nonlocal count
        if event in EVENTS:
            count += 1
            if count == n:
                os.kill(os.getpid(), signal.SIGKILL)

    def torn(real):
        """Return a function that writes half of its file before the rest."""

        def write(*arguments):
            real(*arguments)
            path = next(Path(a) for a in arguments if isinstance(a, str | Path))
            whole = path.read_bytes()
            path.write_bytes(whole[: len(whole) // 2])
            sys.audit("tests.write")
            path.write_bytes(whole)

        return write

    real_fsync = os.fsync
    os.fsync = lambda descriptor: (sys.audit("tests.write"), real_fsync(descriptor))[1]
    module.save_file = torn(module.save_file)
    module.write_durably = torn(module.write_durably)
    sys.addaudithook(hook)


def sweep(folder, prepare, action, check):
    """Kill `action` at its first, second, ... operation until it completes, and call `check` after each."""
    n = 0
    while True:
        n += 1
        place = folder / str(n)
        prepare(place)
        killed = killed_at(n, lambda place=place: action(place))
        check(place)
        shutil.rmtree(place)
        if not killed:
            return n - 1


def state(number):
    return {"weight": torch.full((50,), float(number)), "number": number}


def sweep_save(folder):
    """Check a save next to two checkpoints: a damaged one of the same step, and an old one to be removed."""

    def prepare(place):
        for n in (1, 2):
            Checkpoints(place).save(state(n), n)
        shutil.copytree(place / "step_000000000002", place / "step_000000000003")
        (place / "step_000000000003" / "state.json").write_bytes(b"damaged")

    def check(place):
        for path in Checkpoints(place).paths():
            if (path / "state.json").read_bytes() != b"damaged":
                verify(path)
        path, consumed = Checkpoints(place).latest()
        again = load(path)
        assert consumed in (2, 3), consumed
        assert again["number"] == consumed
        assert torch.equal(again["weight"], state(consumed)["weight"])
        later = Checkpoints(place)
        later.clean()
        assert not list(place.glob(".*")), list(place.glob(".*"))
        later.save(state(4), 4)
        assert later.latest()[1] == 4

    operations = sweep(folder, prepare, lambda place: Checkpoints(place).save(state(3), 3), check)
    assert operations > 25, operations


def sweep_rewind(folder):
    """Check that no record is lost if moving late ones is interrupted."""
    lines = [f'{{"consumed": {n}}}' for n in (1, 2, 3, 4)]

    def prepare(place):
        place.mkdir()
        (place / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    def check(place):
        found = {r["consumed"] for name in ("metrics", "rewound") for r in read_records(place / f"{name}.jsonl")}
        assert found == {1, 2, 3, 4}, found
        rewind(place / "metrics.jsonl", 2)
        assert [r["consumed"] for r in read_records(place / "metrics.jsonl")] == [1, 2]

    operations = sweep(folder, prepare, lambda place: rewind(place / "metrics.jsonl", 2), check)
    assert operations > 8, operations


def kill_and_resume(folder):
    """Check that a run killed repeatedly at random times ends as an uninterrupted one."""
    whole, broken = make(folder / "whole"), make(folder / "broken")
    go_on(whole)
    chance = random.Random(0)  # noqa: S311  not for secrets
    kills = 0
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            try:
                go_on(Run.open(broken.path), learner=Regression())
            finally:
                os._exit(0 if sys.exc_info()[0] is None else 1)
        time.sleep(chance.uniform(0.005, 0.06))
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        kills += 1
    else:  # a slow machine makes no progress between two kills: train to the end without
        go_on(Run.open(broken.path), learner=Regression())
    assert kills >= 5, kills
    (one, _), (two, _) = (run.checkpoints.latest() for run in (whole, broken))
    assert one.name == two.name
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes(), file.name
    consumed = [r["consumed"] for r in read_records(broken.metrics_path)]
    assert consumed == sorted(set(consumed))
    assert consumed[-1] == 1500


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"save": sweep_save, "rewind": sweep_rewind, "resume": kill_and_resume}[sys.argv[1]](Path(sys.argv[2]))
