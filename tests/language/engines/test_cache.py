import pytest
import torch

from operant.language.engines.cache import STEP, Slots


class Twin:
    """Reference with lists of keys and values, which attends to one token after another."""

    def __init__(self, slots):
        self.slots, self.rows = slots, []

    def fill(self, prompts, which):
        """Add sequences that begin with some of the prompts, with given keys and values."""
        stored = [(torch.cat([p[0] for p in prompts]), torch.cat([p[1] for p in prompts]))]
        starts = [sum(len(p[0]) for p in prompts[:i]) for i in which]
        self.slots.fill(stored, starts, [len(prompts[i][0]) for i in which])
        self.rows += [tuple(t.clone() for t in prompts[i]) for i in which]

    def step(self, generator, *, heads, key_heads, window=None):
        """Compare one token of every sequence."""
        positions = self.slots.begin()
        assert positions.tolist() == [len(keys) for keys, _ in self.rows]
        n = len(self.rows)
        queries, keys, values = (torch.randn(n, h, 4, generator=generator) for h in (heads, key_heads, key_heads))
        found = self.slots.attend(0, queries, keys, values, scale=0.5, window=window)
        self.rows = [
            (torch.cat([k, keys[i : i + 1]]), torch.cat([v, values[i : i + 1]])) for i, (k, v) in enumerate(self.rows)
        ]
        share = heads // key_heads
        for row, (seen_keys, seen_values) in enumerate(self.rows):
            last = slice(-window, None) if window else slice(None)
            for head in range(heads):
                products = seen_keys[last, head // share] @ queries[row, head] * 0.5
                expected = products.softmax(0) @ seen_values[last, head // share]
                torch.testing.assert_close(found[row, head], expected, atol=1e-5, rtol=1e-5)

    def keep(self, counts):
        order = self.slots.keep(counts)
        assert sorted(order) == [slot for slot, count in enumerate(counts) for _ in range(count)]
        self.rows = [self.rows[p] for p in order]
        assert self.slots.used == len(order)


def prompts(generator, lengths, key_heads=2):
    return [tuple(torch.randn(n, key_heads, 4, generator=generator) for _ in range(2)) for n in lengths]


@pytest.mark.parametrize("window", [None, 1, 3, 1000])
@pytest.mark.parametrize(("heads", "key_heads"), [(2, 2), (4, 2), (3, 1)])
def test_each_sequence_attends_to_itself(heads, key_heads, window):
    generator = torch.Generator().manual_seed(0)
    twin = Twin(Slots(6))
    twin.fill(prompts(generator, [3, 1, 7], key_heads), [0, 0, 1, 2])
    for _ in range(3):
        twin.step(generator, heads=heads, key_heads=key_heads, window=window)


def test_sequences_of_one_length_need_no_mask():
    generator = torch.Generator().manual_seed(0)
    twin = Twin(Slots(4))
    twin.fill(prompts(generator, [5]), [0, 0, 0, 0])
    for _ in range(3):
        twin.step(generator, heads=2, key_heads=2)


@pytest.mark.parametrize("seed", range(5))
def test_sequences_come_and_go_in_any_order(seed):
    generator = torch.Generator().manual_seed(seed)
    twin = Twin(Slots(5))
    for _ in range(25):
        free = 5 - len(twin.rows)
        if free and torch.rand((), generator=generator) < 0.6:
            lengths = torch.randint(1, 9, (2,), generator=generator).tolist()
            which = torch.randint(0, 2, (free,), generator=generator).sort().values.tolist()
            twin.fill(prompts(generator, lengths), which)
        if twin.rows:
            twin.step(generator, heads=2, key_heads=2)
            counts = [*(torch.rand(len(twin.rows), generator=generator) < 0.6).long().tolist()]
            if sum(counts) < 5 and any(counts):
                counts[counts.index(1)] += int(torch.randint(6 - sum(counts), (), generator=generator))
            twin.keep(counts)


def test_room_grows_and_keeps_what_is_there():
    generator = torch.Generator().manual_seed(0)
    twin = Twin(Slots(3))
    twin.fill(prompts(generator, [STEP - 2, 1]), [0, 1])
    for _ in range(STEP + 5):
        twin.step(generator, heads=2, key_heads=2)
    twin.fill(prompts(generator, [3 * STEP]), [0])
    twin.step(generator, heads=2, key_heads=2)


def test_copies_of_a_sequence_go_their_own_ways():
    generator = torch.Generator().manual_seed(0)
    twin = Twin(Slots(6))
    twin.fill(prompts(generator, [3, 1, 7]), [0, 1, 2])
    twin.step(generator, heads=2, key_heads=2)
    twin.keep([0, 2, 3])
    for counts in ([1, 1, 1, 1, 1], [0, 2, 1, 0, 1], [2, 1, 0, 3]):
        twin.step(generator, heads=2, key_heads=2)
        twin.keep(counts)
    twin.step(generator, heads=2, key_heads=2)


def test_keeping_returns_what_each_slot_continues():
    slots = Slots(5)
    stored = [(torch.arange(5.0).view(5, 1, 1), torch.arange(5.0).view(5, 1, 1))]
    slots.fill(stored, [0, 1, 2, 3, 4], [1] * 5)
    assert slots.keep([1, 0, 1, 1, 0]) == [0, 3, 2]
    assert slots.keep([0, 3, 1]) == [1, 1, 2, 1]
    assert slots.keep([0, 0, 0, 0]) == []
    slots.fill(stored, [2], [1])
    assert slots.used == 1
