"""How the kernels of this chapter are compiled: by `compiled`, and in no other way.

Kernels take named tuples of arrays and allocate nothing. Without numba's reference counts (`_nrt=False`), whose
updates are atomic and stand at every mention of an array, such kernels are up to twenty times as fast, and to allocate
is an error when they are compiled. What they call is merged into them (`forceinline`), for named tuples travel as one
argument for each array. The error model "numpy" divides without looking for zeros first.

Machine code is cached beside the source. That is why the loop over steps is spelled out for each algorithm: numba can
not cache a kernel that is handed functions. It looks at the date of the file that a kernel stands in, not at those of
the files that it calls: remove `__pycache__` after editing functions that kernels elsewhere call.
"""

from typing import Any

from numba import njit

compiled: Any = njit(cache=True, error_model="numpy", _nrt=False, forceinline=True)  # pyright: ignore[reportCallIssue]
"""Decorator of every kernel and of every function that one calls."""
