"""Marks for tests that need what a machine may lack."""

import pytest

from operant.nets import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="programs need a C++ compiler")
