"""`operant evaluate`."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from operant.cli.answers import answer_table, sampled_fields, sampled_table
from operant.cli.arguments import Opening, parse
from operant.cli.exactness import Certificates, Losses, exact
from operant.cli.measures import PredictionErrors, Regrets, measured
from operant.cli.output import faulty, number, print_json, processes_on_stderr, say, score_fields, seed_table
from operant.cli.tables import score_notes
from operant.runtime.run_paths import absolute
from operant.runtime.sessions import FINISHED, INTERRUPTED

if TYPE_CHECKING:
    from operant.api import Trained
    from operant.catalog import Algorithm
    from operant.language.evaluation import Sampled
    from operant.runtime.evaluation import Evaluation
    from operant.runtime.time_travel import Arrival


@dataclass(frozen=True)
class EvaluateOptions(Opening):
    """Evaluate the policies of all seeds, and append the result to eval/final.jsonl.

    Policies act for whole episodes; language models answer held-out prompts.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""

    episodes: int | None = None
    """Number of episodes per seed, or of held-out examples. Default: 100 episodes, or all examples."""

    env_backend: Literal["auto", "tensor", "gymnasium"] | None = None
    """Environments: Gymnasium's, operant's batched ones (tensor), or the faster available ones (auto). Default:
    gymnasium; auto for tabular methods, which are evaluated exactly if the model of the task is known, and with
    --randomize, since only tensor environments and tasks of MuJoCo have parameters to randomize."""

    randomize: Path | None = None
    """TOML file of domain randomization, as for `operant train --randomize`: fixed numbers or distributions. For deep
    control."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the environment, such as g=5, which replace those of the run or are added to them. For deep
    control."""

    sample: tyro.conf.FlagCreatePairsOff[bool] = False
    """Sample actions as in training instead of selecting the most probable ones. For deep control."""

    best: tyro.conf.FlagCreatePairsOff[bool] = False
    """Evaluate each seed's policy with the best evaluation during training instead of the latest one."""

    at: int | None = None
    """Evaluate the policies at this point of the budget (0: before training), recomputed bit for bit from the nearest
    earlier checkpoint. Default: the latest policies."""

    exact: tyro.conf.FlagCreatePairsOff[bool] = False
    """Compare with an exact solution. Board games: count the mistakes of each seed's greedy policy in all positions,
    and in the positions that it can reach in either seat against any opponent. Finite MDPs: report the suboptimality
    of each seed's greedy policy, V* - V^π, at the start and its maximum over the states that can be entered; for
    prediction, the errors of the values, |V - V^π|."""

    faced: tyro.conf.FlagCreatePairsOff[bool] = False
    """With --exact in a board game: count mistakes only in the positions that each policy can reach. Large boards have
    a hundred times as many others."""

    simulations: int | None = None
    """For AlphaZero and MuZero: simulations of each search; 0 uses the network alone. Default: as in training."""

    gamma: float | None = None
    """Discount factor of --exact in a finite MDP. Default: the run's."""

    samples: int = 0
    """For language models: also sample this many answers to each held-out prompt, and report their mean reward (avg@k)
    and the unbiased estimate of the probability that at least one of k is correct (pass@k). 0: none."""

    require: float | None = None
    """Exit with status 1 if the mean score of any seed is below this."""

    def __post_init__(self) -> None:
        if self.episodes is not None and self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")
        if self.samples < 0:
            raise ValueError(f"samples must be at least 0, got {self.samples}")
        if self.require is not None and math.isnan(self.require):
            raise ValueError("require must be a number that scores can be compared with, got nan")
        if self.faced and not self.exact:
            raise ValueError("--faced is for the mistakes of --exact: add --exact, or leave it out")
        if self.gamma is not None and not (self.exact and 0 <= self.gamma <= 1):
            raise ValueError(f"gamma must lie between 0 and 1, and requires --exact, got {self.gamma}")
        if self.sample and self.exact:
            raise ValueError("--exact is for greedy policies, and --sample for sampled actions: leave out one of them")


