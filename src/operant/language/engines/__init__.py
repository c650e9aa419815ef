"""Sampling engines: a small protocol, a model in this process, and a vLLM server."""

from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Completion, Engine, Sampling

__all__ = ["Completion", "Engine", "NativeEngine", "Sampling"]
