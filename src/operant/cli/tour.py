"""`operant tour`: a guided tour with one stop per package."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from operant.cli.answers import answer_table
from operant.cli.arguments import parse
from operant.cli.charts import budget_axis, scale
from operant.cli.comparing import curve_chart
from operant.cli.evaluating import keep
from operant.cli.output import missing, number, seed_table, table
from operant.cli.solving import solve
from operant.cli.training import next_commands
from operant.cli.watching import film
from operant.runtime.run_paths import location
from operant.runtime.signals import Interruption

if TYPE_CHECKING:
    from operant.api import Trained


@dataclass(frozen=True)
class TourOptions:
    """Take a guided tour: solve a known MDP, learn it from samples, train networks, train a language model to add.

    It takes a few minutes.
    """

    keep: Path = Path("runs")
    """Folder of the tour's runs."""


@dataclass(frozen=True)
class Stop:
    """One stop of the tour.

    Attributes:
        title: title of the stop.
        text: introduction.
        visit: function that runs the stop, from the folder for runs and the interruption check to an exit status.
    """

    title: str
    text: str
    visit: Callable[[Path, Interruption], int]


def tour(arguments: list[str]) -> int:
    """Visit all stops."""
    options = parse(TourOptions, arguments, "tour")
    statuses: list[int] = []
    with Interruption() as interrupted:
        for number_, stop in enumerate(STOPS, 1):
            print(f"{number_}/{len(STOPS)}  {stop.title}\n\n{stop.text}\n", flush=True)
            statuses.append(stop.visit(options.keep, interrupted))
            print(flush=True)
            if interrupted():
                break
    chosen = "" if options.keep == TourOptions.keep else f" --runs {shlex.quote(str(options.keep))}"
    print(f"See these runs and a playground in the browser:\n  operant serve{chosen}")
    return max(statuses)


LAKE = "FrozenLake-v1"


def look_ahead(folder: Path, interrupted: Interruption) -> int:
    """Solve FrozenLake exactly.

    Returns:
        Exit status: 0 if the values have the requested accuracy, else 1.
    """
    status = solve([LAKE, "--gamma", "0.99"])
    print(f"\nNext:\n  operant solve {LAKE} --method value-iteration  another method, the same values")
    print("  operant solve --map grid.txt                         your own grid")
    return status


def explore(folder: Path, interrupted: Interruption, *, budget: int = 200_000, seeds: int = 8) -> int:
    """Train Q-learning on FrozenLake from samples, and evaluate its policies exactly.

    Returns:
        Exit status: 0 if every seed solves the task, 75 if training was interrupted, else 1.
    """
    import gymnasium
    import numpy as np

    from operant import tabular
    from operant.mdp import backward_induction

    trained = _train("q-learning", LAKE, folder, interrupted, budget=budget, seeds=seeds)
    place = location(trained.run.path)
    if trained.outcome is None or trained.outcome.interrupted:
        print(f"Interrupted and saved. Continue with `operant resume {place}`.")
        return 75
    threshold = gymnasium.spec(LAKE).reward_threshold
    lake = cast(Any, trained.experiment).mdp
    assert threshold is not None  # noqa: S101 - the lake has one
    exact = tabular.expected_returns(lake, trained.experiment.learner.policy()) @ lake.start
    ceiling = lake.start @ backward_induction(lake, horizon=lake.max_steps).values[0]
    aimless = lake.feasible / np.maximum(lake.feasible.sum(axis=1, keepdims=True), 1)
    chance = tabular.expected_returns(lake, aimless) @ lake.start
    print(f"Exact probability of reaching the goal within {lake.max_steps} steps, by seed:\n")
    rows = [[str(seed), f"{value:.4f}"] for seed, value in zip(trained.run.settings.seeds, exact, strict=True)]
    print(table([["seed", "success"], *rows], ">>"))
    print(f"\nA random policy has {chance:.4f}; no policy exceeds {ceiling:.4f}, even if it observes the time.")
    solved = int((exact >= threshold).sum())
    print(f"{solved} of {seeds} seeds solve it: {number(threshold)} or more.")
    print(f"\nNext:\n  operant evaluate {place}  sampled episodes instead, which have noise")
    print("  operant train sarsa CliffWalking-v1 --seeds 100  another algorithm, another world")
    return 0 if solved == seeds else 1


