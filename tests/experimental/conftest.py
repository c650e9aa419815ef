"""Models of language, as the tests of that package make them."""

from language.conftest import characters, make_model, make_network

__all__ = ["characters", "make_model", "make_network"]
