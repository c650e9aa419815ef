"""Nearest valid names, for errors about unknown flags, keyword arguments and fields of files."""

import re
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass

from operant.catalog.algorithm import Algorithm
from operant.catalog.foreign_language import LANGUAGE, OF_ALGORITHM
from operant.catalog.foreign_names import COMMON, CONTROL, TABULAR

_WITHOUT = ("no equivalent", "always on", "the model that", "`operant resume")
"""Prefix of an entry without an option."""


_PART = re.compile(r"(^|,? (?:and |or )?)(\w+)((?: \([^)]*\))?)")
"""Conjunction, option and explanation in an entry."""


def _parts(answer: str) -> list[tuple[str, str, str]]:
    """Return the options in an entry, each with the conjunction before and the explanation after it."""
    return [] if answer.startswith(_WITHOUT) else _PART.findall(answer)


def _options(answer: str) -> list[str]:
    """Return the options in an entry, without its explanations."""
    return [option for _, option, _ in _parts(answer)]


_ANSWERS: Mapping[str, Mapping[str, str]] = {
    "control": {**COMMON, **CONTROL},
    "tabular": {**COMMON, **TABULAR},
    "language": {**COMMON, **LANGUAGE},
}
"""Entries of other libraries' names, by the package of an algorithm."""

_AUTOMATIC: Mapping[str, str] = {
    "ent_coef": ", with which sac learns the coefficient",
    "target_entropy": ": minus the number of action dimensions",
}
"""Meaning of none for options that may be `auto` in Stable-Baselines3."""

SHORTEST_PREFIX = 3
"""Minimum letters of an abbreviation."""


@dataclass(frozen=True)
class Suggestion:
    """Likely valid name for an unknown one.

    Attributes:
        name: one of the known names.
        foreign: whether the unknown name is another library's, rather than a misspelling.
    """

    name: str
    foreign: bool


def suggest(word: str, known: Collection[str], package: str = "", algorithm: str = "") -> Suggestion | None:
    """Return the likely meaning of an unknown name: another library's name, an abbreviation, or a misspelling.

    Args:
        word: the unknown name; dashes and underscores are equivalent.
        known: names with underscores.
        package: `control`, `tabular` or `language`, with its foreign names. Default: none.
        algorithm: algorithm of the package, for names that mean something else there. Default: none.
    """
    name = _normal(word)
    ours = _options(_answer(word, package, algorithm))
    if found := next((field for field in ours if field in known), None):
        return Suggestion(found, foreign=True)
    begun = [field for field in known if len(name) >= SHORTEST_PREFIX and field.startswith(name)]
    if len(begun) == 1:
        return Suggestion(begun[0], foreign=False)
    from difflib import get_close_matches  # noqa: PLC0415 - only for the message

    near = get_close_matches(name, known, n=1)
    return Suggestion(near[0], foreign=False) if near else None


def explanation(word: str, package: str, algorithm: str = "") -> str:
    """Return the replacement of another library's option without an equivalent; empty if there is one."""
    answer = _answer(word, package, algorithm)
    return "" if _parts(answer) else answer


def _answer(word: str, package: str, algorithm: str) -> str:
    """Return the entry of an unknown name; empty if there is none."""
    return {**_ANSWERS.get(package, {}), **OF_ALGORITHM.get(algorithm, {})}.get(_normal(word), "")


def _normal(word: str) -> str:
    return word.strip("-").lower().replace("-", "_")


def hint(word: str, known: Collection[str], algorithm: Algorithm | None = None, *, flags: bool = False) -> str:
    """Return the end of an error about an unknown name.

    Args:
        word: the unknown name.
        known: all valid names, with underscores.
        algorithm: their algorithm.
        flags: whether to show names as flags of the command line.

    Returns:
        `: PPO calls it learning_rate`, `: SAC calls it tau (1 - polyak)`, `: GRPO calls it epsilon and epsilon_high`,
        `: always on`, `; did you mean gamma?`, or all known names.
    """

    def shown(name: str) -> str:
        return f"--{name.replace('_', '-')}" if flags else name

    def explained(text: str) -> str:
        return re.sub(r"\w+_\w+", lambda found: shown(found[0]) if found[0] in known else found[0], text)

    package, name = (algorithm.package, algorithm.name) if algorithm else ("", "")
    if answer := explanation(word, package, name):
        return f": {explained(answer)}"
    found = suggest(word, known, package, name)
    if found is None:
        return f"; known are: {', '.join(map(shown, sorted(known)))}"
    if algorithm is None or not found.foreign:
        return f"; did you mean {shown(found.name)}?"
    owner = algorithm.learner if algorithm.learner.isupper() else algorithm.name
    ours = [part for part in _parts(_answer(word, package, name)) if part[1] in known]
    if package != "language":  # others name alternatives
        ours = ours[:1]
    phrase = "".join(f"{also}{shown(option)}{explained(meaning)}" for also, option, meaning in ours)
    return f": {owner} calls it {phrase.removeprefix(ours[0][0])}"


def hint_for_value(option: str, value: object, known: Container[str]) -> str:
    """Return the end of an error about an invalid value, if it is one of Stable-Baselines3; otherwise an empty string.

    Args:
        option: name of the option.
        value: its value.
        known: names of all options.
    """
    text = str(value)
    if re.fullmatch(r"auto(_[\d.]+)?", text) and (meaning := _AUTOMATIC.get(_normal(option))):
        return f"; for Stable-Baselines3's {text} give none{meaning}" + (", from 1 on" if "_" in text else "")
    if found := re.fullmatch(r"lin_([\d.e+-]+)", text):
        schedule = {"learning_rate": "lr_schedule", "clip_range": "clip_range_schedule"}.get(_normal(option), "")
        if schedule in known:
            return f"; give {found[1]}, and --{schedule.replace('_', '-')} linear"
        return f"; give {found[1]}" + (
            ", which stays constant: this algorithm has no schedule for it" if schedule else ""
        )
    return ""
