"""Checks every call of ``operant.ops`` against its annotated shapes, and keeps small networks on one thread."""

import os
import signal
from functools import partial

import pytest
import torch
from jaxtyping import install_import_hook

import graphs

install_import_hook("operant.ops", "beartype.beartype")
torch.set_num_threads(1)
# A shell starts what it runs in the background with SIGINT ignored, which tests of Ctrl-C would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Films and workers are made by processes that are forked, of which tokenizers that were used before would say so.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def torch_library(monkeypatch):
    """Let the environments made on the CPU compute as on other devices."""
    from operant.envs.tensor import core

    class Device(core.Library):
        def __init__(self, device, dtype):
            super().__init__(torch.device("meta"), dtype)
            self.empty = partial(torch.empty, dtype=dtype)

    def make(kind, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(core, "Library", Device)
            return kind(*args, **kwargs)

    return make


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def graph_device(request, monkeypatch):
    """The CPU, where recording is emulated, and a CUDA device."""
    if request.param == "cpu":
        graphs.emulate(monkeypatch)
    elif not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device(request.param)
