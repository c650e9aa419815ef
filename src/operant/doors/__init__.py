"""Extension of operant by user code: names of objects in files, modules and installed packages.

A name is `file.py:Name`, `package.module:Name`, or that of an entry point of an installed package. A file is imported
once per process, as the module `operant.doors.<folder>.<file>`, so it does not shadow modules of the same name, and
other processes can import it by that name, too. This package has no heavy imports.
"""

from operant.doors.calls import Call, chosen, place_of_error, require_arguments, user_location
from operant.doors.importing import is_built_in, is_installed, script_digest
from operant.doors.naming import (
    Place,
    absence,
    absolute,
    choices,
    entry_points,
    is_file,
    is_name,
    label,
    load,
    name_of,
    named,
    place_of,
    refresh,
)
from operant.doors.objects import DoorError, bind, bound, described, hold, is_object, names_in, own, unbound

__all__ = [
    "Call",
    "DoorError",
    "Place",
    "absence",
    "absolute",
    "bind",
    "bound",
    "choices",
    "chosen",
    "described",
    "entry_points",
    "hold",
    "is_built_in",
    "is_file",
    "is_installed",
    "is_name",
    "is_object",
    "label",
    "load",
    "name_of",
    "named",
    "names_in",
    "own",
    "place_of",
    "place_of_error",
    "refresh",
    "require_arguments",
    "script_digest",
    "unbound",
    "user_location",
]
