"""Writes docs/hyperparameters.md: every hyperparameter by name, its type, and its default in each algorithm.

python docs/hyperparameters.py
"""

import dataclasses
import importlib
import types
import typing
from collections import defaultdict
from pathlib import Path
from typing import Any

from operant import catalog

HEAD = """# Hyperparameters

This table lists every field of every configuration. A field has the same name in all algorithms. On the command line it
is a flag (`num_envs` is `--num-envs`), in a file a key of `[config]`, and in Python a keyword argument. Defaults are
those without a preset: the values of the preset `paper`, except for `mrq` and `world-models`, whose preset `paper` is
larger, and `alphazero`, `muzero`, `pets`, `mbpo` and `dreamer`, whose defaults, `tiny`, fit two cores. The page of the
algorithm, or its reference, explains the field; so does `operant train ALGORITHM --help`, with the choices. Names of
other libraries: [Stable-Baselines3](control.md#coming-from-stable-baselines3-and-cleanrl),
[TRL](language.md#coming-from-trl).
"""
TITLES = {"tabular": "Tables", "control": "Control", "language": "Language models"}


def shown(hint: Any) -> str:
    """Return a type as readers know it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "choice"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(shown(part) for part in parts)
    if origin is tuple:
        return "several " + shown(parts[0])
    return "None" if hint is types.NoneType else hint.__name__


def page() -> str:
    """Return the text of the page."""
    tables: dict[str, dict[str, dict[str, dict[str, list[str]]]]] = {}
    for entry in catalog.ALGORITHMS:
        kind = getattr(importlib.import_module(entry.module), entry.config)
        config, hints = kind(**dict(entry.values)), typing.get_type_hints(kind)
        table = tables.setdefault(entry.package, {})
        for field in dataclasses.fields(kind):
            value = getattr(config, field.name)
            text = f"{value:g}" if isinstance(value, float) else repr(value) if value == "" else str(value)
            types_ = table.setdefault(field.name, defaultdict(lambda: defaultdict(list)))
            types_[shown(hints[field.name])][text.replace("|", "\\|").replace("\n", "\\n")].append(entry.name)
    lines = [HEAD]
    for package, table in tables.items():
        lines += [f"## {TITLES.get(package, package.capitalize())}\n", "| name | type | default |", "|---|---|---|"]
        for name in sorted(table):
            for kind, defaults in sorted(table[name].items()):
                cells = [f"`{text}` ({', '.join(names)})" for text, names in defaults.items()]
                lines.append(f"| `{name}` | {kind} | {'; '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page(), encoding="utf-8")
