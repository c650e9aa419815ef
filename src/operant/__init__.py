"""operant: reinforcement learning in one library, from the Bellman equation to the post-training of language models."""

import os
import sys
from typing import TYPE_CHECKING, Any

# Threads that wait for each other sleep instead of spinning: where other programs keep the cores busy, two threads that
# spin can be a hundred times slower than one. OpenMP reads this when torch is imported.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from operant.api import Callback, Trained, configure, load, resume, train
    from operant.check import check_learner

__version__ = "0.1.0"
__all__ = ["Callback", "Trained", "__version__", "check_learner", "configure", "load", "resume", "train"]


def __getattr__(name: str) -> Any:
    """Import the library proper, and torch with it, only when it is used."""
    if name in __all__:
        from operant import api, check  # noqa: PLC0415 - the point of this function

        return getattr(check if name == "check_learner" else api, name)
    raise AttributeError(f"module 'operant' has no attribute {name!r}")
