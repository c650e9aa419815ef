"""Paths in arguments, and error messages for unknown flags; without heavy imports."""

import argparse
import re
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from operant.catalog import Algorithm, names

_SWITCHES = ("true", "false", "yes", "no", "on", "off")
"""Values that other programs take for their switches."""


def read_path(word: str) -> Path:
    """Parse a path, which may begin with `~`: shells leave it in quotes, and in bash after `--out=`.

    Raises:
        ValueError: the path is empty, often a variable of a shell that is not set, or the user after `~` is unknown.
    """
    if not word:
        raise ValueError("expected a path, got an empty one; '.' is the working folder")
    try:
        return Path(word).expanduser()
    except RuntimeError as error:
        raise ValueError(f"the home folder in {word} is unknown; a file with this name is ./{word}") from error


def flags_of(kind: Any) -> list[str]:
    """Return the flags of a dataclass and of nested dataclasses, without dashes and with underscores."""
    import tyro

    hidden = {tyro.conf.Positional, tyro.conf.Fixed, tyro.conf.Suppress}
    hints, flags = get_type_hints(kind, include_extras=True), list[str]()
    for field in [field for field in fields(kind) if field.init]:
        hint, *markers = (
            get_args(hints[field.name]) if hasattr(hints[field.name], "__metadata__") else (hints[field.name],)
        )
        if is_dataclass(hint):
            flags += flags_of(hint)
        elif hidden.isdisjoint(mark for mark in markers if mark in hidden):
            flags.append(next((mark.name for mark in markers if getattr(mark, "name", None)), field.name))
    return flags


def unknown(arguments: Sequence[str], known: Collection[str], command: str, entry: Algorithm | None = None) -> str:
    """Return the error message for unknown arguments.

    Args:
        arguments: arguments that were not parsed.
        known: names of all flags, with underscores.
        command: name of the command.
        entry: algorithm of the command.
    """
    argument = next((argument.partition("=")[0] for argument in arguments if argument.startswith("-")), arguments[0])
    if not argument.startswith("-"):
        switch = ": a switch has no value, --NAME is on and --no-NAME off" if argument.lower() in _SWITCHES else ""
        return f"unexpected argument {argument!r}{switch}; see `operant {command} --help`"
    known = {*known, "help"}
    of = (entry.package, entry.name) if entry else ("", "")
    if not names.explanation(argument, *of) and names.suggest(argument, known, *of) is None:
        return f"unknown flag {argument}; `operant {command} --help` lists the flags"
    return f"unknown flag {argument}{names.hint(argument, known, entry, flags=True)}"


def in_a_line(box: str, command: str, known: Collection[str] = ()) -> str:
    """Return tyro's multi-line error as one line, for `operant: error:`.

    Args:
        box: text printed by tyro: a title, lines between dashes, and a hint about help.
        command: name of the command.
        known: names of all options.
    """
    inside = [line.strip(" ─│╭╮╰╯") for line in box.splitlines()]
    lines = [line for line in inside if line.strip("-")]
    end = next((n for n, line in enumerate(lines) if line.startswith(("Argument helptext", "For full helptext"))), None)
    message = " ".join(" ".join(lines[1:end]).split()).replace(". (required)", ";").replace(") .", ")")
    message = re.sub(r"(?<=\S)[.;]+$", "", message)  # a period after a space is a path
    # Of several types the last, which is not None.
    message = re.sub(r"no type matching .*<class '[\w.]+'>: ", "", message)
    message = re.sub(r"\[.*?\] does not match choices \('None',\) - [^:]*: ", "", message)
    message = re.sub(r", 'None'(?=[,)])|(?<=\()'None', ", "", message)  # the default, which is not to be named
    message = re.sub(
        r" - typing\.Literal\[.*?\]: \[.*?\] does not match choices (\(.*?),?\)", r", or one of \1)", message
    )
    message = re.sub(r"\[/?bold\]", "", message)
    message = re.sub(
        r"Could not find valid parse for arguments: (\[.*\])$",
        r"expected values separated by spaces, without commas and brackets, got \1",
        message,
    )
    message = re.sub(r"^Error parsing (--\S+:)", r"\1", message)
    message = re.sub(r"^Error parsing \S+: ", "", message)
    if wrong := re.match(r"(--\S+): could not convert string to float: '(.*)'$", message):
        message += names.hint_for_value(wrong[1], wrong[2], known)
    message = re.sub(r"^Missing from .*?: ", "missing: ", message)
    return f"{message[:1].lower()}{message[1:]}; see `operant {command} --help`"


class Parser(argparse.ArgumentParser):
    """Parser without heavy imports, with the same errors as other commands, and like them without abbreviations."""

    def __init__(self, prog: str, description: str):
        super().__init__(prog, description=description, allow_abbrev=False)
        self.register("type", Path, _argument_path)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - it has overloads
        """Parse the arguments.

        Raises:
            ValueError: a flag is unknown.
        """
        parsed, unparsed = self.parse_known_args(args, namespace)
        if unparsed:
            known = [action.dest for action in self._actions if action.option_strings]
            raise ValueError(unknown(unparsed, known, self.prog.removeprefix("operant ")))
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of printing the message."""
        raise ValueError(f"{message}; see `{self.prog} --help`")


def _argument_path(word: str) -> Path:
    """Parse a path as `read_path`, with the exception whose message argparse shows."""
    try:
        return read_path(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
