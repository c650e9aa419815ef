"""Sampling engines: a small protocol, a model in this process, vLLM servers, and engines from outside."""

from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Completion, Engine, Sampling

__all__ = ["Completion", "Engine", "NativeEngine", "Sampling"]
