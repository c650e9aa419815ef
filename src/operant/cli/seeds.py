"""Error messages for seeds that are given as a range or a list: `require_number_of_seeds`."""

import re
from collections.abc import Sequence
from itertools import takewhile

_RANGE = re.compile(r"(\d+) *(?:-|–|\.\.+|to) *(\d+)")
_LIST = re.compile(r"[\[(]? *\d+(?: *[, ] *\d+)+ *[\])]?")


def require_number_of_seeds(flags: Sequence[str]) -> None:
    """Check that `--seeds` and `--seed` are not followed by a range or a list of seeds.

    Raises:
        ValueError: they are; the message has the flags to use instead.
    """
    for place, flag in enumerate(flags):
        name, equals, first = flag.partition("=")
        if name not in ("--seeds", "--seed"):
            continue
        words = [first] if equals else []
        words += takewhile(lambda word: not word.startswith("-"), flags[place + 1 :])
        if fix := _fix(" ".join(words)):
            what = "the number of seeds" if name == "--seeds" else "the first seed"
            raise ValueError(f"{name} is {what}, got {' '.join(words)}: {fix}")


def _fix(text: str) -> str:
    """Return the flags for the seeds of a range or a list; empty if the text is neither."""
    if match := _RANGE.fullmatch(text):
        low, high = sorted(map(int, match.groups()))
        return _flags(low, high)
    if not _LIST.fullmatch(text):
        return ""
    seeds = list(dict.fromkeys(int(digits) for digits in re.findall(r"\d+", text)))
    if seeds == list(range(seeds[0], seeds[-1] + 1)):
        return _flags(seeds[0], seeds[-1])
    return f"for these seeds write seeds = {seeds} below [settings] in a file, and add --config FILE"


def _flags(low: int, high: int) -> str:
    which = f"the seeds {low} to {high}" if low < high else f"the seed {low}"
    return f"for {which} write --seed {low} --seeds {high - low + 1}"
