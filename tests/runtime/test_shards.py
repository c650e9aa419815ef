from dataclasses import dataclass, replace

import pytest
import torch

from operant import ops
from operant.runtime.shards import Alone, Shards, group, share, total, within
from runtime.teams import team


@dataclass(frozen=True)
class Batch:
    values: torch.Tensor
    weights: torch.Tensor | None = None

    def map(self, function):
        weights = None if self.weights is None else function(self.weights)
        return replace(self, values=function(self.values), weights=weights)


def means(batch):
    """Return a "gradient" of two parameters and one metric, all means over the samples of a seed."""
    mean = ops.weighted_mean(batch.values, batch.weights)
    square = ops.weighted_mean(batch.values.square(), batch.weights)
    return torch.stack((mean, square), dim=1), [mean]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("count", "size"), [(4, 1), (4, 2), (4, 3), (5, 2), (8, 8)])
def test_every_shard_belongs_to_one_process(count, size):
    assert [shard for rank in range(size) for shard in share(count, rank, size)] == list(range(count))
    sizes = [len(share(count, rank, size)) for rank in range(size)]
    assert max(sizes) - min(sizes) <= 1


def test_a_sum_is_added_in_pairs():
    # In float32 1e8 + 1 is 1e8: from left to right this would be (1e8 + 1 - 1e8) + 1 = 1, in pairs 0.
    assert total(torch.tensor([1e8, 1.0, -1e8, 1.0])).item() == 0.0
    assert total(torch.tensor([1.0, 2.0, 3.0])).item() == 6.0
    assert total(torch.tensor([[1.0, 2.0]])).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_mean_of_shards_is_that_of_the_batch(count):
    batch = Batch(random(3, 24))
    (whole, (number,)), (gradient, (beside,)) = means(batch), Shards(count, Alone()).mean(means, batch)
    torch.testing.assert_close(gradient, whole)
    torch.testing.assert_close(beside, number)


def test_shards_count_by_the_samples_in_them_that_count():
    weights = torch.ones(2, 8)
    weights[0, :4] = 0.0  # the whole first shard of the first seed
    weights[1, 5] = 0.0
    batch = Batch(random(2, 8), weights)
    gradient, (beside,) = Shards(2, Alone()).mean(means, batch)
    torch.testing.assert_close(gradient, means(batch)[0])
    torch.testing.assert_close(beside, batch.values.mul(weights).sum(1) / weights.sum(1))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_number_of_processes_changes_no_bit(size):
    batch = Batch(random(2, 64, seed=1) * 1e3)
    alone, _ = Shards(4, Alone()).mean(means, batch)
    for gradient, _ in team(size, lambda rank: Shards(4, rank).mean(means, batch)):
        assert torch.equal(gradient, alone)


def test_more_processes_than_shards_have_nothing_to_do():
    with pytest.raises(
        ValueError, match="2 processes need at least as many shards, but the run has 1: create it with --sha"
    ):
        team(2, lambda rank: Shards(1, rank))


def test_numbers_must_be_divisible_by_the_shards():
    with pytest.raises(ValueError, match="num_envs must be divisible by the number of shards, got 6 and 4"):
        Shards(4, Alone()).require_even(minibatch=8, num_envs=6)


def test_a_process_is_alone_outside_of_a_group():
    other = Alone()
    with within(other):
        assert group() is other
    assert group() is not other
    assert group().size == 1


def counted(function):
    """Return a function that counts its calls."""

    def call(batch):
        call.count += 1
        return function(batch)

    call.count = 0
    return call


def test_shards_are_computed_together_where_that_changes_no_bit(monkeypatch):
    monkeypatch.setattr("operant.nets.agreement.ENOUGH", 1)
    batch, shards = Batch(random(3, 64)), Shards(4, Alone())
    exact = Shards(4, Alone()).mean(means, batch)
    alone, stacked = counted(means), counted(means)  # the mean over a row does not depend on other rows
    for _ in range(3):
        gradient, (beside,) = shards.mean(alone, batch, stacked)
        assert torch.equal(gradient, exact[0])
        assert torch.equal(beside, exact[1][0])
    assert (alone.count, stacked.count) == (4, 3)


def test_shards_are_computed_one_by_one_where_together_would_change_a_bit():
    def other(batch):
        gradient, numbers = means(batch)
        return gradient.nextafter(torch.tensor(torch.inf)), numbers

    batch, shards = Batch(random(3, 64)), Shards(4, Alone())
    exact = Shards(4, Alone()).mean(means, batch)[0]
    alone, stacked = counted(means), counted(other)
    for _ in range(3):
        assert torch.equal(shards.mean(alone, batch, stacked)[0], exact)
    assert (alone.count, stacked.count) == (12, 1)
    assert torch.equal(shards.mean(alone, batch, counted(means), kind="another")[0], exact)


@pytest.mark.parametrize("count", [0, 2, 5, 9])
def test_every_item_is_computed_by_one_process(count):
    def squares(rank):
        own = []
        results = Shards(4, rank).map(lambda item: own.append(item) or torch.tensor(item**2), range(count))
        return own, [int(result) for result in results]

    for size in (1, 2, 3, 4):
        found = team(size, squares)
        assert [item for own, _ in found for item in own] == list(range(count))
        assert all(results == [item**2 for item in range(count)] for _, results in found)
    assert Shards(1, Alone()).map(lambda item: (item,), [1, 2]) == [(1,), (2,)]
