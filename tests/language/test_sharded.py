"""Sharded learners in a single process; `tests/scale/test_sharded_states.py` has several processes."""

import pytest
import torch
from torch import nn

from operant.language.models import build
from operant.language.sharded import _Zero, blocks_of, device_of


def test_blocks_are_the_layers_of_a_model():
    network = build("tiny", seed=0)
    assert blocks_of(network) == list(network.model.layers)


def test_a_model_without_a_list_of_blocks_is_rejected():
    network = build("tiny", seed=0)
    network.model.layers = nn.Sequential(*network.model.layers)
    with pytest.raises(ValueError, match=r"LlamaModel has no list of num_hidden_layers \(3\) blocks"):
        blocks_of(network)


@pytest.mark.parametrize("device", ["mps", "cuda:1"])
def test_other_devices_are_rejected(device):
    with pytest.raises(ValueError, match=f"got device '{device}'"):
        device_of(device)


def test_each_process_has_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of("cuda") == "cuda:1"
    assert device_of("cpu") == "cpu"
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="for process 2 of this machine there are only 2 GPUs"):
        device_of("cuda")


def test_a_silent_pass_has_the_same_values_and_no_gradient():
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    found = _Zero.apply(value)
    assert torch.equal(found, value)
    found.sum().backward()
    assert torch.equal(value.grad, torch.zeros(2))
