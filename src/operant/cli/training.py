"""`operant train` and `operant resume`."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from operant import catalog
from operant.cli.arguments import Training, parse, parse_training
from operant.cli.output import location, print_json, say, score_fields, seed_table
from operant.runtime.signals import Interruption

if TYPE_CHECKING:
    from operant.api import Trained
    from operant.runtime.evaluation import Evaluation


def train(arguments: list[str]) -> int:
    """Train an algorithm on a task."""
    with Interruption() as interrupted:
        options, config = parse_training(arguments)
        from operant import api

        return finish(
            lambda: api.train(
                **options.settings(),
                run=options.run,
                config=config,
                progress=options.progress,
                interrupted=interrupted,
                command=["operant", "train", *arguments],
            ),
            as_json=options.json,
        )


@dataclass(frozen=True)
class ResumeOptions(Training):
    """Go on with an interrupted run, exactly where its latest checkpoint was taken, to the end of its budget."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""


def resume(arguments: list[str]) -> int:
    """Go on with an interrupted run."""
    with Interruption() as interrupted:
        options = parse(ResumeOptions, arguments, "resume")
        from operant import api

        return finish(
            lambda: api.resume(
                options.run,
                progress=options.progress,
                interrupted=interrupted,
                command=["operant", "resume", *arguments],
            ),
            as_json=options.json,
        )


def finish(work: Callable[[], "Trained"], *, as_json: bool) -> int:
    """Train, print the result and return the exit status."""
    begin = time.perf_counter()
    trained = work()
    seconds = time.perf_counter() - begin
    outcome, place = trained.outcome, location(trained.run.path)
    assert outcome is not None  # noqa: S101 - train and resume always say how it ended
    if outcome.lost_records or outcome.missed_checkpoints:
        say(f"not written: {outcome.lost_records} records, {outcome.missed_checkpoints} checkpoints; see the warnings")
    if outcome.interrupted:
        say(f"operant: interrupted and saved; go on with `operant resume {place}`")
        return outcome.exit_code
    evaluation = final_evaluation(trained)
    settings = trained.run.settings
    if as_json:
        print_json(
            {
                "algorithm": settings.algorithm,
                "task": settings.task,
                "seeds": settings.seeds,
                "budget": settings.budget,
                **score_fields(evaluation),
                "env_steps_per_second": outcome.steps_per_second,
                "wall_seconds": seconds,
            }
        )
        return 0
    print(f"\nThe last evaluation, with greedy actions:\n\n{seed_table(settings.seeds, evaluation)}")
    print(_speed(outcome.steps_per_second, seconds, catalog.find(settings.algorithm).unit))
    print(f"\n{next_commands(place)}")
    return 0


def final_evaluation(trained: "Trained") -> "Evaluation":
    """Return the last evaluation of a run that has used its budget."""
    from operant.runtime.comparison import evaluations

    if trained.outcome and trained.outcome.evaluation:
        return trained.outcome.evaluation
    return evaluations(trained.run)[-1][1]


def next_commands(place: str) -> str:
    """Return what can be done with the run at `place`."""
    return "\n".join(
        [
            "Next:",
            f"  operant evaluate {place}             100 more episodes, in Gymnasium's own environment",
            f"  operant watch {place}                see it act",
            f"  operant compare {place} ANOTHER-RUN  beside other runs",
        ]
    )


def _speed(steps_per_second: float, seconds: float, unit: str) -> str:
    from operant.runtime.progress import si

    if math.isnan(steps_per_second):
        return "There was nothing left to train."
    return f"{si(steps_per_second)} {unit} a second in training, all seeds together; {seconds:.1f} s with evaluations"