def _train(
    algorithm: str,
    task: str,
    folder: Path,
    interrupted: Interruption,
    *,
    seeds: int | Sequence[int],
    **parameters: Any,
) -> "Trained":
    from operant import api
    from operant.runtime.run_paths import default_run_path

    path = default_run_path(algorithm, task, folder)
    command = ["operant", "tour", "--keep", str(folder)]
    return api.train(algorithm, task, seeds=seeds, run=path, interrupted=interrupted, command=command, **parameters)


def balance(folder: Path, interrupted: Interruption, *, budget: int = 100_000, seeds: int = 8) -> int:
    """Train PPO on CartPole, evaluate all seeds in Gymnasium's environment and show the results.

    Returns:
        Exit status: 0 if every seed solves the task, 75 if training was interrupted, else 1.
    """
    import gymnasium

    task = "CartPole-v1"
    threshold = gymnasium.spec(task).reward_threshold
    assert threshold is not None  # noqa: S101 - CartPole has one
    begin = time.perf_counter()
    trained = _train("ppo", task, folder, interrupted, budget=budget, seeds=seeds)
    place = location(trained.run.path)
    if trained.outcome is None or trained.outcome.interrupted:
        print(f"Interrupted and saved. Continue with `operant resume {place}`.")
        return 75
    print(
        f"Trained in {time.perf_counter() - begin:.0f} s. Now 100 greedy episodes per seed in Gymnasium's own {task}:\n"
    )
    evaluation = trained.evaluate(100, backend="gymnasium")
    keep(trained, evaluation, "gymnasium")
    print(f"{seed_table(trained.run.settings.seeds, evaluation, threshold=threshold)}\n")
    solved = sum(score >= threshold for score in evaluation.scores)
    print(f"{solved} of {seeds} seeds solve it: a mean of {number(threshold)} or more.\n")
    _show_curve(trained, budget)
    print(f"\nEverything is in {place}: configuration, metrics, checkpoints.")
    print(f"{_plots(trained)}\n\n{next_commands(place)}")
    return 0 if solved == seeds else 1


def _show_curve(trained: "Trained", budget: int) -> None:
    from operant.runtime.comparison import learning_curve

    curve, unit = learning_curve(trained.run), trained.run.entry.unit
    low, high = scale(curve.iqm.tolist())
    print("Learning curve (IQM over the seeds):\n")
    print(curve_chart(curve, budget, low=low, high=high, height=8))
    print(budget_axis(budget, unit, low=low, high=high))


def _plots(trained: "Trained") -> str:
    """Plot the learning curve and record a video of the first seed, if the extras are installed; return a text."""
    lines: list[str] = []
    if missing(["matplotlib"]):
        lines.append('For a plot of the curve: pip install "operant[plots]"')
    else:
        from operant.cli.plotting import draw
        from operant.runtime.comparison import compare

        plot = trained.run.media_path / "learning-curve.png"
        draw([trained.run.path.name], compare([trained.run]), plot)
        lines.append(f"Plot of the curve: {location(plot)}")
    if missing(["pygame", "imageio_ffmpeg"]):
        lines.append('For a video of the policy: pip install "operant[render]"')
    else:
        path, played = film(trained, 0)
        lines.append(f"The first seed in action (score {number(played.scores[0])}): {location(path)}")
    return "\n".join(lines)


SUMS = "arithmetic"


