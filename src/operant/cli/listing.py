"""`operant list`; heavy imports only to describe a single algorithm or bonus."""

import inspect
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from operant import catalog, doors
from operant.catalog.bonuses import BONUSES
from operant.cli.copying import BONUS_TASK
from operant.cli.flags import Parser
from operant.cli.output import print_json, table, two_columns, width, wrapped


def list_algorithms(arguments: list[str]) -> int:
    """List the algorithms and exploration bonuses, or describe one."""
    parser = Parser("operant list", description="List the algorithms and exploration bonuses, or describe one.")
    parser.add_argument("algorithm", nargs="?", metavar="NAME", help="the algorithm or bonus to describe")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(arguments)
    if options.algorithm in BONUSES:
        return _describe_bonus(options.algorithm, as_json=options.json)
    if options.algorithm is not None:
        return _describe(catalog.find(options.algorithm), as_json=options.json)
    if options.json:
        bonuses = [{"name": name, **asdict(bonus)} for name, bonus in BONUSES.items()]
        print_json({"algorithms": [*map(_facts, catalog.ALGORITHMS), *_outside()], "bonuses": bonuses})
        return 0
    print(_overview())
    told = [(name, bonus.idea) for name, bonus in BONUSES.items()]
    print(f"\n{wrapped('exploration bonuses (--bonus), for deep control:')}\n{two_columns(told, indent='  ')}\n")
    if outside := [
        (point["name"], f"{point['package']}, {point['module']}:{point['learner']}") for point in _outside()
    ]:
        print(f"from installed packages:\n{two_columns(outside, indent='  ')}\n")
    print(wrapped("`operant list NAME` describes one, `operant train ALGORITHM --help` lists its options."))
    return 0


COLUMNS = ("name", "title", "policy", "observations", "family", "actions", "paper")
"""Columns of the overview, by importance: as many as fit the terminal, and at least two."""


def _overview() -> str:
    rows = [
        (a.name, a.title, _policy(a), a.observations, a.family, ", ".join(a.actions), a.paper)
        for a in catalog.ALGORITHMS
    ]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    fitting = [n for n in range(2, len(COLUMNS) + 1) if sum(widths[:n]) + 2 * (n - 1) <= width()]
    if not fitting:
        return two_columns([(row[0], row[1]) for row in (COLUMNS, *rows)])
    return table([row[: fitting[-1]] for row in (COLUMNS, *rows)], "<" * fitting[-1])


def _outside() -> list[dict[str, Any]]:
    """Return the catalog entries of installed packages, without importing them, which could take seconds."""
    found: list[dict[str, Any]] = []
    for name, point in doors.entry_points(catalog.ENTRY_POINTS).items():
        if name not in {algorithm.name for algorithm in catalog.ALGORITHMS}:
            package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
            found.append({"name": name, "package": package, "module": point.module, "learner": point.attr})
    return found


_NOTE = " (experimental: its interface may change in any release)"


def _describe(algorithm: catalog.Algorithm, *, as_json: bool) -> int:
    presets = _presets(algorithm)
    if as_json:
        print_json({**_facts(algorithm), "presets": presets})
        return 0
    speaks = algorithm.package == "language"
    acts = [
        ("model of the world", algorithm.model),
        ("observations", algorithm.observations),
        ("actions", ", ".join(algorithm.actions)),
    ]
    facts = [
        ("family", algorithm.family),
        ("policy", _policy(algorithm)),
        *([("tasks", f"{_tasks()}, or a data set")] if speaks else acts),
        ("budget", f"{algorithm.budget} {algorithm.unit} per seed{_budgets(algorithm)} by default (--budget)"),
        ("seeds", f"{algorithm.seeds} by default (--seeds)"),
        ("paper", algorithm.paper),
        ("code", f"{algorithm.module}{_NOTE if algorithm.experimental else ''}"),
    ]
    print(wrapped(f"{algorithm.name}: {algorithm.title}"))
    print(f"\n{wrapped(algorithm.idea)}\n\n{two_columns(facts)}\n\npresets:")
    for name, values in presets.items():
        print(wrapped(f"{name}: {_values(values) or 'the defaults'}", indent="    ", first="  "))
    if speaks and (small := _small(algorithm)):
        print(f"\n{wrapped(f'With all presets except paper, small built-in models use {_values(small)}.')}")
    print(f"\n{wrapped(f'`operant train {shlex.quote(algorithm.name)} --help` explains all options.')}")
    return 0


