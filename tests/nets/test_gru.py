import pytest
import torch
from torch import nn

from operant.nets import Recurrence, StackedGRU

D, H, L, OUT = 3, 4, 5, 2
SEEDS = pytest.mark.parametrize("seeds", [1, 3])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def make(hidden=(6,), steps=L):
    return StackedGRU(D, hidden, OUT, activation="tanh", recurrence=Recurrence(units=H, steps=steps))


def parameters_of(gru, seeds):
    return 0.5 * torch.randn(seeds, gru.size, generator=rng(), dtype=torch.float64)


def seen(seeds, sequences, steps=L):
    """Return packed steps, some of which begin an episode."""
    obs, hidden_state = (
        torch.randn(seeds, steps * sequences, n, generator=rng(n), dtype=torch.float64) for n in (D, H)
    )
    starts = (torch.rand(seeds, steps * sequences, 1, generator=rng(7), dtype=torch.float64) < 0.3).double()
    return torch.cat((obs, starts, hidden_state), dim=-1)


def separate(gru, row):
    """Return the modules of torch that have the parameters of one row."""
    layers = gru.layers(row.unsqueeze(0))
    *dense, (weight, bias), _, (out, out_bias) = layers
    encoder = []
    for w, b in dense:
        linear = nn.Linear(*w.shape[1:], dtype=row.dtype)
        linear.weight.data, linear.bias.data = w[0].T.clone(), b[0, 0].clone()
        encoder += [linear, nn.Tanh()]
    cell = nn.GRUCell(weight.shape[1], H, dtype=row.dtype)
    recurrent, recurrent_bias = layers[-2]
    cell.weight_ih.data, cell.bias_ih.data = weight[0].T.clone(), bias[0, 0].clone()
    cell.weight_hh.data, cell.bias_hh.data = recurrent[0].T.clone(), recurrent_bias[0, 0].clone()
    head = nn.Linear(H, OUT, dtype=row.dtype)
    head.weight.data, head.bias.data = out[0].T.clone(), out_bias[0, 0].clone()
    return nn.Sequential(*encoder), cell, head


def play(modules, inputs, sequences):
    """Process the sequences of one seed, step by step and one after another."""
    encoder, cell, head = modules
    table = inputs.view(-1, sequences, D + 1 + H)
    outputs = []
    for k in range(sequences):
        hidden_state = table[0, k, D + 1 :]
        column = []
        for step in table[:, k]:
            if step[D]:
                hidden_state = torch.zeros(H, dtype=inputs.dtype)
            hidden_state = cell(encoder(step[:D]).unsqueeze(0), hidden_state.unsqueeze(0))[0]
            column.append(head(hidden_state))
        outputs.append(torch.stack(column))
    return torch.stack(outputs, dim=1).flatten(0, 1)


def gradient_of(modules):
    encoder, cell, head = modules
    linears = [m for m in encoder if isinstance(m, nn.Linear)]
    pairs = [(m.weight, m.bias) for m in linears]
    pairs += [(cell.weight_ih, cell.bias_ih), (cell.weight_hh, cell.bias_hh), (head.weight, head.bias)]
    return torch.cat([part for w, b in pairs for part in (w.grad.T.flatten(), b.grad)])


@SEEDS
@pytest.mark.parametrize("hidden", [(), (6,), (6, 5)])
def test_sequences_and_their_gradient_are_those_of_separate_networks(seeds, hidden):
    gru = make(hidden)
    parameters, inputs = parameters_of(gru, seeds), seen(seeds, 3)
    cotangent = torch.randn(seeds, 3 * L, OUT, generator=rng(2), dtype=torch.float64)
    layers, before = gru.layers(parameters), cotangent.clone()
    trace = gru.trace(layers, inputs)
    gradient = torch.cat(gru.pullback(layers, trace, cotangent), dim=1)
    assert torch.equal(cotangent, before)
    for seed in range(seeds):
        modules = separate(gru, parameters[seed])
        outputs = play(modules, inputs[seed], 3)
        torch.testing.assert_close(trace[-1][seed], outputs)
        (outputs * cotangent[seed]).sum().backward()
        torch.testing.assert_close(gradient[seed], gradient_of(modules))


