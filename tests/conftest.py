"""Checks every call of ``operant.ops`` against its annotated shapes, and keeps small networks on one thread."""

import torch
from jaxtyping import install_import_hook

install_import_hook("operant.ops", "beartype.beartype")
torch.set_num_threads(1)