def calculate(
    folder: Path,
    interrupted: Interruption,
    *,
    seeds: Sequence[int] = (0,),
    imitation: Mapping[str, Any] = MappingProxyType({}),
    rewards: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Train a small language model to add, first with SFT on demonstrations, then with GRPO.

    Args:
        folder: folder for the runs.
        interrupted: interruption check.
        seeds: seeds of the runs.
        imitation: parameters of SFT that differ from the defaults.
        rewards: parameters of GRPO that differ from the defaults.

    Returns:
        Exit status: 0 if GRPO improves significantly, 75 if training was interrupted, else 1.
    """
    if missing(["transformers", "tokenizers"]):
        print('This stop needs more packages: pip install "operant[language]"')
        return 0
    from operant.runtime.course import change

    begin = time.perf_counter()
    imitator = _train("sft", SUMS, folder, interrupted, seeds=seeds, **imitation)
    place = location(imitator.run.path)
    if imitator.outcome is None or imitator.outcome.interrupted or imitator.outcome.evaluation is None:
        print(f"Interrupted and saved. Continue with `operant resume {place}`.")
        return 75
    print(f"\nSFT took {time.perf_counter() - begin:.0f} s. GRPO continues with the same model and rewards only.\n")
    trained = _train("grpo", SUMS, folder, interrupted, seeds=seeds, init=str(imitator.run.path), **rewards)
    place = location(trained.run.path)
    if trained.outcome is None or trained.outcome.interrupted or trained.outcome.evaluation is None:
        print(f"Interrupted and saved. Continue with `operant resume {place}`.")
        return 75
    print(f"\n{time.perf_counter() - begin:.0f} s in all. Accuracy on 200 held-out sums:\n")
    before, after = imitator.outcome.evaluation.scores, trained.outcome.evaluation.scores
    rows = [[str(s), f"{a:.1%}", f"{b:.1%}"] for s, a, b in zip(seeds, before, after, strict=True)]
    print(table([["seed", "after SFT", "after GRPO"], *rows], ">>>"))
    print(f"\n{answer_table(cast(Any, trained.experiment).samples)}")
    print(f"\nNext:\n  operant chat {place}                  chat with it")
    print(f"  operant evaluate {place} --samples 8  how often one of several answers is correct")
    gain = change(imitator.outcome.evaluation, trained.outcome.evaluation)
    return 0 if gain is not None and gain.low > 0 else 1


STOPS = (
    Stop(
        title="Solving a frozen lake with a known map",
        text=(
            "FrozenLake-v1: cross a lake of 4 x 4 cells from S to the goal G without falling into a hole H. The ice\n"
            "is slippery: only one step in three goes in the intended direction. All of this is known, so no trials\n"
            "are needed: the values of the best policy are computed, with certified bounds."
        ),
        visit=look_ahead,
    ),
    Stop(
        title="Q-learning without the map",
        text=(
            "The same lake, but nothing is known: eight seeds explore it, 200000 steps each, and learn the values of\n"
            "their moves. Then the map serves to evaluate the learned policies exactly."
        ),
        visit=explore,
    ),
    Stop(
        title="Eight policies that balance a pole",
        text=(
            "CartPole-v1: push a cart left or right so that the pole on it stays upright; every step that it does\n"
            "scores 1, and 500 steps are an episode. PPO collects experience with the current policy, estimates how\n"
            "good each action was, and improves the policy a little. One seed is not a result, so eight\n"
            "train in parallel as one program, 100000 steps each. They are then scored\n"
            "in Gymnasium's own environment, in new episodes."
        ),
        visit=balance,
    ),
    Stop(
        title="A small language model that adds",
        text=(
            "A transformer with 600 000 weights and an alphabet of characters learns to continue 47+85= by 132.\n"
            "First it imitates 18000 demonstrations. Then it answers each of 40000 sums 8 times, a\n"
            "verifier checks the answers, and those that are better than the group's mean become more probable.\n"
            "That is GRPO, with the clipped objective of PPO. It is scored on new\n"
            "sums. Both parts are the commands of the README with the defaults."
        ),
        visit=calculate,
    ),
)
"""The stops, in the order of the packages."""
