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
    assert tensors.linalg.vector_norm(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), dim=1).tolist() == [5.0, 2.0]


def test_lists_within_lists_hold_the_numbers():
    assert tensors.nested(torch.tensor([[[True], [False]]])) == [[[True], [False]]]


def test_different_numbers_come_in_order():
    assert tensors.unique(torch.tensor([3, 1, 3])).tolist() == [1, 3]


def test_half_of_the_standard_normal_distribution_is_below_0():
    assert tensors.ndtri(torch.tensor([0.5])).tolist() == [0.0]


def test_linear_algebra_returns_what_its_types_say():
    matrix = torch.tensor([[4.0, 2.0], [2.0, 5.0]])
    right = torch.tensor([[8.0], [12.0]])
    assert tensors.linalg.cholesky(matrix).tolist() == [[2.0, 0.0], [1.0, 2.0]]
    values, vectors = tensors.linalg.eigh(matrix)
    torch.testing.assert_close(vectors @ values.diag() @ vectors.T, matrix)
    basis, triangle = tensors.linalg.qr(matrix)
    torch.testing.assert_close(basis @ triangle, matrix)
    torch.testing.assert_close(tensors.linalg.inv(matrix) @ matrix, torch.eye(2))
    torch.testing.assert_close(tensors.linalg.solve(matrix, right), torch.tensor([[1.0], [2.0]]))
    torch.testing.assert_close(tensors.linalg.lstsq(matrix, right).solution, torch.tensor([[1.0], [2.0]]))
