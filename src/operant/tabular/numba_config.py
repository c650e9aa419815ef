"""How the kernels of this package are compiled: by `compiled`, and in no other way.

Kernels take named tuples of arrays and allocate nothing. Without numba's reference counts (`_nrt=False`), whose
updates are atomic and stand at every mention of an array, such kernels are up to twenty times as fast, and to allocate
is an error when they are compiled. What they call is merged into them (`forceinline`), for named tuples travel as one
argument for each array. The error model "numpy" divides without looking for zeros first.

Machine code is cached beside the source. That is why the loop over steps is spelled out for each algorithm: numba can
not cache a kernel that is handed functions. After an edit of any source of this package or of `operant.mdp`, all
kernels are compiled again (`operant.mdp.caching`).
"""

from pathlib import Path
from typing import Any

from numba import njit

import operant.mdp
from operant.mdp.caching import keyed_by_sources

_compile: Any = njit(cache=True, error_model="numpy", _nrt=False, forceinline=True)  # pyright: ignore[reportCallIssue]
compiled: Any = keyed_by_sources(_compile, Path(__file__).parent, Path(operant.mdp.__file__).parent)
"""Decorator of every kernel and of every function that one calls."""
