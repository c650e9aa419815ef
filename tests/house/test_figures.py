"""The tables of the page on deep control agree with the catalog and the raw results."""

import json
import re
import statistics
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from operant import catalog

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "control.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.endswith(".json) |") and line.startswith("| [")
]


def records(block: Any) -> Iterator[dict[str, Any]]:
    """Find all parts of raw results that have the final scores of an algorithm on a task."""
    if isinstance(block, dict) and {"algorithm", "task", "final"} <= block.keys():
        yield block
    elif isinstance(block, dict | list):
        for part in block.values() if isinstance(block, dict) else block:
            yield from records(part)


def test_every_algorithm_is_in_the_table_with_its_idea():
    for algorithm in catalog.CONTROL:
        data = "on-policy" if algorithm.on_policy else "off-policy"
        actions = "all" if len(algorithm.actions) == 3 else ", ".join(algorithm.actions)
        link = f"[{algorithm.name}](algorithms/{algorithm.name}.md)"
        assert f"| {link} | {data} | {actions} | {algorithm.idea} |" in PAGE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:2]))
def test_results_are_those_of_the_files(row):
    name, task, file = re.sub(r"\[(.*)\].*", r"\1", row[0]), row[1], re.findall(r"\((.*)\)", row[7])[0]
    blocks = [
        block
        for block in records(json.loads((ROOT / "docs" / file).read_text(encoding="utf-8")))
        if (block["algorithm"], block["task"]) == (name, task)
    ]
    scores = [score for block in blocks for score in block["final"]["scores"]]
    mean, worst = sum(scores) / len(scores), min(scores)
    assert row[2:6] == [f"{blocks[0]['budget']:,}".replace(",", " "), str(len(scores)), f"{mean:.1f}", f"{worst:.1f}"]
    if row[6]:
        reached = mean >= float(re.split(r"[ :]", row[6])[0])
        assert reached == ("not reached" not in row[6])


def test_statements_about_replay_agree_with_the_results():
    results = json.loads((ROOT / "experiments" / "replay.json").read_text(encoding="utf-8"))["results"]
    late, bias, mixed = (results[name] for name in ("late score", "overestimation", "mean autocorrelation"))
    full, without = "replay and target", "no replay"
    assert (
        f"{late[full]:.0f} with both, {late['no target']:.0f} without a target network, {late[without]:.0f} without "
        f"replay, {late['neither']:.0f} without either"
    ) in PAGE
    assert f"{mixed[full]:.2f} with replay, {mixed[without]:.2f} without" in PAGE
    assert f"by {bias[full]:.0f} and {bias['both, double']:.0f} where" in PAGE
    assert f"by {bias['no target']:,.0f} without".replace(",", " ") in PAGE


def test_the_table_of_hindsight_is_that_of_the_file():
    found = json.loads((ROOT / "experiments" / "hindsight.json").read_text(encoding="utf-8"))["results"]["success"]
    page = (ROOT / "docs" / "exploration.md").read_text(encoding="utf-8")

    def cell(name: str) -> str:
        shares = found.get(name, [])
        said = f"{100 * sum(shares) / max(1, len(shares)):.1f} ({100 * min(shares, default=0):.0f})"
        return said if shares else "not run"

    for task in {name.rpartition(", ")[0] for name in found}:
        arms = [cell(f"{task}, {arm}") for arm in ("future", "none")]
        row = rf"\| {task} \| [\d ]+ \| {len(found[f'{task}, future'])} \| {re.escape(' | '.join(arms))} \|"
        assert re.search(row, page), (task, arms)


def test_the_table_of_rooms_is_that_of_the_file():
    found = json.loads((ROOT / "experiments" / "rooms.json").read_text(encoding="utf-8"))["results"]
    page = (ROOT / "docs" / "exploration.md").read_text(encoding="utf-8")
    for name, scores in found["scores"].items():
        curve = found["curves"][name]
        steps = f"{round(curve['steps'][-1], -4):,}".replace(",", " ")
        cells = [
            ", ".join(f"{value:.{digits}f}" for value in values)
            for values, digits in ((scores, 3), (curve["training"], 2))
        ]
        row = f"| {name} | {steps} | {' | '.join(cells)} |"
        assert row in page, row
    assert f"{found['shortest']:.3f}" in page


def test_the_numbers_of_shaping_are_those_of_the_file():
    found = json.loads((ROOT / "experiments" / "shaping.json").read_text(encoding="utf-8"))["results"]["random models"]
    page = " ".join((ROOT / "docs" / "exploration.md").read_text(encoding="utf-8").split())
    scales, changed = found["scales"], found["changed"]
    assert (
        f"the optimal actions of {changed['bonus'][0]} models change if Φ has a standard deviation of {scales[0]:g}, "
        f"and those of {changed['bonus'][-1]} models if it is {scales[-1]:g}"
    ) in page
    assert set(changed["potential"]) == {0}


