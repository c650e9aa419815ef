import pytest
import torch
from torch import nn

from operant.nets import Jacobian, NetworkJacobian, StackedMLP, StackedNetwork, jacobian

ACTIVATIONS = pytest.mark.parametrize("activation", ["tanh", "relu"])
SIZES = pytest.mark.parametrize("sizes", [(3, 5, 4, 2), (3, 2)], ids=str)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def outputs_of(mlp, parameters, inputs):
    """Compute the outputs with automatic differentiation."""
    activation = {"tanh": torch.tanh, "relu": torch.relu}[mlp.activation]
    for index, (weight, bias) in enumerate(mlp.layers(parameters)):
        inputs = (activation(inputs) if index else inputs) @ weight + bias
    return inputs


def dense(mlp, parameters, inputs):
    """Return the Jacobians `[S, M, out, P]`, one entry at a time by automatic differentiation."""
    leaf = parameters.clone().requires_grad_()
    outputs = outputs_of(mlp, leaf, inputs)
    rows = [torch.autograd.grad(entry, leaf, retain_graph=True)[0] for entry in outputs.sum(0).flatten()]
    return torch.stack(rows).view(*outputs.shape[1:], *leaf.shape).movedim(2, 0)


@ACTIVATIONS
@SIZES
def test_both_products_are_those_with_the_matrix(activation, sizes):
    mlp = StackedMLP(sizes, activation=activation)
    parameters, inputs = normal(4, mlp.size), normal(4, 7, sizes[0], seed=1)
    found = Jacobian(mlp, mlp.layers(parameters), inputs)
    matrix = dense(mlp, parameters, inputs)
    vector, cotangent = normal(4, mlp.size, seed=2), normal(4, 7, sizes[-1], seed=3)
    torch.testing.assert_close(found.outputs, outputs_of(mlp, parameters, inputs))
    torch.testing.assert_close(found.push(vector), torch.einsum("smop,sp->smo", matrix, vector))
    torch.testing.assert_close(found.pull(cotangent), torch.einsum("smop,smo->sp", matrix, cotangent))


@ACTIVATIONS
def test_a_push_is_the_limit_of_differences(activation):
    mlp = StackedMLP((3, 5, 4, 2), activation=activation)
    parameters, inputs, vector = normal(2, mlp.size), normal(2, 7, 3, seed=1), normal(2, mlp.size, seed=2)
    step = 1e-6 * vector
    up, down = (mlp(mlp.layers(parameters + change), inputs) for change in (step, -step))
    pushed = Jacobian(mlp, mlp.layers(parameters), inputs).push(vector)
    torch.testing.assert_close(pushed, (up - down) / 2e-6, rtol=1e-6, atol=1e-8)


def test_products_leave_what_they_are_given_alone():
    mlp = StackedMLP((3, 5, 4, 2), activation="tanh")
    parameters, inputs = normal(2, mlp.size), normal(2, 7, 3, seed=1)
    vector, cotangent = normal(2, mlp.size, seed=2), normal(2, 7, 2, seed=3)
    kept = [tensor.clone() for tensor in (parameters, inputs, vector, cotangent)]
    found = Jacobian(mlp, mlp.layers(parameters), inputs)
    first = found.push(vector), found.pull(cotangent)
    second = found.push(vector), found.pull(cotangent)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(map(torch.equal, kept, (parameters, inputs, vector, cotangent)))


def test_networks_that_are_rows_of_a_larger_matrix_are_linearized_alike():
    mlp = StackedMLP((3, 5, 2), activation="tanh")
    rows, inputs = normal(2, 2 * mlp.size + 1), normal(2, 7, 3, seed=1)
    parameters = rows[:, 1 : 1 + mlp.size]
    vector = normal(2, mlp.size + 3, seed=2)[:, : mlp.size]
    found = Jacobian(mlp, mlp.layers(parameters), inputs).push(vector)
    expected = Jacobian(mlp, mlp.layers(parameters.contiguous()), inputs).push(vector.contiguous())
    torch.testing.assert_close(found, expected)


class Attentive(nn.Module):
    """Attention over the entries of an observation, with a policy and a value."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.embed, self.norm = nn.Linear(1, 4), nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.policy, self.value = nn.Linear(4, outputs), nn.Linear(4, 1)

    def forward(self, obs):
        tokens = self.norm(self.embed(obs.unsqueeze(-1)))
        seen = self.attention(tokens, tokens, tokens)[0].mean(1)
        return self.policy(seen), self.value(seen)


@pytest.mark.parametrize("columns", [slice(0, 2), slice(2, 3)])
def test_products_of_a_network_from_outside_are_those_with_the_matrix(columns):
    network = StackedNetwork(Attentive, (3,), (2, 1))
    parameters = torch.stack([network.initial(torch.Generator().manual_seed(seed)) for seed in (0, 1)])
    inputs = normal(2, 5, 3, seed=1).float()
    found = jacobian(network, network.layers(parameters), inputs, columns)
    assert isinstance(found, NetworkJacobian)
    leaf = parameters.clone().requires_grad_()
    outputs = network(network.layers(leaf), inputs)[..., columns]
    rows = [torch.autograd.grad(entry, leaf, retain_graph=True)[0] for entry in outputs.sum(0).flatten()]
    matrix = torch.stack(rows).view(*outputs.shape[1:], *leaf.shape).movedim(2, 0)
    vector, cotangent = normal(2, network.size, seed=2).float(), normal(*outputs.shape, seed=3).float()
    torch.testing.assert_close(found.outputs, outputs.detach())
    for _ in range(2):  # and again
        expected = torch.einsum("smop,sp->smo", matrix, vector)
        torch.testing.assert_close(found.push(vector), expected, rtol=1e-4, atol=1e-5)
        expected = torch.einsum("smop,smo->sp", matrix, cotangent)
        torch.testing.assert_close(found.pull(cotangent), expected, rtol=1e-4, atol=1e-5)
