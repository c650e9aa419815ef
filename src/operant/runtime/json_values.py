"""Values of JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast


def finite(value: Any) -> Any:
    """Return a value with mappings as dictionaries, sequences as lists, and NaN and Inf, which JSON lacks, as None."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast(Sequence[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
