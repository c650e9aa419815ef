import numpy as np
import torch

from operant import tensors


def test_numbers_become_those_of_python():
    assert tensors.integers(torch.tensor([3, -1])) == [3, -1]
    assert tensors.floats(torch.tensor([0.5, -2.0])) == [0.5, -2.0]
    assert tensors.rows_of_floats(torch.tensor([[0.5], [1.0]])) == [[0.5], [1.0]]


def test_an_array_and_its_tensor_share_memory():
    array = np.zeros(2)
    tensors.from_numpy(array)[0] = 3.0
    assert array.tolist() == [3.0, 0.0]


def test_a_tensor_in_shared_memory_is_the_same_one():
    tensor = torch.arange(3)
    assert tensors.in_shared_memory(tensor) is tensor
    assert tensor.is_shared()


def test_the_norm_is_euclidean():
    assert tensors.vector_norm(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), dim=1).tolist() == [5.0, 2.0]
