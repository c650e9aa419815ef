"""`operant evaluate`."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from operant.cli.arguments import Answering, parse
from operant.cli.output import number, print_json, say, score_fields, seed_table

if TYPE_CHECKING:
    from operant.api import Trained
    from operant.runtime.evaluation import Evaluation


@dataclass(frozen=True)
class EvaluateOptions(Answering):
    """Score the policies of all seeds greedily over whole episodes, and append the result to eval/final.jsonl."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""

    episodes: int = 100
    """Episodes of each seed."""

    env_backend: Literal["auto", "tensor", "gymnasium"] = "gymnasium"
    """Where environments come from: Gymnasium, operant's batched ones (tensor), or the faster that exists (auto)."""

    require: float | None = None
    """Exit with 1 unless the mean score of every seed reaches this."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")


def evaluate(arguments: list[str]) -> int:
    """Score the policies of a run."""
    options = parse(EvaluateOptions, arguments, "evaluate")
    from operant import api

    trained = api.load(options.run)
    with closing(trained.experiment):
        evaluation = trained.evaluate(options.episodes, backend=options.env_backend)
    keep(trained, evaluation, options.env_backend)
    settings = trained.run.settings
    if options.json:
        facts = {"algorithm": settings.algorithm, "task": settings.task, "seeds": settings.seeds}
        ours = {"consumed": trained.experiment.learner.consumed, "env_backend": options.env_backend}
        counts = {"episodes": evaluation.episodes, "lengths": evaluation.lengths}
        print_json({**facts, **ours, **counts, **score_fields(evaluation)})
    else:
        print(seed_table(settings.seeds, evaluation, threshold=options.require))
    return _missed(settings.seeds, evaluation.scores, options.require)


def keep(trained: "Trained", evaluation: "Evaluation", backend: str) -> None:
    """Append an evaluation to `eval/final.jsonl` of its run; a run that cannot be written is only warned of."""
    from operant.runtime.metrics import RecordWriter

    stamp = {"consumed": trained.experiment.learner.consumed, "env_backend": backend}
    try:
        with closing(RecordWriter(trained.run.path / "eval" / "final.jsonl")) as records:
            records.write(stamp | evaluation.record())
            records.sync()
    except OSError as error:
        say(f"operant: warning: the evaluation is not kept in {trained.run.path}: {error.strerror}")


def _missed(seeds: tuple[int, ...], scores: tuple[float, ...], required: float | None) -> int:
    if required is None:
        return 0
    low = [f"seed {seed} scored {number(score)}" for seed, score in zip(seeds, scores, strict=True) if score < required]
    if low:
        say(f"operant: below the required {number(required)}: {', '.join(low)}")
    return 1 if low else 0
