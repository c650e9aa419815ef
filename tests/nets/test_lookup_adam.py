"""Steps on the rows that were looked up equal those of Adam on all rows."""

import pytest
import torch

from operant.nets.action_values import ActionValues, ValuePass
from operant.nets.lookup import RowGradient, StackedLookup
from operant.nets.lookup_adam import StackedLookupAdam

ENTRIES, WIDTH, BETAS, RATE = 6, 4, (0.9, 0.99), 0.1
SEEDS, HEADS, LOOKUPS = 2, 3, 5


def made(*, seeds=SEEDS, **options):
    lookup = StackedLookup((ENTRIES, WIDTH, 3, 2), activation="relu")
    parameters = torch.randn(SEEDS, HEADS * lookup.size, generator=torch.Generator().manual_seed(0))[:seeds]
    return lookup, parameters, StackedLookupAdam(parameters, lookup, betas=BETAS, epsilon=1e-5, **options)


def drawn(step, lookup, seeds=SEEDS):
    """Return a gradient which looks up some rows several times and others not at all."""
    generator = torch.Generator().manual_seed(step)
    networks, rest = SEEDS * HEADS, lookup.rest.stop - lookup.rest.start
    gradient = RowGradient(
        torch.randint(ENTRIES, (networks, LOOKUPS), generator=generator),
        torch.randn(networks, LOOKUPS, WIDTH, generator=generator),
        torch.randn(networks, rest, generator=generator),
    )
    return RowGradient(*(part[: seeds * HEADS].clone() for part in gradient))


def dense(gradient, lookup):
    """Return the gradient of all parameters, one by one."""
    whole = torch.zeros(len(gradient.rest), lookup.size)
    for network, numbers in enumerate(gradient.numbers.tolist()):
        for lookups, number in enumerate(numbers):
            whole[network, number * WIDTH : (number + 1) * WIDTH] += gradient.rows[network, lookups]
    whole[:, lookup.rest] = gradient.rest
    return whole.view(SEEDS, -1)


def test_steps_are_those_of_adam_on_every_row_without_its_first_moment():
    """Use Adam without momentum in 64 bits, for all parameters of all rows at every step."""
    lookup, parameters, optimizer = made()
    slow = parameters.double()
    first, second = torch.zeros_like(slow), torch.zeros_like(slow)
    rates = torch.full((lookup.size,), BETAS[0], dtype=torch.float64)
    rates[: lookup.rest.start] = 0.0
    rates = rates.repeat(HEADS)
    for step in range(1, 40):
        gradient = drawn(step, lookup)
        whole = dense(gradient, lookup).double()
        norm = optimizer.step(gradient, learning_rate=RATE)
        torch.testing.assert_close(norm, whole.norm(dim=1).float())
        first = rates * first + (1 - rates) * whole
        second = BETAS[1] * second + (1 - BETAS[1]) * whole.square()
        slow -= RATE * (first / (1 - rates**step)) / ((second / (1 - BETAS[1] ** step)).sqrt() + 1e-5)
    torch.testing.assert_close(parameters, slow.float(), rtol=1e-4, atol=1e-4)


def test_a_row_by_hand():
    """The first step of a gradient is as long as the learning rate; a row that was not looked up does not move."""
    lookup, parameters, optimizer = made()
    before = parameters.clone()
    gradient = drawn(1, lookup)
    gradient.numbers.fill_(2)
    gradient.rows.fill_(7.0)
    optimizer.step(gradient, learning_rate=RATE)
    moved = (parameters - before).view(SEEDS, HEADS, -1)[..., : lookup.rest.start].unflatten(-1, (ENTRIES, WIDTH))
    torch.testing.assert_close(moved[:, :, 2], torch.full((SEEDS, HEADS, WIDTH), -RATE))
    assert not moved[:, :, [0, 1, 3, 4, 5]].any()
    assert (optimizer.row_steps.view(SEEDS, HEADS, ENTRIES)[:, :, 2] == 1).all()


def test_the_gradient_of_a_seed_is_clipped_over_all_of_its_networks():
    lookup, clipped, optimizer = made(max_grad_norm=0.5)
    _, reference, unclipped = made()
    for step in range(1, 4):
        gradient = drawn(step, lookup)
        norm = dense(gradient, lookup).norm(dim=1)
        share = (0.5 / (norm + 1e-6)).repeat_interleave(HEADS)
        scaled = RowGradient(gradient.numbers, gradient.rows * share.view(-1, 1, 1), gradient.rest * share.view(-1, 1))
        torch.testing.assert_close(optimizer.step(gradient, learning_rate=RATE), norm)
        unclipped.step(scaled, learning_rate=RATE)
    torch.testing.assert_close(clipped, reference)


