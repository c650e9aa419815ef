"""operant: reinforcement learning in one library, from the Bellman equation to the post-training of language models."""

from typing import TYPE_CHECKING, Any

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
