"""A training process to be killed or stopped: `python -m faults.trainer RUN [--pause SECONDS]`."""

import argparse
import sys
import time
from dataclasses import dataclass

import torch

from operant.runtime.run import Run, RunError
from operant.runtime.settings import Settings
from operant.runtime.signals import Interruption
from operant.runtime.training import resume_from, train
from runtime.tiny import Regression

BUDGET = 1500


@dataclass(frozen=True)
class Config:
    pass


def make(path):
    return Run.create(path, Settings("regression", "line", seeds=(0, 1), budget=BUDGET), Config())


def go_on(run, *, learner=None, interrupted=lambda: False, progress="silent"):
    """Train `run` from its last checkpoint to the end, with a checkpoint after every iteration."""
    learner = learner or Regression()
    with run.lock():
        resume_from(run, learner)
        return train(learner, run, budget=BUDGET, checkpoint_seconds=0.0, interrupted=interrupted, progress=progress)


class Announcing(Regression):
    """Learner that prints a line in the middle of each iteration, and then waits."""

    pause = 0.0

    def iterate(self):
        if self.consumed == 100:
            sys.stdout.write("working\n")
            sys.stdout.flush()
        if self.consumed >= 100:
            time.sleep(self.pause)
        return super().iterate()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--progress", default="silent")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    learner = Announcing()
    learner.pause = arguments.pause
    try:
        with Interruption() as interrupted:
            outcome = go_on(
                Run.open(arguments.run), learner=learner, interrupted=interrupted, progress=arguments.progress
            )
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
