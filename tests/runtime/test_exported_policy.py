import numpy as np
import torch
from safetensors.torch import save_file

from operant.runtime.exported_policy import read_tensors


def test_it_reads_what_safetensors_writes(tmp_path):
    tensors = {"a": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), "b": torch.arange(5)}
    tensors |= {"c": torch.tensor([1.5], dtype=torch.float64), "empty": torch.zeros(0, 2)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.numpy().dtype
        assert np.array_equal(found[name], tensor.numpy())
