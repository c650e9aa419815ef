"""The recurrent state-space model: against its equations one row at a time, gradients, and starts of sequences."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import layer_norm, silu
from torch.testing import assert_close

from operant.worlds.rssm import RSSM, RSSMShape, State, sampled

SEEDS = (3, 5)
SHAPE = RSSMShape(actions=2, deter=8, stoch=3, classes=4, units=6, blocks=1, prior_layers=1, unimix=0.01)


def bound(shape=SHAPE, seeds=SEEDS):
    model = RSSM(shape, 5)
    parameters = torch.stack([model.initial(torch.Generator().manual_seed(seed)) for seed in seeds])
    parameters += torch.randn(parameters.shape, generator=torch.Generator().manual_seed(9)) * 0.1
    return model.bind(model.views(parameters))


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def hidden(x, scale, shift):
    return silu(layer_norm(x, x.shape[-1:], eps=1e-3) * scale[0] + shift[0])


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_a_step_against_the_equations_of_a_single_row(blocks):
    found = bound(replace(SHAPE, blocks=blocks))
    state, actions = State(drawn(2, 7, 8), drawn(2, 7, 12, seed=1)), drawn(2, 7, 2, seed=2)
    after = found.sequence_model(state, found.embed_action(actions))
    for s in range(2):
        for m in range(7):
            h = state.deter[s, m]
            given = ((h, found.from_deter), (state.stoch[s, m], found.from_stoch), (actions[s, m], found.from_action))
            shared = torch.cat([hidden(x @ w[s], scale[s], shift[s]) for x, (w, scale, shift) in given])
            first, scale, shift, second, bias = (view[s] for view in found.core)
            if blocks == 1:
                first, second, bias = first[None], second[None], bias[None]
            groups = h.view(blocks, -1)
            x = torch.cat([torch.cat((groups[g], shared)) @ first[g] for g in range(blocks)])
            x = hidden(x, scale, shift).view(blocks, -1)
            gates = torch.stack([x[g] @ second[g] + bias[g, 0] for g in range(blocks)])
            reset, candidate, update = (part.flatten() for part in gates.chunk(3, -1))
            update = torch.sigmoid(update - 1)
            expected = update * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - update) * h
            assert_close(after[s, m], expected)


def test_every_class_has_a_least_probability():
    found = bound()
    for log_probs in (
        found.prior_log_probs(100 * drawn(2, 7, 8)),
        found.posterior_log_probs(drawn(2, 7, 8), found.embed_obs(drawn(2, 7, 5))),
    ):
        assert log_probs.shape == (2, 7, 3, 4)
        assert_close(log_probs.exp().sum(-1), torch.ones(2, 7, 3))
        assert log_probs.exp().min() >= 0.01 / 4 - 1e-7


def test_the_posterior_sees_the_state_and_the_observation():
    found = bound()
    deter, embedded = drawn(2, 7, 8).requires_grad_(), drawn(2, 7, 5).requires_grad_()
    first = found.posterior_log_probs(deter, found.embed_obs(embedded))[..., 0].sum()
    for gradient in torch.autograd.grad(first, (deter, embedded)):
        assert (gradient.abs().sum(-1) > 0).all()


def test_following_a_sequence_is_stepping_through_it():
    found = bound()
    embedded, actions, noise = drawn(5, 2, 7, 5), drawn(5, 2, 7, 2), drawn(5, 2, 7, 3, 4)
    continues = torch.ones(5, 2, 7, 1)
    continues[0], continues[3, 1, 2] = 0, 0
    seen = torch.stack([found.embed_obs(x) for x in embedded])
    taken = torch.stack([found.embed_action(x) for x in actions])
    states, posterior = found.observe(seen, taken, continues, noise)
    state = found.start(2, 7)
    for t in range(5):
        deter = found.sequence_model(State(*(part * continues[t] for part in state)), taken[t])
        log_probs = found.posterior_log_probs(deter, seen[t])
        state = State(deter, sampled(log_probs, noise[t]))
        assert_close(states.deter[t], state.deter)
        assert_close(posterior[t], log_probs)
        assert_close(states.stoch[t].unflatten(-1, (3, 4)).sum(-1), torch.ones(2, 7, 3))
        assert set(states.stoch[t].round(decimals=5).unique().tolist()) == {0.0, 1.0}


def test_nothing_passes_a_first_frame():
    """Later states do not depend on earlier ones, and no gradient flows across a first frame."""
    found = bound()
    embedded, noise = drawn(4, 2, 7, 5).requires_grad_(), drawn(4, 2, 7, 3, 4)
    continues = torch.ones(4, 2, 7, 1)
    continues[[0, 2]] = 0
    seen = torch.stack([found.embed_obs(x) for x in embedded])
    taken = torch.stack([found.embed_action(torch.zeros(2, 7, 2))] * 4)
    states, _ = found.observe(seen, taken, continues, noise)
    (gradient,) = torch.autograd.grad(states.features[2:].square().sum(), embedded)
    assert (gradient[:2] == 0).all()
    assert (gradient[2:] != 0).any()


def test_imagination_draws_from_the_prior():
    found = bound()
    state, actions, noise = State(drawn(2, 7, 8), drawn(2, 7, 12)), drawn(2, 7, 2), drawn(2, 7, 3, 4)
    after = found.imagine(state, actions, noise)
    deter = found.sequence_model(state, found.embed_action(actions))
    assert_close(after.deter, deter)
    assert_close(after.stoch, sampled(found.prior_log_probs(deter), noise))


def test_without_noise_the_most_likely_classes_are_taken():
    log_probs = torch.tensor([[[[0.2, 0.7, 0.1]]]]).log()
    assert sampled(log_probs, None).round(decimals=5).tolist() == [[[0.0, 1.0, 0.0]]]


def test_each_seed_has_its_own_model():
    model = RSSM(SHAPE, 5)
    rows = [model.initial(torch.Generator().manual_seed(seed)) for seed in SEEDS]
    both, alone = (model.bind(model.views(torch.stack(parts))) for parts in (rows, rows[1:]))
    state, actions = State(drawn(2, 7, 8), drawn(2, 7, 12)), drawn(2, 7, 2)
    found = both.sequence_model(state, both.embed_action(actions))
    assert_close(found[1:], alone.sequence_model(State(*(part[1:] for part in state)), alone.embed_action(actions[1:])))


def test_blocks_divide_the_state():
    with pytest.raises(ValueError, match="blocks must divide deter, which is 8, got 3"):
        RSSM(replace(SHAPE, blocks=3), 5)
