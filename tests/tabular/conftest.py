"""Numba looks at the date of a kernel's own file alone: machine code older than any source of the chapter goes."""

from pathlib import Path

import operant.tabular.compiling

FOLDER = Path(operant.tabular.compiling.__file__).parent
NEWEST = max(path.stat().st_mtime for path in FOLDER.glob("*.py"))

for cached in (FOLDER / "__pycache__").glob("*.nb?"):
    try:
        if cached.stat().st_mtime < NEWEST:
            cached.unlink()
    except FileNotFoundError:
        pass  # another worker was faster
