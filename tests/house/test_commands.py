"""Commands in the documentation and in docstrings of scripts are valid: flags exist, and values can be parsed."""

import ast
import importlib
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from operant import cli
from operant.cli import arguments, flags
from operant.runtime.run import RunError

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "bash", "sh", "console", "text")
COMMAND = re.compile(r"^ *(?:\$ )?operant ([a-z]+\b.*)$", re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = [path for folder in ("experiments", "benchmarks") for path in sorted((ROOT / folder).glob("*.py"))]


class ParsedError(Exception):
    """Raised when the arguments of a command were parsed, instead of running it."""


@cache
def blocks(path: Path) -> list[tuple[str, str]]:
    """Return languages and texts of the code blocks of a page, or the indented lines of the docstring of a script."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [(match[2], match[3]) for match in BLOCK.finditer(text)]
    lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    return [("", "\n".join(line for line in lines if line.startswith("    ")))]


def commands(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of each command, without comments and the brackets of optional parts, and 1 for variables."""
    for language, text in blocks(path):
        for match in COMMAND.finditer(re.sub(r" *\\\n *", " ", text)) if language in SHELL else ():
            words = shlex.split(re.sub(r"\$\w+", "1", re.sub(r"[\[\]]", "", match[1])), comments=True)
            if words[0] in cli.COMMANDS:
                yield tuple(words[: words.index("&")] if "&" in words else words)


def make_files(page: Path) -> None:
    """Create the files of the working folder that the commands of a page name and the parser reads."""
    for shown in (ROOT / "docs" / "extending.md", page):
        for language, text in blocks(shown):
            if language == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
                Path(name[1]).write_text(text, encoding="utf-8")
    Path("mine.txt").write_text("S.\n.G\n", encoding="utf-8")
    for words in commands(page):
        named = [Path(word) for flag, word in pairwise(words) if flag == "--config"]
        named += [
            Path(word) / "study.toml" for name, word in pairwise(words[:2]) if (name, word[:5]) == ("tune", "runs/")
        ]
        for file in named:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("[config]\n", encoding="utf-8")


def parse(words: tuple[str, ...]) -> None:
    """Parse the arguments of a command as `operant` does, without running it.

    Raises:
        ValueError: a flag does not exist, or a value is invalid.
    """

    def ending(function: Callable[..., Any]) -> Callable[..., Any]:
        def parse_and_end(*args: Any, **options: Any) -> None:
            raise ParsedError(function(*args, **options))

        return parse_and_end

    name, _, function = cli.COMMANDS[words[0]].function.partition(".")
    module = importlib.import_module(f"operant.cli.{name}")
    with pytest.MonkeyPatch.context() as patch:
        for parser in (arguments.parse, arguments.parse_training):
            if hasattr(module, parser.__name__):
                patch.setattr(module, parser.__name__, ending(parser))
        patch.setattr(flags.Parser, "parse_args", ending(flags.Parser.parse_args))
        with pytest.raises(ParsedError):
            getattr(module, function)(list(words[1:]))


@cache
def check(words: tuple[str, ...]) -> None:
    if words[0] == "copy":  # later commands need its file
        Path(words[2]).unlink(missing_ok=True)
        assert cli.main(words) == 0
        return
    try:
        parse(words)
    except RunError:  # `--init RUN` determines defaults, and there is no such run
        at = words.index("--init")
        parse(words[:at] + words[at + 2 :])


@pytest.mark.parametrize(
    "path",
    [path for path in [*PAGES, *SCRIPTS] if any(commands(path))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_commands_are_valid(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_files(path)
    for words in commands(path):
        check(words)


@pytest.mark.parametrize(
    "command", ["train ppo CartPole-v1 --seeds 0-9", "train sac Pendulum-v1 --clip-range 1", "evaluate", "list --jsn"]
)
def test_invalid_commands_are_found(command):
    with pytest.raises(ValueError, match=r"see `operant|unknown flag|missing|number of seeds"):
        parse(tuple(command.split()))


def test_commands_are_found_in_pages_and_docstrings(tmp_path):
    page, script = tmp_path / "page.md", tmp_path / "script.py"
    page.write_text("```python\nx\n```\noperant list\n```\n$ operant solve \\\n    --map x.txt  # a map\n```\n")
    script.write_text('"""Claim.\n\n    operant train ppo CartPole-v1 [--seeds 5]\n\noperant list is not one.\n"""\n')
    assert list(commands(page)) == [("solve", "--map", "x.txt")]
    assert list(commands(script)) == [("train", "ppo", "CartPole-v1", "--seeds", "5")]
