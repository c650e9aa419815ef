"""The tables of the pages on experiments with language models agree with the raw results."""

import importlib
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "language_experiments.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
SIZES = ("2", "4", "8", "16", "32", "4 of 32")


def raw(name: str) -> dict[str, Any]:
    """Return the raw results of an experiment."""
    return json.loads((ROOT / "experiments" / f"{name}.json").read_text(encoding="utf-8"))["results"]


def rows(section: str) -> list[str]:
    """Return the rows of the tables of a section, without headers."""
    lines = SECTIONS[section].splitlines()
    headers = {i - 1 for i, line in enumerate(lines) if line.startswith("|--")}
    return [line for i, line in enumerate(lines) if line.startswith("| ") and i not in headers]


def row(*cells: str) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def share(values: Any, digits: int = 0) -> str:
    return f"{100 * mean(values):.{digits}f} %"


def mean(values: Any) -> float:
    return statistics.fmean(values) if isinstance(values, Sequence) else values


def bounds(interval: Sequence[float], form: str, scale: float = 1.0) -> str:
    return " to ".join(f"{scale * bound:{form}}" for bound in interval)


def gain(block: dict[str, Any], form: str, scale: float = 1.0) -> str:
    return f"{scale * block['mean']:{form}} ({bounds(block['interval'], form, scale)})"


def ladder() -> list[str]:
    found, table = raw("dapo_ladder"), []
    shown = {
        "+ soft overlong": "+ soft overlong punishment",
        "all but soft overlong": "the last without soft punishment",
    }
    for name, rung in found["rungs"].items():
        to_grpo = found["added"].get(f"{name}, against naive GRPO")
        added = found["added"].get(name)
        text = f"{gain(to_grpo, '+.1f', 100)} to naive GRPO" if to_grpo else gain(added, "+.1f", 100) if added else ""
        reached = [[x for x in rung[f"{unit} to the target"] if x is not None] for unit in ("steps", "rollouts")]
        cut = rung["at the end"]["completions/clipped_ratio"]
        table.append(
            row(
                shown.get(name, name),
                str(found["paper"].get(name, "")),
                f"{100 * rung['score']:.1f}",
                bounds(rung["interval"], ".1f", 100),
                text,
                f"{len(reached[0])}, {', '.join(f'{statistics.median(own):.0f}' for own in reached)}",
                share(cut),
            )
        )
    return table


def lengths() -> list[str]:
    curves = raw("response_length")["curves"]

    def at(way: str, index: int) -> list[str]:
        wrong, right, accuracy = (
            [seed[index] for seed in curves[f"{way}: {kind}"]] for kind in ("wrong", "right", "accuracy")
        )
        return [f"{mean(wrong):.1f}", f"{mean(right):.1f}", share(accuracy)]

    ways = {"GRPO": "GRPO", "GRPO without deviation": "GRPO without the standard deviation", "Dr. GRPO": "Dr. GRPO"}
    return [row("at the start", *at("GRPO", 0)), *(row(name, *at(way, -1)) for way, name in ways.items())]


def clips() -> list[str]:
    found = raw("clip_higher")
    gains = found["more entropy than 0.2 / 0.2"]
    clipped = {
        arm: [mean(seed) for seed in found["curves"][f"{arm}: clip_ratio/high_mean"]] for arm in found["second half"]
    }
    return [
        row(
            arm,
            f"{mean(late['entropy']):.3f}",
            gain(gains[arm], "+.3f") if arm in gains else "",
            share(clipped[arm], 2),
        )
        for arm, late in found["second half"].items()
    ]


def sizes() -> list[str]:
    found = raw("group_size")
    exact, same, equal = found["exact"], found["measured"]["the same prompts"], found["measured"]["as many answers"]
    first = [
        row(
            size,
            f"{exact['0.5'][size]['error of the mean']:.3g}",
            *(share(exact[rate][size]["advantage of the right"]) for rate in ("0.5", "0.3", "0.1")),
            share(exact["0.1"][size]["without signal"], 0 if size != "64" else 1),
        )
        for size in ("2", "4", "16", "64")
    ]
    names = {
        "length of the mean gradient, 8 prompts": (same, "signal"),
        "standard deviation, 8 prompts": (same, "noise"),
        "signal² / noise², 8 prompts": (same, "ratio"),
        "signal² / noise², 64 answers": (equal, "ratio"),
    }
    return first + [
        row(name, *(f"{block[size][kind]:.2f}" if size in block else "" for size in SIZES))
        for name, (block, kind) in names.items()
    ]


