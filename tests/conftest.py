"""Checks every call of ``operant.ops`` against its annotated shapes, and keeps small networks on one thread."""

from functools import partial

import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("operant.ops", "beartype.beartype")
torch.set_num_threads(1)


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
