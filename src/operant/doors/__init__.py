"""Extension of operant by user code: names of objects in files, modules and installed packages.

A name is `file.py:Name`, `package.module:Name`, or that of an entry point of an installed package. A file is imported
once per process, as the module `operant.doors.<folder>.<file>`, so it does not shadow modules of the same name, and
other processes can import it by that name, too. This package has no heavy imports.
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
