"""Location of the documentation, and its pages about algorithms."""

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import NamedTuple

from operant import catalog

LABEL = "documentation"
"""Label of the URL in `[project.urls]` of pyproject.toml."""
PREFIX = "/docs/"
"""URL path under which the app serves a built site."""
_NAMES = {entry.name for entry in catalog.ALGORITHMS}


class Documentation(NamedTuple):
    """Location of the documentation.

    Attributes:
            address: URL of the pages, with a trailing slash; empty if unknown.
            folder: folder of a built site that the app serves, or None.
    """

    address: str = ""
    folder: Path | None = None


def find_documentation(given: str = "") -> Documentation:
    """Return the location of the documentation.

    Args:
        given: URL, or folder of a built site. Default: the URL in the metadata of the package.

    Raises:
        ValueError: `given` is neither a URL nor a folder with an `index.html`.
    """
    address = given or _named()
    if not address or address.startswith(("https://", "http://")):
        return Documentation(f"{address.rstrip('/')}/" if address else "")
    if given and (Path(given) / "index.html").is_file():
        return Documentation(PREFIX, Path(given))
    raise ValueError(
        "the documentation must be a URL (https:// or http://), or a folder with an index.html, "
        f"such as site/ of `make docs`; got {address}"
    )


def page_of(algorithm: str) -> str:
    """Return the page about an algorithm of the catalog, such as `algorithms/ppo`; empty for others."""
    return f"algorithms/{algorithm}" if algorithm in _NAMES else ""


def _named() -> str:
    try:
        entries = metadata("operant").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    named = {label.strip().lower(): address.strip() for label, _, address in (one.partition(",") for one in entries)}
    return named.get(LABEL, "")
