"""Pages of the documentation: where they are, and which one is about an algorithm."""

from importlib.metadata import PackageNotFoundError, metadata

from operant import catalog

LABEL = "documentation"
"""Label of the address in `[project.urls]` of pyproject.toml."""
_NAMES = {entry.name for entry in catalog.ALGORITHMS}


def address_of(given: str = "") -> str:
    """Return the address of the documentation, which ends in a slash; empty if none is known.

    Args:
        given: the address; empty: the one that the installed package names.

    Raises:
        ValueError: the address is not of a web site.
    """
    address = given or _named()
    if address and not address.startswith(("https://", "http://")):
        raise ValueError(f"the address of the documentation must begin with https:// or http://, got {address}")
    return f"{address.rstrip('/')}/" if address else ""


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
