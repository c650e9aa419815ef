"""Readable numbers of bytes: `readable`."""


def readable(size: float) -> str:
    """Return a number of bytes with three digits and a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
