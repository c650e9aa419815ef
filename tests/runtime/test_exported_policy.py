import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from operant.runtime.exported_policy import Policy, read_tensors


def test_it_reads_what_safetensors_writes(tmp_path):
    tensors = {"a": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), "b": torch.arange(5)}
    tensors |= {"c": torch.tensor([1.5], dtype=torch.float64), "empty": torch.zeros(0, 2)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.numpy().dtype
        assert np.array_equal(found[name], tensor.numpy())


@pytest.mark.parametrize("kind", ["table", "choices"])
def test_an_observation_that_does_not_exist_is_rejected(kind, tmp_path):
    facts = {"kind": kind, "observation": {"shape": [], "start": 2}, "action": {"shape": [], "dtype": "int64"}}
    if kind == "choices":
        facts |= {"observation": {"shape": [], "sizes": [3], "starts": [2]}, "layers": 1, "outputs": [0, 2]}
        facts |= {"activation": "tanh", "choices": [2]}
    (tmp_path / "policy.json").write_text(json.dumps(facts), encoding="utf-8")
    tensors = {"actions": torch.tensor([1, 0, 1]), "layers.0.weight": torch.eye(3), "layers.0.bias": torch.zeros(3)}
    save_file(tensors, tmp_path / "policy.safetensors")
    policy = Policy(tmp_path)
    assert policy.predict(3) in (0, 1)
    for state in (1, 5):
        with pytest.raises(ValueError, match=f"observations must lie between 2 and 4, got {state}"):
            policy.predict(state)
    assert policy.predict(np.float32(3.0)) == policy.predict(3)
    with pytest.raises(ValueError, match=r"observations must be whole numbers, got 2\.5"):
        policy.predict(2.5)
    for given in ("three", None):
        with pytest.raises(ValueError, match=f"observations must be numbers, got {given!r}"):
            policy.predict(given)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_inf_are_rejected_as_by_predict(value, tmp_path):
    facts = {"kind": "choices", "choices": [2], "layers": 1, "outputs": [0, 2], "activation": "tanh"}
    facts |= {"observation": {"shape": [2]}, "action": {"shape": [], "dtype": "int64"}}
    (tmp_path / "policy.json").write_text(json.dumps(facts), encoding="utf-8")
    save_file({"layers.0.weight": torch.eye(2), "layers.0.bias": torch.zeros(2)}, tmp_path / "policy.safetensors")
    policy = Policy(tmp_path)
    assert policy.predict([0.0, 1.0]) == 1
    with pytest.raises(ValueError, match=f"observations must be finite, got {value}"):
        policy.predict([[0.0, 1.0], [value, 0.0]])