def _describe_bonus(name: str, *, as_json: bool) -> int:
    from operant.control.bonuses import EXPECTED, parameters_of

    bonus = BONUSES[name]
    kind: type[Any] = doors.load(bonus.place, expected=EXPECTED)
    values = parameters_of(kind)
    if as_json:
        print_json({"name": name, **asdict(bonus), "parameters": values})
        return 0
    texts = _PARAMETERS | _documented(kind)
    facts = [
        ("its return", "ends with the episode" if bonus.is_episodic else "continues in the next episode (PPO, A2C)"),
        ("paper", bonus.paper),
        ("code", bonus.module),
    ]
    print(wrapped(f"{name}: exploration bonus for deep control"))
    print(f"\n{wrapped(f'The bonus is {bonus.idea}.')}\n\n{two_columns(facts)}\n\nparameters:")
    print(two_columns([(f"{key} = {value}", texts.get(key, "")) for key, value in values.items()], indent="  "))
    uses = f"`operant train ppo {BONUS_TASK} --bonus {name}` uses it, `--bonus '{name}(weight={bonus.weight / 2:g})'`"
    print(f"\n{wrapped(f'{uses} with another weight, and `operant copy {name} my_{name}.py` copies its file.')}")
    return 0


_PARAMETERS = {
    "weight": "weight relative to the environment's reward",
    "episodic": "whether its return ends with the episode, with PPO and A2C",
}
"""Parameters of `--bonus` that no constructor has."""


def _documented(kind: type[Any]) -> dict[str, str]:
    """Return the descriptions of the parameters of a class, from its docstring and those of its base classes."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        args = re.search(r"^Args:\n((?: .*\n?)+)", inspect.cleandoc(each.__doc__ or ""), re.MULTILINE)
        for name, text in re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", args[1] if args else "", re.MULTILINE):
            if not text.startswith("as in "):
                found[name] = " ".join(text.split()).rstrip(".").replace("`", "")
    return found


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def _tasks() -> str:
    from operant.language import tasks

    return ", ".join(tasks.names())


def _small(algorithm: catalog.Algorithm) -> Mapping[str, Any]:
    from operant.language.presets import ANSWERS, SMALL, STEP_SIZES

    small = SMALL.get(algorithm.root, {})
    if algorithm.root not in STEP_SIZES:
        return small
    return {"learning_rate": f"{STEP_SIZES[algorithm.root]:g} for {ANSWERS} answers per step", **small}


def _facts(algorithm: catalog.Algorithm) -> dict[str, Any]:
    return {**algorithm.facts(), "observations": algorithm.observations}


def _presets(algorithm: catalog.Algorithm) -> dict[str, dict[str, Any]]:
    """Return the presets with the values that differ from the defaults."""
    known = algorithm.preset_values
    return {
        name: dict(known.get(name, {})) for name in [*algorithm.presets, *sorted(known.keys() - {*algorithm.presets})]
    }


def _budgets(algorithm: catalog.Algorithm) -> str:
    """Return the default budgets of particular tasks, in parentheses."""
    single = ", ".join(f"{budget} on {task}" for task, budget in algorithm.budgets)
    return f" ({single})" if single else ""


def _policy(algorithm: catalog.Algorithm) -> str:
    return "on-policy" if algorithm.on_policy else "off-policy"
