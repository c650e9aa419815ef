"""Marks of tests that need optional software."""

from importlib.util import find_spec

import pytest

from operant.nets import compiler

needs_onnx = pytest.mark.skipif(
    find_spec("onnx") is None or find_spec("onnxscript") is None, reason="graphs of ONNX need onnx and onnxscript"
)
needs_compiler = pytest.mark.skipif(compiler() is None, reason="programs need a C++ compiler")
