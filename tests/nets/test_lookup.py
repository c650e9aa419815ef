"""A lookup is a product with a one-hot vector, there and back."""

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


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("sizes", [(ENTRIES, 5, 4, 2), (ENTRIES, 3, 2)])
def test_values_and_gradients_are_those_of_one_hot_vectors(activation, sizes):
    lookup, perceptron, parameters, numbers, vectors = made(activation, sizes=sizes)
    layers = lookup.layers(parameters)
    trace, reference = lookup.trace(layers, numbers), perceptron.trace(layers, vectors)
    torch.testing.assert_close(trace[1:], reference[1:])
    cotangent = torch.randn(3, 9, 2)
    ours, theirs = lookup.pullback(layers, trace, cotangent), perceptron.pullback(layers, reference, cotangent)
    torch.testing.assert_close(torch.cat(ours, 1), torch.cat(theirs, 1))


@needs_compiler
def test_a_compiled_pass_gives_the_same():
    """Weights lie between other parameters, apart for each seed, and so they do in the program."""
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


def test_a_number_that_is_not_drawn_has_no_gradient_and_others_add_up():
    lookup, _, parameters, _, _ = made(seeds=1)
    layers, numbers = lookup.layers(parameters), torch.tensor([[[2], [2], [4]]])
    trace = lookup.trace(layers, numbers)
    first = lookup.pullback(layers, trace, torch.ones(1, 3, 2))[0].view(ENTRIES, 5)
    alone = lookup.pullback(layers, lookup.trace(layers, numbers[:, :1]), torch.ones(1, 1, 2))[0].view(ENTRIES, 5)
    assert (first[[0, 1, 3, 5]] == 0).all()
    torch.testing.assert_close(first[2], 2 * alone[2])


def test_values_of_actions_begin_as_different_for_different_entries():
    """One input is active, so that the rows of the first weights are as wide as the biases of a layer of one input."""
    shape = ActionValues(400, 2, hidden=(50,), activation="relu", one_hot=True)
    parameters = shape.initial([torch.Generator().manual_seed(0)])
    weight, bias = shape.mlp.layers(parameters)[0]
    assert 0.9 < weight.max() <= 1.0
    assert 0.9 < bias.max() <= 1.0
    values = shape.bind(parameters)(torch.arange(400).view(1, 400, 1))[0]
    best = values.argmax(-1).float().mean()
    assert 0.1 < best < 0.9
    assert (values[:, 0] - values[:, 1]).std() > 0.05
