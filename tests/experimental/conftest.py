"""Fixtures for language models, from the tests of that package."""

from language.conftest import characters, make_model, make_network

__all__ = ["characters", "make_model", "make_network"]
