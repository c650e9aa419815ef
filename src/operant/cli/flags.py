"""Errors of unknown flags."""

import argparse
import re
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, get_args, get_type_hints

from operant.catalog import Algorithm, names


def flags_of(kind: Any) -> list[str]:
    """Return the flags of a dataclass and of nested dataclasses, without dashes and with underscores."""
    import tyro

    hidden = {tyro.conf.Positional, tyro.conf.Fixed, tyro.conf.Suppress}
    hints, found = get_type_hints(kind, include_extras=True), list[str]()
    for field in fields(kind):
        hint, *marks = (
            get_args(hints[field.name]) if hasattr(hints[field.name], "__metadata__") else (hints[field.name],)
        )
        if is_dataclass(hint):
            found += flags_of(hint)
        elif hidden.isdisjoint(mark for mark in marks if mark in hidden):
            found.append(next((mark.name for mark in marks if getattr(mark, "name", None)), field.name))
    return found


def unknown(words: Sequence[str], known: Collection[str], command: str, entry: Algorithm | None = None) -> str:
    """Return the error of unknown arguments.

    Args:
        words: unparsed arguments.
        known: all flags, with underscores.
        command: its name.
        entry: the algorithm of the command.
    """
    word = next((word for word in words if word.startswith("-")), words[0]).partition("=")[0]
    if not word.startswith("-"):
        return f"unexpected argument {word!r}; see `operant {command} --help`"
    known = {*known, "help"}
    package = entry.package if entry else ""
    if not names.explanation(word, package) and names.suggest(word, known, package) is None:
        return f"unknown flag {word}; `operant {command} --help` lists the flags"
    return f"unknown flag {word}{names.hint(word, known, entry, flags=True)}"


def in_a_line(box: str, command: str) -> str:
    """Return tyro's box of errors as one line, for `operant: error:`.

    Args:
        box: a title, lines between dashes, and a hint on help.
        command: its name.
    """
    inside = [line.strip(" ─│╭╮╰╯") for line in box.splitlines()]
    lines = [line for line in inside if line.strip("-")]
    end = next((n for n, line in enumerate(lines) if line.startswith(("Argument helptext", "For full helptext"))), None)
    said = " ".join(" ".join(lines[1:end]).split()).replace(". (required)", ";").replace(") .", ")").rstrip(".;")
    said = re.sub(r"no type matching .*<class '[\w.]+'>: ", "", said)  # of several types the last, which is not None
    said = re.sub(r"^Error parsing (--\S+:)", r"\1", said)
    said = re.sub(r"^Error parsing \S+: ", "", said)
    said = re.sub(r"^Missing from .*?: ", "missing: ", said)
    return f"{said[:1].lower()}{said[1:]}; see `operant {command} --help`"


class Parser(argparse.ArgumentParser):
    """A light parser with the same errors as other commands."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - it has overloads
        """Return the arguments.

        Raises:
            ValueError: a flag is unknown.
        """
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            known = [action.dest for action in self._actions if action.option_strings]
            raise ValueError(unknown(rest, known, self.prog.removeprefix("operant ")))
        return found

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of printing."""
        raise ValueError(f"{message}; see `{self.prog} --help`")
