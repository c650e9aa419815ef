"""Chapter 4: where reward is rare."""

from operant.explore.shaping import Shaping, shaped

__all__ = ["Shaping", "shaped"]