@pytest.mark.parametrize("part", ["rows", "rest"])
def test_a_seed_with_nan_waits_and_the_others_step_as_alone(part):
    lookup, parameters, optimizer = made()
    _, alone, single = made(seeds=1)
    before = parameters.clone()
    for step in range(1, 5):
        gradient = drawn(step, lookup)
        getattr(gradient, part)[-1, 0] = torch.nan
        optimizer.step(gradient, learning_rate=RATE)
        single.step(drawn(step, lookup, seeds=1), learning_rate=RATE)
    assert torch.equal(parameters[1], before[1])
    assert torch.equal(parameters[0], alone[0])
    assert optimizer.counts.tolist() == [[4, 4], [0, 4]]


def test_a_restored_optimizer_continues_exactly():
    lookup, parameters, optimizer = made()
    for step in range(1, 6):
        optimizer.step(drawn(step, lookup), learning_rate=RATE)
    _, copied, restored = made()
    copied.copy_(parameters)
    restored.load_state_dict(optimizer.state_dict())
    for step in range(6, 9):
        for each in (optimizer, restored):
            each.step(drawn(step, lookup), learning_rate=RATE)
    assert torch.equal(parameters, copied)


def test_a_target_network_gets_all_rows_even_those_that_others_wrote():
    lookup, parameters, optimizer = made()
    target = parameters.clone()
    for step in range(1, 13):
        optimizer.step(drawn(step, lookup), learning_rate=RATE)
        if step == 7:
            parameters.view(-1, WIDTH)[3] = 1.0
        if step == 8:
            target.view(-1, WIDTH)[4] = 2.0
        if step % 2 == 0:
            optimizer.follow(target, 1.0)
            assert torch.equal(target, parameters)
    optimizer.step(drawn(13, lookup), learning_rate=RATE)
    expected = target.lerp(parameters, 0.25)
    optimizer.follow(target, 0.25)
    assert torch.equal(target, expected)


def test_a_target_network_stays_if_all_steps_were_skipped():
    lookup, parameters, optimizer = made()
    target = parameters.clone()
    optimizer.follow(target, 1.0)
    gradient = drawn(1, lookup)
    gradient.rest[:, 0] = torch.nan
    optimizer.step(gradient, learning_rate=RATE)
    optimizer.follow(target, 1.0)
    assert torch.equal(target, parameters)


def test_rows_are_not_remembered_where_a_whole_copy_takes_less_time():
    lookup, parameters, optimizer = made()
    target, most = parameters.clone(), SEEDS * HEADS * ENTRIES
    for step in range(1, 60):
        optimizer.step(drawn(step, lookup), learning_rate=RATE)
        assert sum(map(len, optimizer._stepped)) < most
        if step % 20 == 0:
            optimizer.follow(target, 1.0)
            assert torch.equal(target, parameters)


def test_second_moments_decay_even_if_steps_can_no_longer_be_counted():
    lookup, _, optimizer = made()
    optimizer.steps.fill_(2.0**24)
    optimizer.row_steps.fill_(2.0**24)
    gradient = drawn(1, lookup)
    gradient.rows.fill_(1.0)
    for _ in range(500):
        optimizer.step(RowGradient(*(part.clone() for part in gradient)), learning_rate=0.0)
    most = gradient.numbers[0].bincount().max().square().item()
    assert 0.9 * most < optimizer.row_second[0, :ENTRIES].max() <= most


def test_it_descends():
    shape = ActionValues(ENTRIES, 2, hidden=(8, 8), activation="relu", one_hot=True)
    parameters = shape.initial([torch.Generator().manual_seed(seed) for seed in range(2)])
    optimizer = shape.optimizer(parameters, epsilon=1e-8, max_grad_norm=None)
    assert isinstance(optimizer, StackedLookupAdam)
    bound, wanted = shape.bind(parameters), torch.arange(12.0).view(1, ENTRIES, 2)
    entries = torch.arange(ENTRIES).view(1, -1, 1).expand(2, -1, -1)
    for _ in range(400):
        networks = ValuePass(bound, entries)
        optimizer.step(networks.gradient((networks.values - wanted).square().sum()), learning_rate=1e-2)
    assert (bound(entries) - wanted).abs().max() < 0.3
