"""Compilation of the kernels of this package: `compiled`.

Kernels take named tuples of arrays and allocate nothing. Without numba's reference counts (`_nrt=False`), which are
updated atomically at every use of an array, such kernels are up to twenty times as fast, and allocation is a
compile-time error. Called functions are inlined (`forceinline`), since named tuples are passed as one argument per
array. The error model "numpy" divides without checking for zero.

Machine code is cached next to the source. Hence each algorithm has its own loop over steps: numba cannot cache a kernel
with function arguments. After an edit of any source of this package or of `operant.mdp`, all kernels are compiled again
(`operant.mdp.caching`).
"""

from pathlib import Path

import operant.mdp
from operant.mdp.caching import keyed_by_sources, njit

_compile = njit(cache=True, error_model="numpy", _nrt=False, forceinline=True)
compiled = keyed_by_sources(_compile, Path(__file__).parent, Path(operant.mdp.__file__).parent)
"""Decorator of every kernel and of every function that one calls."""
