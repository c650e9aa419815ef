import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.runtime.checkpoints import Checkpoints
from operant.runtime.checkpoints import load as load_checkpoint
from operant.runtime.priorities import FAN, Priorities
from operant.state import clone


def streams(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def filled(capacity, seeds=2, *, alpha=0.7, invalid=0.1, seed=0):
    """Return priorities in which most places have errors, some are new and some must not be drawn."""
    generator = torch.Generator().manual_seed(seed)
    tree = Priorities(seeds=seeds, capacity=capacity, alpha=alpha)
    tree.insert(torch.arange(capacity), torch.rand(seeds, capacity, generator=generator) > invalid)
    index = torch.randint(capacity, (seeds, capacity), generator=generator)
    tree.update(index, torch.randn(seeds, capacity, generator=generator) * 5)
    return tree


@settings(deadline=None, max_examples=25)
@given(st.sampled_from((1, 2, FAN, FAN + 1, 700, FAN**2 + 3)), st.integers(0, 2**31), st.integers(1, 40))
def test_draws_equal_those_of_a_search_in_the_running_sums(capacity, seed, samples):
    tree = filled(capacity, seed=seed)
    index, probabilities = tree.draw(samples, streams(seed, seed + 1))
    for s, stream in enumerate(streams(seed, seed + 1)):
        leaves = tree.levels[0][s, :capacity]
        total = leaves.sum()
        uniform = torch.rand(samples, generator=stream, dtype=torch.float64)
        for j in range(samples):
            if total == 0:
                assert (index[s, j], probabilities[s, j]) == (0, 0)
                continue
            wanted = (j + uniform[j]) / samples * total
            found = int(index[s, j])
            below, above = leaves[:found].sum(), leaves[: found + 1].sum()
            assert below - 1e-9 * total <= wanted <= above + 1e-9 * total
            assert leaves[found] > 0
            assert probabilities[s, j] == pytest.approx(float(leaves[found] / total))


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**31))
def test_the_tree_holds_what_a_plain_table_holds(seed):
    generator = torch.Generator().manual_seed(seed)
    capacity, seeds, alpha = 300, 2, 0.6
    tree = Priorities(seeds=seeds, capacity=capacity, alpha=alpha, epsilon=1e-3)
    table, largest = [[0.0] * capacity for _ in range(seeds)], [1.0] * seeds
    for turn in range(6):
        start = 50 * turn
        valid = torch.rand(seeds, 50, generator=generator) > 0.2
        tree.insert(torch.arange(start, start + 50), valid)
        for s in range(seeds):
            for j in range(50):
                table[s][start + j] = largest[s] * float(valid[s, j])
        index = torch.stack([torch.randperm(start + 50, generator=generator)[:20] for _ in range(seeds)])
        errors = torch.randn(seeds, 20, generator=generator) * 3
        errors[:, 0] = torch.nan
        tree.update(index, errors)
        for s in range(seeds):
            for j in range(1, 20):
                place = int(index[s, j])
                if table[s][place]:
                    table[s][place] = (abs(float(errors[s, j])) + 1e-3) ** alpha
                    largest[s] = max(largest[s], table[s][place])
    torch.testing.assert_close(tree.levels[0][:, :capacity], torch.tensor(table, dtype=torch.float64))
    torch.testing.assert_close(tree.largest, torch.tensor(largest, dtype=torch.float64))
    for children, parents in zip(tree.levels[:-1], tree.levels[1:], strict=True):
        sums = children.view(seeds, -1, FAN).sum(-1)
        torch.testing.assert_close(parents[:, : sums.shape[1]], sums, rtol=1e-14, atol=0)


def test_frequencies_are_proportional_to_the_priorities():
    tree = Priorities(seeds=1, capacity=4, alpha=0.5, epsilon=1e-12)
    tree.insert(torch.arange(4), torch.tensor([[True, True, True, False]]))
    tree.update(torch.tensor([[0, 1, 2, 3]]), torch.tensor([[1.0, -4.0, 9.0, 100.0]]))
    index, probabilities = tree.draw(6000, streams(0))
    assert index[0].bincount(minlength=4).tolist() == pytest.approx([1000, 2000, 3000, 0], abs=1), "drawn in strata"
    torch.testing.assert_close(probabilities[0], (index[0] + 1).double() / 6)


def test_alpha_zero_draws_uniformly():
    tree = filled(200, alpha=0.0, invalid=0.0)
    index, probabilities = tree.draw(2000, streams(0, 1))
    counts = torch.stack([row.bincount(minlength=200) for row in index])
    assert ((counts - 10).abs() <= 1).all()
    torch.testing.assert_close(probabilities, torch.full_like(probabilities, 1 / 200))


