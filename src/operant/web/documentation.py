"""Pages of the documentation: where they are, and which one is about an algorithm."""

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import NamedTuple

from operant import catalog

LABEL = "documentation"
"""Label of the address in `[project.urls]` of pyproject.toml."""
PREFIX = "/docs/"
"""Path under which the app serves a built site."""
_NAMES = {entry.name for entry in catalog.ALGORITHMS}


class Documentation(NamedTuple):
    """Where the documentation is.

    Attributes:
        address: of its pages, which ends in a slash; empty if none is known.
        folder: of a built site, which the app serves itself; None for none.
    """

    address: str = ""
    folder: Path | None = None


def find_documentation(given: str = "") -> Documentation:
    """Return where the documentation is.

    Args:
        given: an address, or the folder of a built site; empty: the address that the installed package names.

    Raises:
        ValueError: it is neither an address of a web site nor a folder with an `index.html`.
    """
    address = given or _named()
    if not address or address.startswith(("https://", "http://")):
        return Documentation(f"{address.rstrip('/')}/" if address else "")
    if given and (Path(given) / "index.html").is_file():
        return Documentation(PREFIX, Path(given))
    raise ValueError(
        "the documentation must begin with https:// or http://, or be a folder with an index.html, "
        f"such as site/ of `make docs`; got {address}"
    )


def page_of(algorithm: str) -> str:
    """Return the page about an algorithm of the catalog, such as `algorithms/ppo`; empty for any other."""
    return f"algorithms/{algorithm}" if algorithm in _NAMES else ""


def _named() -> str:
    try:
        entries = metadata("operant").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    named = {label.strip().lower(): address.strip() for label, _, address in (one.partition(",") for one in entries)}
    return named.get(LABEL, "")
