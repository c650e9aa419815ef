import math

import pytest
import torch

from operant.language.grpo_batch import TokenStats, clipped
from operant.language.packing import Sample
from operant.language.rlhf_batch import RLHFBatch


@pytest.fixture
def batch():
    """Return two answers of two tokens and one, to different prompts."""
    samples = [Sample([1], [5, 2]), Sample([1, 3], [6])]

    def rows(*numbers):
        return [torch.tensor(numbers[:2]), torch.tensor(numbers[2:])]

    return RLHFBatch(
        samples,
        [[[[0], [1]]]],
        behavior=rows(-1.0, -2.0, -3.0),
        old=rows(-1.1, -2.1, -3.1),
        values=rows(0.1, 0.2, 0.3),
        advantages=rows(1.0, -1.0, 2.0),
        trust=rows(0.5, 1.0, 2.0),
        targets=rows(1.1, -0.8, 2.3),
        rewards=rows(0.0, 1.0, 0.5),
        kl=rows(0.01, 0.02, 0.03),
        scores=torch.tensor([1.0, 0.5]),
        owners=[0, 3],
        group=1,
        versions=[4, 4],
    )


def test_the_loss_sees_advantages_times_importance_weights(batch):
    assert batch.weighted([0]).tolist() == [0.5, -1.0]
    assert batch.weighted([1, 0]).tolist() == [4.0, 0.5, -1.0]
    assert batch.parts == [[0], [1]]


def test_token_stats_are_those_of_the_part_without_a_graph(batch):
    new = torch.tensor([-3.0], requires_grad=True)
    found = batch.token_stats([1], new, new + 4, torch.tensor([0.5]), -new)
    assert not any(column.requires_grad for column in found)
    assert found.ratios.tolist() == pytest.approx([0.1])
    columns = (found.before, found.behavior, found.advantages, found.trust, found.kl, found.policy, found.reference)
    assert [column.item() for column in columns] == pytest.approx([-3.1, -3.0, 2.0, 2.0, 0.03, 3.0, 0.0])


def test_a_record_has_no_steps_yet_and_without_a_range_nothing_is_clipped(batch):
    found = batch.record((0.2, 0.3))
    assert (found.steps, found.found, found.owners, found.clip, found.reference) == ([], [], [0, 3], (0.2, 0.3), False)
    assert found.columns["reward"] is batch.rewards
    low, high = batch.record(None).clip
    far = TokenStats(*[torch.tensor([1.0, -1.0])] * 10)._replace(ratios=torch.tensor([50.0, -50.0]))
    assert not any(side.any() for side in clipped(far.ratios, far.advantages, clip_low=low, clip_high=high))
    assert high == math.inf
