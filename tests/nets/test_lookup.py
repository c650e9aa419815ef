"""A lookup equals a product with a one-hot vector, forward and backward."""

import pytest
import torch
from torch.nn.functional import one_hot

from needs import needs_compiler
from operant.nets import Program, StackedMLP
from operant.nets.action_values import ActionValues, ValuePass
from operant.nets.lookup import StackedLookup

ENTRIES = 6


def made(activation="relu", seeds=3, sizes=(ENTRIES, 5, 4, 2)):
    generator = torch.Generator().manual_seed(0)
    lookup, perceptron = StackedLookup(sizes, activation=activation), StackedMLP(sizes, activation=activation)
    parameters = torch.randn(seeds, lookup.size, generator=generator)
    numbers = torch.randint(ENTRIES, (seeds, 9, 1), generator=generator)
    return lookup, perceptron, parameters, numbers, one_hot(numbers.squeeze(-1), ENTRIES).float()


def summed(gradient):
    """Return the gradient of all rows `[S, ENTRIES, W]`."""
    return one_hot(gradient.numbers, ENTRIES).float().mT @ gradient.rows


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("sizes", [(ENTRIES, 5, 4, 2), (ENTRIES, 3, 2)])
def test_values_and_gradients_are_those_of_one_hot_vectors(activation, sizes):
    lookup, perceptron, parameters, numbers, vectors = made(activation, sizes=sizes)
    layers, own = lookup.layers(parameters), perceptron.layers(parameters[:, : perceptron.size])
    trace, reference = lookup.trace(layers, numbers), perceptron.trace(own, vectors)
    torch.testing.assert_close(trace[1:], reference[1:])
    cotangent = torch.randn(3, 9, 2)
    ours, theirs = lookup.row_gradient(layers, trace, cotangent), perceptron.pullback(own, reference, cotangent)
    torch.testing.assert_close(summed(ours).flatten(1), theirs[0])
    torch.testing.assert_close(ours.rest, torch.cat(theirs[1:], 1))


@needs_compiler
def test_a_compiled_pass_gives_the_same():
    """Weights are stored between other parameters, separately for each seed, also in the compiled program."""
    shape = ActionValues(ENTRIES, 2, hidden=(5,), activation="relu", one_hot=True)
    bound = shape.bind(shape.initial([torch.Generator().manual_seed(seed) for seed in range(3)]))
    numbers = torch.randint(ENTRIES, (3, 9, 1), generator=torch.Generator().manual_seed(5))

    def gradient(obs):
        networks = ValuePass(bound, obs)
        return networks.gradient(networks.values.square().sum()), networks.values.detach()

    program = Program(gradient)
    program.compiled = True
    for ours, theirs in zip(program(numbers), gradient(numbers), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_parameters_of_all_networks_are_rows_of_one_matrix():
    lookup, perceptron, parameters, _, _ = made(sizes=(ENTRIES, 5, 4, 2))
    assert perceptron.size == 6 * 5 + 5 + 5 * 4 + 4 + 4 * 2 + 2 == 69
    assert lookup.size == 70
    weight, _ = lookup.layers(parameters)[0]
    assert torch.equal(parameters.view(-1, 5).view(3, -1, 5)[:, :ENTRIES], weight)
    assert lookup.rest == slice(30, 69)


def test_values_of_actions_begin_as_different_for_different_entries():
    """One input is active, so the rows of the first weights are as wide as the biases of a layer of one input."""
    shape = ActionValues(400, 2, hidden=(50,), activation="relu", one_hot=True)
    parameters = shape.initial([torch.Generator().manual_seed(0)])
    weight, bias = shape.mlp.layers(parameters)[0]
    assert 0.9 < weight.max() <= 1.0
    assert 0.9 < bias.max() <= 1.0
    values = shape.bind(parameters)(torch.arange(400).view(1, 400, 1))[0]
    best = values.argmax(-1).float().mean()
    assert 0.1 < best < 0.9
    assert (values[:, 0] - values[:, 1]).std() > 0.05


def test_fixed_networks_are_a_table_that_follows_their_parameters():
    shape = ActionValues(400, 2, hidden=(20,), activation="relu", one_hot=True)
    parameters = shape.initial([torch.Generator().manual_seed(seed) for seed in range(3)])
    fixed, bound = shape.fixed(parameters), shape.bind(parameters)
    numbers = torch.randint(400, (3, 9, 1), generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(fixed(numbers), bound(numbers))
    parameters.mul_(2.0)
    torch.testing.assert_close(fixed(numbers), bound(numbers))