def test_new_transitions_get_the_largest_priority_so_far():
    tree = Priorities(seeds=2, capacity=3, alpha=1.0, epsilon=1e-9)
    tree.insert(torch.tensor([0]), torch.ones(2, 1, dtype=torch.bool))
    tree.update(torch.tensor([[0], [0]]), torch.tensor([[7.0], [0.5]]))
    tree.insert(torch.tensor([1]), torch.ones(2, 1, dtype=torch.bool))
    assert tree.levels[0][:, 1].tolist() == pytest.approx([7.0, 1.0])


def test_rounding_never_leads_to_a_place_without_priority():
    tree = Priorities(seeds=1, capacity=FAN**2, alpha=1.0, epsilon=1e-300)
    tree.insert(torch.arange(0, FAN**2, 7), torch.ones(1, 586, dtype=torch.bool))
    tree.update(torch.arange(0, FAN**2, 7).unsqueeze(0), torch.logspace(-30, 20, 586).unsqueeze(0))
    index, probabilities = tree.draw(20_000, streams(0))
    assert (probabilities > 0).all()
    assert (index % 7 == 0).all()


@pytest.mark.parametrize("capacity", [5, 100])
def test_a_seed_without_anything_to_draw_leaves_the_others_alone(capacity):
    tree = Priorities(seeds=2, capacity=capacity, alpha=0.6)
    tree.insert(torch.arange(5), torch.tensor([[False] * 5, [True] * 5]))
    index, probabilities = tree.draw(10, streams(0, 1))
    assert not index[0].any()
    assert not probabilities[0].any()
    assert index[1].unique().tolist() == [0, 1, 2, 3, 4]
    assert tree.draw(2, streams(0, 1), otherwise=3)[0][0].tolist() == [3, 3]


def test_seeds_are_independent():
    both, second = filled(100, seeds=2), filled(100, seeds=2)
    alone = Priorities(seeds=1, capacity=100, alpha=0.7)
    for level, source in zip(alone.levels, both.levels, strict=True):
        level.copy_(source[1:])
    index, probabilities = both.draw(32, streams(4, 9))
    only, only_probabilities = alone.draw(32, streams(9))
    assert torch.equal(index[1:], only)
    torch.testing.assert_close(probabilities[1:], only_probabilities)
    both.update(index, torch.randn(2, 32, generator=torch.Generator().manual_seed(1)))
    assert not torch.equal(both.levels[0], second.levels[0])


def test_a_tree_resumes_bit_for_bit(tmp_path):
    first, second = filled(500), Priorities(seeds=2, capacity=500, alpha=0.7)
    second.load_state_dict(load_checkpoint(Checkpoints(tmp_path / "checkpoints").save(clone(first.state_dict()), 1)))
    for _ in range(3):
        (index, one), (other_index, other) = first.draw(32, streams(2, 3)), second.draw(32, streams(2, 3))
        assert torch.equal(index, other_index)
        assert torch.equal(one, other)
        for tree in (first, second):
            tree.update(index, one.float() * 100)
    assert torch.equal(first.levels[0], second.levels[0])


@pytest.mark.parametrize(
    ("name", "value"), [("capacity", 0), ("alpha", -0.1), ("alpha", 1.1), ("alpha", float("nan")), ("epsilon", 0.0)]
)
def test_invalid_values_are_rejected(name, value):
    with pytest.raises(ValueError, match=rf"{name} (must be|positive)"):
        Priorities(**{"seeds": 1, "capacity": 4, "alpha": 0.5, name: value})


def test_a_state_of_another_capacity_is_rejected():
    with pytest.raises(ValueError, match=r"'levels\.0'.* saved by a different configuration"):
        filled(FAN).load_state_dict(filled(FAN, seeds=1).state_dict())


def test_small_errors_count_as_the_least_one():
    tree = Priorities(seeds=1, capacity=4, alpha=0.5, least=1.0)
    tree.insert(torch.arange(4), torch.tensor([[True, True, True, False]]))
    tree.update(torch.arange(4).unsqueeze(0), torch.tensor([[0.01, -0.5, 4.0, 9.0]]))
    assert tree.levels[0][0, :4].tolist() == pytest.approx([1.0, 1.0, 2.0, 0.0], abs=1e-5)
    with pytest.raises(ValueError, match="least must be at least 0, got -1"):
        Priorities(seeds=1, capacity=4, alpha=0.5, least=-1.0)