def test_the_table_of_transfer_is_that_of_the_file():
    found = json.loads((ROOT / "experiments" / "transfer.json").read_text(encoding="utf-8"))["results"]
    page = (ROOT / "docs" / "exploration.md").read_text(encoding="utf-8")
    for trained in ("nominal", "randomized", "identified"):
        cells = [
            f"{cell['mean']:.1f} [{cell['interval'][0]:.1f}, {cell['interval'][1]:.1f}]"
            for task in found
            for cell in found[task]["scores"][trained].values()
        ]
        assert re.search(rf"^\| {trained}.* \| {re.escape(' | '.join(cells))} \|$", page, re.MULTILINE), (
            trained,
            cells,
        )
    for task, part in found.items():
        assert f"{100 * part['covered']:.1f} % ({task.removesuffix('-v1')})" in page


def test_the_table_of_deep_sea_is_that_of_the_file():
    found = json.loads((ROOT / "experiments" / "deep_sea.json").read_text(encoding="utf-8"))["results"]
    page = (ROOT / "docs" / "algorithms" / "bootstrapped-dqn.md").read_text(encoding="utf-8")
    seconds = 0.0
    for size, cell in found["bootstrapped-dqn"].items():
        solved = [
            f"{number:,.0f}".replace(",", " ") for number in (statistics.median(cell["solved"]), max(cell["solved"]))
        ]
        seconds += cell["seconds"]
        start = f"| {size} | {len(cell['solved'])} of 10 | {solved[0]} ({solved[1]}) | "
        assert f"{start}{cell['seconds']:,.0f} |".replace(",", " ") in page, start
    assert f"{seconds:,.0f} seconds".replace(",", " ") in page
    missed = found["r-max"]["100"]["failures"]
    assert f"size 100, where it fails {missed} times" in page


def test_the_table_of_results_was_found():
    assert len(ROWS) >= 20


def test_the_table_of_scores_is_that_of_the_files():
    experiments = ROOT / "experiments"
    files = [*sorted((experiments / "scores").glob("*.json")), *sorted(experiments.glob("*.json"))]
    blocks = [block for file in files for block in records(json.loads(file.read_text(encoding="utf-8")))]
    page = (ROOT / "docs" / "scores.md").read_text(encoding="utf-8")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "-v" in line[:20]]
    table = {(row[0], row[1]): row for row in lines if len(row) == 10}
    for (task, name), row in table.items():
        found = [
            b["final"]["scores"]
            for b in blocks
            if (b["task"], b["algorithm"], f"{b['budget']:,}") == (task, name, row[2])
        ]
        measured = [[f"{sum(scores) / len(scores):.1f}", f"{min(scores):.1f}"] for scores in found]
        assert row[4:6] in measured, (task, name)
    run = {tuple(reversed(file.stem.split("_"))) for file in (experiments / "scores").glob("*.json")}
    assert run <= table.keys()
    for (task, name), row in table.items():
        file = ROOT / "docs" / re.findall(r"\((.*)\)", row[8])[0]
        cells = list(records(json.loads(file.read_text(encoding="utf-8"))))
        assert any((cell["task"], cell["algorithm"]) == (task, name) for cell in cells), (task, name)
        assert name == "random" or all("config" in cell for cell in cells)


def test_configurations_of_the_scores_have_the_current_names():
    for file in (ROOT / "experiments" / "scores").glob("*.json"):
        for cell in records(json.loads(file.read_text(encoding="utf-8"))):
            known = {field.name for field in fields(catalog.find(cell["algorithm"]).config_class)}
            assert cell.get("config", {}).keys() <= known, file.name


def test_every_cell_of_the_scores_was_run_or_is_named_as_not_run():
    page = (ROOT / "docs" / "scores.md").read_text(encoding="utf-8")
    run = re.findall(r"^\| (\S+-v\d) \| (\S+) \|", page, re.MULTILINE)
    lines = re.findall(r"^- (\S+-v\d): (.*)$", page, re.MULTILINE)
    not_run = [(task, name) for task, names in lines for name in names.split(", ") if names != "none"]
    cells = [
        (task, algorithm.name)
        for task in {task for task, _ in run}
        for algorithm in catalog.CONTROL
        if algorithm.vectors
        and algorithm.model != "known"  # no task is a board game
        and ("continuous" if task in ("Pendulum-v1", "HalfCheetah-v5", "Hopper-v5") else "discrete")
        in algorithm.actions
    ]
    assert sorted([*run, *not_run]) == sorted([*cells, *((task, "random") for task in {task for task, _ in run})])
    assert f"Not run, {len(not_run)} of {len(run) + len(not_run)} cells:" in page


def test_the_table_of_the_control_suite_is_that_of_the_file():
    record = json.loads((ROOT / "experiments" / "control_suite.json").read_text(encoding="utf-8"))
    found, page = record["results"], (ROOT / "docs" / "algorithms" / "mrq.md").read_text(encoding="utf-8")

    def cell(name: str) -> str:
        if name not in found:
            return "not run"
        seeds, minutes = found[name]["seeds"], found[name]["seconds"] / 60
        return f"{found[name]['mean']:.0f} ({min(seeds):.0f} to {max(seeds):.0f}), {minutes:.0f} min"

    for task in {name.split("/")[0] for name in found if name != "missing"}:
        row = f"| {task} | {' | '.join(cell(f'{task}/{arm}') for arm in ('MR.Q', 'SAC', 'PETS', 'MBPO'))} |"
        assert row in page, row
    for check in record["checks"]:
        assert f"{check['reference']:g} on {check['what'].split(':')[0]}" in " ".join(page.split())
