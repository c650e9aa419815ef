"""How people add to operant from outside, without an edit of it: names, and what stands behind them.

A name is `file.py:Name`, `package.module:Name`, or that of an entry point of an installed package. A file is imported
once in a process, as the module `operant.doors.<folder>.<file>`, so that it hides no module that is called like it, and
so that other processes can import it by that name, too. Nothing heavy is imported here.
"""

from operant.doors.calls import Call
from operant.doors.importing import refresh
from operant.doors.naming import (
    DoorError,
    Place,
    absence,
    absolute,
    choices,
    chosen,
    entry_points,
    hold,
    is_file,
    is_installed,
    is_name,
    is_object,
    label,
    load,
    name_of,
    named,
    objects_in,
    place_of,
)

__all__ = [
    "Call",
    "DoorError",
    "Place",
    "absence",
    "absolute",
    "choices",
    "chosen",
    "entry_points",
    "hold",
    "is_file",
    "is_installed",
    "is_name",
    "is_object",
    "label",
    "load",
    "name_of",
    "named",
    "objects_in",
    "place_of",
    "refresh",
]
