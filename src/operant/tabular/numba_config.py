"""Compilation of the kernels of this package: `compiled`.

Kernels take named tuples of arrays and allocate no memory. Without numba's reference counts (`_nrt=False`), which are
updated atomically at every use of an array, such kernels are up to twenty times as fast, and allocation is a
compile-time error. Called functions are inlined (`forceinline`), because numba passes a named tuple as one argument per
array. The error model "numpy" omits checks for division by zero.

Compiled code is cached next to the source. Numba cannot cache a kernel with function arguments, so each algorithm has
its own loop over steps. After an edit of any source of this package or of `operant.mdp`, all kernels are compiled
again (`operant.runtime.kernel_cache`).
"""

from pathlib import Path

import operant.mdp
from operant.runtime.kernel_cache import keyed_by_sources, njit

_compile = njit(cache=True, error_model="numpy", _nrt=False, forceinline=True)
compiled = keyed_by_sources(_compile, Path(__file__).parent, Path(operant.mdp.__file__).parent)
"""Decorator of all kernels and of the functions that they call."""
