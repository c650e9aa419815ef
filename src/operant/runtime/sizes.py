"""Numbers of bytes in words: `readable`."""


def readable(size: float) -> str:
    """Return a number of bytes in three digits, with a unit of 1024 of the one before."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