def evaluate(arguments: list[str]) -> int:
    """Evaluate the policies of a run."""
    options = parse(EvaluateOptions, arguments, "evaluate")
    if not options.json:
        return _evaluate(options)
    try:
        with processes_on_stderr():
            return _evaluate(options)
    except KeyboardInterrupt:
        print_json({"run": str(absolute(options.run)), "outcome": INTERRUPTED})
        raise


def _evaluate(options: EvaluateOptions) -> int:
    from operant import api
    from operant.runtime.experiment import Answering
    from operant.runtime.run import Run

    entry = Run.open(options.run).entry
    speaks = entry.package == "language"
    from operant.envs import randomizer

    backend = options.env_backend or ("auto" if entry.package == "tabular" or options.randomize else "gymnasium")
    wrappers = () if options.randomize is None else (randomizer(options.randomize),)
    _require_suitable(options, entry)
    sampled: list[Sampled] = []
    truth: Certificates | Losses | PredictionErrors | Regrets | None = None
    trained = api.load(
        options.run,
        best=options.best,
        at=options.at,
        remote_code=options.remote_code,
        accept_changes=options.accept_changes,
    )
    with closing(trained.experiment):
        if options.simulations is not None:
            _search_with(trained, options.simulations)
        if options.exact:
            truth = exact(trained, options.gamma, faced_only=options.faced)
        given: dict[str, Any] = {"wrappers": wrappers, "env_kwargs": options.env_kwargs}
        evaluation = trained.evaluate(options.episodes, backend=backend, deterministic=not options.sample, **given)
        if options.samples and isinstance(trained.experiment, Answering):
            sampled = trained.experiment.sample(options.samples, evaluation.episodes)
    truth = truth or measured(trained, evaluation)
    acted = _acted(options)
    keep(trained, evaluation, None if speaks else backend, wrappers, acted)
    settings = trained.run.settings
    if options.json:
        facts = {"algorithm": settings.algorithm, "task": settings.task, "seeds": settings.seeds}
        facts |= {"run": str(trained.run.path), "outcome": FINISHED}
        ours = _stamp(trained, acted) | ({"wrappers": list(wrappers)} if wrappers else {})
        ours |= (
            {"unit": entry.unit}
            if speaks
            else {"env_backend": backend, "exact": evaluation.exact, "cut": evaluation.cut}
        )
        counts = {"episodes": evaluation.episodes, "lengths": evaluation.lengths}
        counts |= {"missing": evaluation.missing} if evaluation.missing else {}
        drawn = sampled_fields(settings.seeds, sampled) if sampled else {}
        print_json(
            {**facts, **ours, **counts, **score_fields(evaluation), **drawn, **(truth.fields() if truth else {})}
        )
    else:
        if options.sample:
            print("Actions are sampled.\n")
        _print(trained, evaluation, sampled, options.require)
        if truth:
            print(f"\n{truth.text()}")
    wrong = faulty(settings.seeds, evaluation, trained.run.config(trained.run.entry.config_class))
    return max(int(wrong), _missed(settings.seeds, evaluation.scores, options.require))


def _require_suitable(options: EvaluateOptions, entry: "Algorithm") -> None:
    """Raise an error for options that a run of this algorithm does not have."""
    what = f"and {options.run} is a run of {entry.name}; leave it out"
    if options.samples and entry.package != "language":
        raise ValueError(f"--samples is for language models, {what}")
    if options.sample and entry.package in ("tabular", "language"):
        hint = "; --samples 8 samples answers" if entry.package == "language" else ""
        raise ValueError(f"--sample is for deep control, {what}{hint}")
    if options.env_kwargs and entry.package in ("tabular", "language"):
        raise ValueError(f"--env-kwargs of evaluations is for deep control, {what}")
    if entry.package == "language" and (given := [f for f in ("env_backend", "randomize") if getattr(options, f)]):
        raise ValueError(f"--{given[0].replace('_', '-')} is for environments, {what}")


