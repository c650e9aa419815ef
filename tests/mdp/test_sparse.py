import inspect

import numpy as np
import pytest
import scipy.sparse

from operant.mdp import sparse

DENSE = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0], [0.0, 0.0, 4.0]])


@pytest.fixture
def matrix():
    return sparse.csr_array(DENSE)


@pytest.mark.parametrize("make", [sparse.csr_array, sparse.csr_matrix, sparse.csc_matrix])
def test_a_matrix_has_every_declared_member(make):
    functions = dict(inspect.getmembers(sparse.Sparse, inspect.isfunction))
    methods = {name for name, function in functions.items() if function.__module__ == sparse.__name__}
    declared = {*inspect.get_annotations(sparse.Sparse), *methods, "shape"}
    assert {"data", "indices", "indptr", "tocsc", "nonzero", "sum"} <= declared
    assert [name for name in declared if not hasattr(make(DENSE), name)] == []


def test_matrices_are_those_of_scipy(matrix):
    assert sparse.issparse(matrix)
    assert isinstance(matrix, scipy.sparse.csr_array)
    entries = matrix.data, matrix.indices, matrix.indptr
    np.testing.assert_array_equal(sparse.csr_array(entries, shape=(3, 3)) @ np.eye(3), DENSE)
    np.testing.assert_array_equal(sparse.vstack([matrix, matrix]) @ np.ones(3), [2, 4, 4, 2, 4, 4])
    assert not sparse.issparse(DENSE)


def test_arithmetic(matrix):
    identity = sparse.eye_array(3)
    np.testing.assert_array_equal((identity - 0.5 * matrix) @ np.ones(3), [0.0, -1.0, -1.0])
    np.testing.assert_array_equal((identity + matrix @ matrix) @ np.eye(3), np.eye(3) + DENSE @ DENSE)
    np.testing.assert_array_equal(np.ones(3) @ matrix, DENSE.sum(axis=0))
    np.testing.assert_array_equal(matrix[np.array([0, 2]), np.array([1, 2])], [2.0, 4.0])
    np.testing.assert_array_equal(matrix.sum(axis=1), DENSE.sum(axis=1))


def test_factors_solve_the_system_and_its_transpose(matrix):
    factors = sparse.splu((sparse.eye_array(3) + matrix).tocsc())
    right = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(factors.solve(right), np.linalg.solve(np.eye(3) + DENSE, right), atol=1e-12)
    np.testing.assert_allclose(factors.solve(right, trans="T"), np.linalg.solve(np.eye(3) + DENSE.T, right), atol=1e-12)


def test_graphs(matrix):
    assert sparse.breadth_first_order(matrix, 0, return_predecessors=False).tolist() == [0, 1, 2]
    assert sparse.breadth_first_order(matrix, 2, return_predecessors=False).tolist() == [2]
    count, labels = sparse.connected_components(matrix, connection="strong")
    assert count == 2
    assert labels[0] == labels[1] != labels[2]
