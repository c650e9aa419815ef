"""Sampling engines: the protocol `Engine`, an engine in this process, a client of vLLM servers, and custom engines."""

from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import AheadEngine, Completion, Engine, Sampling, ShardEngine

__all__ = ["AheadEngine", "Completion", "Engine", "NativeEngine", "Sampling", "ShardEngine"]
