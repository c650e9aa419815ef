"""Claim: every listed command of the documentation ends no worse than it began, in the mean of five seeds.

Every row is a command of the documentation as it is typed, with the defaults of its algorithm and preset; it is run for
each seed by itself, and a run that starts from another starts from the run of the same seed. Defaults were chosen on
seeds from 1000 up; the seeds here are 0 to 4. A policy is scored by the mean reward of its greedy answers to 200
held-out prompts, a reward model by the share of held-out pairs (or steps) that it orders (or labels) correctly. Start
is the score of the model that the run began with, on the same prompts; for reward models it is that of a trivial
classifier. The only option that is not the default is `--threads 1`, so that several runs can run in parallel.

Runs are in runs/language_scores and resume where they stopped, so the table can be filled in several sessions and by
several processes in parallel:

    python experiments/language_scores.py --hours 2                   # run missing cells
    python experiments/language_scores.py --rows arithmetic/dapo      # some rows
    python experiments/language_scores.py --table                     # print and plot the results so far
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from arms import interval
from checks import COLORS, panels, save

from operant.runtime.metrics import read_records
from operant.runtime.run import Run

SEEDS = range(5)
RESULTS = Path(__file__).with_suffix("")
RUNS = Path(os.environ.get("OPERANT_RUNS", Path(__file__).parents[1] / "runs")) / "language_scores"
TASKS = ("arithmetic", "reverse", "sort", "steps", "countdown")
PRESETS = ("", "grpo", "dr-grpo", "dapo", "prorl", "rloo", "gspo", "cispo")
COLUMNS = 3
"""Number of columns of the figure."""
ENOUGH = 3
"""Seeds of a mean that is drawn as a line; of fewer it is dotted."""
RLHF_PRESETS = {
    "arithmetic": ("", "ziegler", "instructgpt", "huang", "vpg", "trpo"),
    "countdown": ("",),
    "reverse": ("", "ziegler", "instructgpt", "huang", "vpg"),
    "steps": ("",),
}
"""Presets of RLHF by task."""


@dataclass(frozen=True)
class Row:
    """A command, and the reference of its score.

    Attributes:
        name: name of the row.
        words: arguments of `operant train`; `@name` is the run of another row.
        start: row whose score the run starts from; empty: none.
        trivial: score of a trivial classifier, for reward models.
    """

    name: str
    words: tuple[str, ...]
    start: str = ""
    trivial: float | None = None

    @property
    def needs(self) -> list[str]:
        """The rows whose runs the command names."""
        return [word[1:] for word in self.words if word.startswith("@")]


def _rows() -> Iterator[Row]:
    for task in (*TASKS, "preference"):
        yield Row(f"{task}/sft", ("sft", task))
    sft, scorer = "@preference/sft", "@preference/reward-model"
    yield Row("preference/reward-model", ("reward-model", "preference", "--init", sft), trivial=0.5)
    yield Row("steps/process-reward-model", ("process-reward-model", "steps"), trivial=0.643)
    for task in TASKS:
        for preset in PRESETS:
            words = ("grpo", task, "--init", f"@{task}/sft", *(("--preset", preset) if preset else ()))
            yield Row(f"{task}/{preset or 'defaults'}", words, start=f"{task}/sft")
    for task, presets in RLHF_PRESETS.items():
        for preset in presets:
            words = ("rlhf", task, "--init", f"@{task}/sft", *(("--preset", preset) if preset else ()))
            yield Row(f"{task}/rlhf-{preset or 'defaults'}", words, start=f"{task}/sft")
    process = ("grpo", "steps", "--init", "@steps/sft", "--supervision", "process")
    yield Row("steps/process", process, start="steps/sft")
    learned = (*process, "--reward-model", "@steps/process-reward-model")
    yield Row("steps/process-learned", learned, start="steps/sft")
    for algorithm in ("grpo", "rlhf", "iterative-grpo"):
        words = (algorithm, "preference", "--init", sft, "--reward-model", scorer)
        yield Row(f"preference/{algorithm}", words, start="preference/sft")
    yield Row("preference/dpo", ("dpo", "preference", "--init", sft), start="preference/sft")


ROWS = {row.name: row for row in _rows()}


def folder(name: str, seed: int) -> Path:
    """Return where the run of a row is kept."""
    return RUNS / f"{name.replace('/', '-')}-{seed}"


def result(name: str, seed: int) -> Path:
    """Return the file of a result."""
    return RESULTS / f"{name.replace('/', '-')}-{seed}.json"


def trained(name: str, seed: int) -> bool:
    """Return whether the run of a row has ended, on this machine."""
    return (folder(name, seed) / "run.json").exists() and Run.open(folder(name, seed)).outcome()[0] == "finished"


def run(row: Row, seed: int) -> None:
    """Run or resume a command and write its result, unless it exists; commands that it depends on run before."""
    for name in row.needs:
        run(ROWS[name], seed)
    RUNS.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder(row.name, seed)}.lock"):
        began = time.monotonic()
        if not trained(row.name, seed):
            subprocess.run(command(row, seed), check=True, stdout=sys.stderr)
        if result(row.name, seed).exists():
            return
        found = describe(row, seed)
        RESULTS.mkdir(exist_ok=True)
        result(row.name, seed).write_text(json.dumps(found) + "\n")
    print(f"{row.name} {seed}: {found['start']} -> {found['end']} ({time.monotonic() - began:.0f} s)", flush=True)


def command(row: Row, seed: int) -> list[str]:
    """Return the command that trains a row, or continues its run."""
    typed = ["resume", str(folder(row.name, seed))]
    if not (folder(row.name, seed) / "run.json").exists():
        words = [str(folder(word[1:], seed)) if word.startswith("@") else word for word in row.words]
        typed = ["train", *words, "--seed", str(seed), "--threads", "1", "--run", str(folder(row.name, seed))]
    return [sys.executable, "-m", "operant", *typed, "--progress", "silent"]


def describe(row: Row, seed: int) -> dict[str, Any]:
    """Return the record of a run: the command, first and last score and all evaluations."""
    records = list(read_records(folder(row.name, seed) / "eval" / "evaluations.jsonl"))
    curve = [(record["consumed"], record["scores"][0]) for record in records]
    start = row.trivial if row.trivial is not None else curve[0][1] if row.start else None
    shown = [
        "operant train",
        *(f"runs/{word[1:].replace('/', '-')}" if word.startswith("@") else word for word in row.words),
    ]
    return {"command": " ".join(shown), "seed": seed, "start": start, "end": curve[-1][1], "curve": curve}


def results() -> dict[str, list[dict[str, Any]]]:
    """Return the results so far, by row, in the order of the table and of the seeds."""
    files = {name: [result(name, seed) for seed in SEEDS] for name in ROWS}
    found = {name: [json.loads(p.read_text()) for p in paths if p.exists()] for name, paths in files.items()}
    return {name: cells for name, cells in found.items() if cells}


def markdown() -> str:
    """Return the table: command, seeds, start, end and the gain with its interval."""
    lines = ["| command | seeds | start | end | gain [95 %] | worst seed |", "|---|---:|---:|---:|---:|---:|"]
    for cells in results().values():
        end = np.array([cell["end"] for cell in cells])
        if cells[0]["start"] is None:
            lines.append(f"| `{cells[0]['command']}` | {len(cells)} | | {end.mean():.3f} | | {end.min():.3f} |")
            continue
        start = np.array([cell["start"] for cell in cells])
        low, high = interval(end - start)
        gain = f"{(end - start).mean():+.3f} [{low:+.3f}, {high:+.3f}]"
        worst = f"{(end - start).min():+.3f}"
        lines.append(
            f"| `{cells[0]['command']}` | {len(cells)} | {start.mean():.3f} | {end.mean():.3f} | {gain} | {worst} |"
        )
    return "\n".join(lines)


def missing() -> list[str]:
    """Return the names of the rows that were not run on all seeds."""
    return [name for name in ROWS if len(results().get(name, [])) < len(SEEDS)]


def draw() -> None:
    """Draw the curves of the policies, a panel a task, the mean over seeds of each command."""
    found = {name: cells for name, cells in results().items() if ROWS[name].start}
    tasks = list(dict.fromkeys(name.partition("/")[0] for name in found))
    columns = min(COLUMNS, len(tasks))
    figure, axes = panels(columns, -(-len(tasks) // columns))
    for axis in axes[len(tasks) :]:
        axis.set_axis_off()
    for axis, task in zip(axes, tasks, strict=False):
        names = [name for name in found if name.startswith(f"{task}/")]
        for index, name in enumerate(names):
            curves = [np.array(cell["curve"]) for cell in found[name]]
            if len({len(curve) for curve in curves}) == 1:
                mean, count = np.mean(curves, axis=0), len(curves)
                label = name.partition("/")[2] + (f" ({count} of {len(SEEDS)} seeds)" if count < len(SEEDS) else "")
                style = ":" if count < ENOUGH else "-" if index < len(COLORS) else "--"
                color = COLORS[index % len(COLORS)]
                axis.plot(mean[:, 0] / 1000, mean[:, 1], color=color, linestyle=style, label=label)
        axis.set(title=task, xlabel="thousands of prompts or pairs", ylabel="score on held-out prompts")
        if task in TASKS:
            axis.set_ylim(0, 1.02)
    save(figure, __file__, axes[: len(tasks)], columns=2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run missing cells, seed by seed, or print and plot the results so far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="NAME", help="some rows")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="some seeds")
    parser.add_argument("--hours", type=float, default=np.inf, help="start no further row after this many hours")
    parser.add_argument("--table", action="store_true", help="print and plot the results so far")
    given = parser.parse_args(arguments)
    if unknown := set(given.rows) - set(ROWS):
        parser.error(f"no row {sorted(unknown)[0]!r}; there are: {', '.join(ROWS)}")
    began = time.monotonic()
    for seed in () if given.table else given.seeds:
        for name in given.rows:
            if not result(name, seed).exists() and time.monotonic() - began < 3600 * given.hours:
                run(ROWS[name], seed)
    draw()
    print(f"{markdown()}\n\nNot run on all seeds: {', '.join(missing()) or 'none'}")


if __name__ == "__main__":
    main()