def _search_with(trained: "Trained", simulations: int) -> None:
    """Set the number of simulations of each search of the policies."""
    from operant.worlds.board_game_player import BoardGamePlayer

    learner = trained.experiment.learner
    if not isinstance(learner, BoardGamePlayer):
        raise ValueError(
            f"--simulations is for alphazero and muzero, got a run of {trained.run.entry.name}: leave it out"
        )
    learner.search_with(simulations)


def _print(trained: "Trained", evaluation: "Evaluation", sampled: Sequence["Sampled"], threshold: float | None) -> None:
    from operant.runtime.experiment import Answering

    seeds = trained.run.settings.seeds
    answers = trained.experiment.samples if isinstance(trained.experiment, Answering) else None
    counted = "episodes" if answers is None else "examples"
    print(seed_table(seeds, evaluation, threshold=threshold, counted=counted))
    if notes := score_notes(trained, evaluation):
        print(f"\n{notes}")
    if trained.arrival is not None:
        print(f"\n{arrived(trained.arrival)}")
    if sampled:
        print(f"\n{sampled_table(seeds, sampled)}")
    if answers:
        print(f"\n{answer_table(answers)}")
    if trained.consumed is not None:
        when = ", ".join(f"{seed} after {steps:,}" for seed, steps in zip(seeds, trained.consumed, strict=True))
        print(f"\nPolicies with the best evaluation during training, by seed: {when}.")


def arrived(arrival: "Arrival") -> str:
    """Return a description of a recomputed state."""
    origin = "the start" if arrival.origin == "start" else f"checkpoint {arrival.began}"
    recomputed = f"{arrival.updates} update{'s'[: arrival.updates != 1]} recomputed from {origin}"
    description = recomputed if arrival.updates else f"loaded from {origin}"
    checked = "equal to the hash recorded in training" if arrival.verified else "training recorded no hash here"
    return f"The state at {arrival.consumed:,}: {description}. SHA-256 {arrival.sha256} ({checked})."


def keep(
    trained: "Trained",
    evaluation: "Evaluation",
    backend: str | None,
    wrappers: Sequence[str] = (),
    acted: Mapping[str, Any] | None = None,
) -> None:
    """Append an evaluation to the run's `eval/final.jsonl`; warn if the run is not writable.

    Args:
        trained: the run.
        evaluation: its evaluation.
        backend: environments; None for language models.
        wrappers: wrappers of the evaluation, besides those of the run.
        acted: how actions were selected, and keyword arguments of environments, if not as by default, by name.
    """
    from operant.runtime.metrics import RecordWriter

    stamp = _stamp(trained, acted or {})
    stamp |= {} if backend is None else {"env_backend": backend}
    stamp |= {"wrappers": list(wrappers)} if wrappers else {}
    try:
        with closing(RecordWriter(trained.run.path / "eval" / "final.jsonl")) as records:
            records.write(stamp | evaluation.record())
            records.sync()
    except OSError as error:
        say(f"operant: warning: the evaluation is not saved in {trained.run.path}: {error.strerror}")


def _acted(options: EvaluateOptions) -> dict[str, Any]:
    """Return the options of actions and environments that are not the defaults, by name."""
    searched = {} if options.simulations is None else {"simulations": options.simulations}
    others = {"env_kwargs": dict(options.env_kwargs)} if options.env_kwargs else {}
    return ({"sampled": True} if options.sample else {}) | searched | others


def _stamp(trained: "Trained", acted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the budget used by the policies, one number, or one per seed for the best ones, and how they acted."""
    if trained.consumed is None:
        state = {} if trained.arrival is None else {"sha256": trained.arrival.sha256}
        return {"consumed": trained.experiment.learner.consumed, **state, **acted}
    return {"best": True, "consumed": trained.consumed, **acted}


def _missed(seeds: tuple[int, ...], scores: tuple[float, ...], required: float | None) -> int:
    if required is None:
        return 0
    low = [
        f"seed {seed} scored {number(score)}"
        for seed, score in zip(seeds, scores, strict=True)
        if not score >= required
    ]
    if low:
        say(f"operant: below the required {number(required)}: {', '.join(low)}")
    return 1 if low else 0