def scales() -> list[str]:
    found, table = raw("group_scale"), []
    names = {
        "plain": "plain gradient",
        "with KL": "with a KL term, weight 0.1",
        "clipped": "clipped to a norm of 1",
        "Adam": "Adam",
    }
    for way, name in names.items():
        columns = [
            f"{found['mean'][way][scale][size][kind]:#.3g}".rstrip(".")
            for size, kind in (("4", "signal"), ("32", "signal"), ("32", "noise"))
            for scale in ("1/G", "1/sqrt(G)")
        ]
        table.append(row(name, *columns, f"{found['cosine of the two scales'][way]['32']:.3f}".replace("1.000", "1")))
    return table


def pipeline() -> list[str]:
    found = raw("rlhf_pipeline")
    up, kl = found["gain in deviations of the SFT policy"], found["KL at the end"]["seeds"]
    each = f"single seeds {min(up['seeds']):.2f} to {max(up['seeds']):.2f}"
    far = f"{mean(kl):.1f} ({min(kl):.1f} to {max(kl):.1f})"
    return [row("β = 0.1, 16 batches", f"{gain(up, '.2f')}; {each}", far)]


def memory() -> list[str]:
    found = raw("language_memory")
    models = {
        "PPO": ("PPO", "policy, critic; reference, reward model"),
        "GRPO with KL": ("GRPO with a KL term", "policy; reference"),
        "GRPO": ("GRPO", "policy"),
        "DPO, live reference": ("DPO, live reference", "policy; reference"),
        "DPO, precomputed": ("DPO, precomputed", "policy"),
    }
    columns = ("arithmetic, MiB", "estimates, MiB", "MiB")
    return [
        row(*names, *(f"{statistics.median(found[c][arm]) if c != columns[0] else found[c][arm]:.0f}" for c in columns))
        for arm, names in models.items()
    ]


def critics() -> list[str]:
    found = raw("critic_needed")
    table = []
    for arm, runs in found["curves"].items():
        judge, paid = arm.rsplit(", ", 1)
        explained = [value for run in runs for value in run["explained variance"][-10:]]
        scores = (gain(found[name][arm], ".1f") for name in ("over training", "at the end"))
        table.append(row(paid.removeprefix("paid "), judge, *scores, f"{mean(explained):.2f}" if explained else ""))
    for pair, lead in found["leads"]["over training"].items():
        table.append(row(pair, gain(lead, "+.2f"), gain(found["leads"]["at the end"][pair], "+.2f")))
    return table


def sums() -> list[str]:
    found = raw("sums")
    return [
        row("after 350 demonstrations", *(share(seed["imitation"], 1) for seed in found.values())),
        row("and 51 200 prompts with rewards", *(share(seed["rewards"], 1) for seed in found.values())),
    ]


TABLES = {
    "The ladder of DAPO": ladder,
    "Length of wrong answers": lengths,
    "Clip-higher": clips,
    "How many answers to a prompt": sizes,
    "1/G or 1/√G": scales,
    "The whole pipeline": pipeline,
    "Future rewards and the critic": critics,
    "Memory": memory,
    "Rewards after demonstrations": sums,
}


@pytest.mark.parametrize("section", TABLES)
def test_tables_are_those_of_the_results(section):
    assert rows(section) == TABLES[section]()


def test_no_table_is_left_out():
    assert {section for section in SECTIONS if rows(section)} == TABLES.keys()


@pytest.fixture
def scores(monkeypatch):
    """Return the experiment that runs the commands of the documentation."""
    monkeypatch.syspath_prepend(ROOT / "experiments")
    return importlib.import_module("language_scores")


def test_scores_of_commands_are_those_of_the_results(scores):
    assert scores.markdown() in (ROOT / "docs" / "language_defaults.md").read_text(encoding="utf-8")


def test_every_command_was_run_on_all_seeds(scores):
    assert scores.missing() == []


def test_no_command_ends_below_its_start(scores):
    for name, cells in scores.results().items():
        if cells[0]["start"] is not None:
            assert mean([cell["end"] for cell in cells]) >= mean([cell["start"] for cell in cells]), name