def test_single_steps_and_sequences_agree():
    gru = make()
    layers, inputs = gru.layers(parameters_of(gru, 2)), seen(2, 3)
    table = inputs.view(2, L, 3, -1).clone()
    hidden_state, outputs = table[:, 0, :, D + 1 :], []
    for t in range(L):
        table[:, t, :, D + 1 :] = hidden_state
        out, hidden_state = gru.step(layers, table[:, t])
        assert hidden_state.shape == (2, 3, H)
        outputs.append(out)
    torch.testing.assert_close(gru.trace(layers, inputs)[-1], torch.stack(outputs, dim=1).flatten(1, 2))
    torch.testing.assert_close(gru(layers, table.flatten(1, 2)), torch.stack(outputs, dim=1).flatten(1, 2))


def test_autograd_goes_through_sequences_as_well():
    gru = make()
    parameters, inputs = parameters_of(gru, 2).requires_grad_(), seen(2, 3)
    weights = torch.randn(2, 3 * L, OUT, generator=rng(2), dtype=torch.float64)
    (expected,) = torch.autograd.grad((gru.trace(gru.layers(parameters), inputs)[-1] * weights).sum(), parameters)
    layers = gru.layers(parameters.detach())
    torch.testing.assert_close(torch.cat(gru.pullback(layers, gru.trace(layers, inputs), weights), dim=1), expected)


def test_steps_before_an_episode_have_no_effect_even_if_they_are_nan():
    gru = make()
    layers, inputs = gru.layers(parameters_of(gru, 1)), seen(1, 2)
    inputs[..., D] = 0.0
    inputs.view(1, L, 2, -1)[:, 2, 0, D] = 1.0
    changed = inputs.clone()
    changed.view(1, L, 2, -1)[:, :2, 0, :D] = torch.nan
    same, other = (gru.trace(layers, x)[-1].view(L, 2, OUT) for x in (inputs, changed))
    torch.testing.assert_close(other[2:], same[2:])
    assert other[:2, 0].isnan().all()


def test_initial_weights_are_orthogonal_gate_by_gate():
    gru = make(hidden=())
    layers = gru.layers(gru.initial(rng(), [(OUT, 0.01)]).unsqueeze(0))
    for gate in layers[-2][0][0].split(H, dim=1):
        torch.testing.assert_close(gate.T @ gate, torch.eye(H), atol=1e-5, rtol=0)
    for gate in layers[0][0][0].split(H, dim=1):
        torch.testing.assert_close(gate @ gate.T, torch.eye(D), atol=1e-5, rtol=0)
    torch.testing.assert_close(layers[-1][0][0].norm(dim=0), torch.full((OUT,), 0.01))
    assert all(bias.count_nonzero() == 0 for _, bias in layers)


def test_layers_are_views():
    gru = make()
    parameters = torch.zeros(2, gru.size)
    for weight, bias in gru.layers(parameters):
        weight.fill_(1)
        bias.fill_(2)
    assert parameters.count_nonzero() == parameters.numel()


def test_incomplete_sequences_are_rejected():
    gru = make()
    with pytest.raises(ValueError, match="7 samples are not a multiple of the 5 steps of a sequence"):
        gru.trace(gru.layers(parameters_of(gru, 1)), seen(1, 7, steps=1))


@pytest.mark.parametrize("recurrence", [Recurrence(0, 1), Recurrence(1, 0)], ids=str)
def test_a_recurrence_without_units_or_steps_is_rejected(recurrence):
    with pytest.raises(ValueError, match="a recurrent network needs at least one unit and one step, got Recurrence"):
        StackedGRU(D, (), OUT, activation="tanh", recurrence=recurrence)
