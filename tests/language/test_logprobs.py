"""Log-probabilities and values of tokens under policy, reference and critic, and the division of a batch."""

import pytest
import torch

from operant.language.critic import Critic
from operant.language.logprobs import check_reference, flat, measure, plans, read
from operant.language.models import Reference
from operant.language.packing import Sample

SAMPLES = [
    Sample([1, 10], [20, 21, 2]),
    Sample([1, 10], [22, 2]),
    Sample([1, 11, 12], [23]),
    Sample([1, 11, 12], [24, 25, 26, 2]),
    Sample([1, 13], [2]),
]
OWNERS = [0, 0, 1, 1, 4]


def positions(plan):
    return [i for step in plan for part in step for i in part]


def test_every_epoch_uses_every_sample_once_in_another_order():
    found = plans(SAMPLES * 4, [4 * k + i for k in range(4) for i in OWNERS], 6, 3, tokens=100, seed=3)
    assert len(found) == 6
    assert all(sorted(positions(plan)) == list(range(20)) for plan in found)
    assert len({tuple(positions(plan)) for plan in found}) > 1
    assert found == plans(SAMPLES * 4, [4 * k + i for k in range(4) for i in OWNERS], 6, 3, tokens=100, seed=3)


def test_the_answers_to_a_prompt_stay_together():
    for plan in plans(SAMPLES, OWNERS, 5, 2, tokens=100, seed=0):
        assert len(plan) == 2
        order = [OWNERS[i] for i in positions(plan)]
        assert [owner for i, owner in enumerate(order) if i == 0 or order[i - 1] != owner] == list(dict.fromkeys(order))


@pytest.mark.parametrize(("prompts", "asked", "sizes"), [(10, 8, [1, 1, 1, 2, 1, 1, 1, 2]), (12, 4, [3] * 4)])
def test_there_are_as_many_minibatches_as_asked_for(prompts, asked, sizes):
    (plan,) = plans(SAMPLES[:1] * prompts, range(prompts), 1, asked, tokens=100, seed=0)
    assert [sum(map(len, step)) for step in plan] == sizes


def test_there_are_no_more_minibatches_than_prompts():
    (plan,) = plans(SAMPLES, OWNERS, 1, 50, tokens=100, seed=0)
    assert sorted(len([i for part in step for i in part]) for step in plan) == [1, 2, 2]


@pytest.mark.parametrize("tokens", [1, 7, 1000])
def test_measuring_does_not_depend_on_how_a_batch_is_divided(make_model, tokens):
    model = make_model()
    critic = Critic.copy_of(model)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    (plan,) = plans(SAMPLES, OWNERS, 1, 2, tokens=tokens, seed=0)
    found = measure(model, Reference(model), critic, SAMPLES, plan, temperature=0.7)
    for i, sample in enumerate(SAMPLES):
        ids = torch.tensor([[*sample.prompt, *sample.completion]])
        with torch.no_grad():
            logits = model.network(input_ids=ids).logits[0] / 0.7
            hidden = model.network.model(input_ids=ids).last_hidden_state[0]
        start = len(sample.prompt)
        expected = logits.log_softmax(-1)[start - 1 : -1].gather(1, ids[0, start:, None]).squeeze(1)
        torch.testing.assert_close(found.log_probs[i], expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(found.ref_log_probs[i], found.log_probs[i])
        values = critic.head(hidden).detach()
        torch.testing.assert_close(found.values[i], values[start - 1 : -1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.after[i], values[-1], rtol=1e-4, atol=1e-5)


def test_a_second_pass_is_the_same_bit_for_bit(make_model):
    model = make_model()
    (plan,) = plans(SAMPLES, OWNERS, 1, 1, tokens=12, seed=0)
    found = measure(model, Reference(model), Critic.sharing(model), SAMPLES, plan, temperature=1.0)
    for part in plan[0]:
        _, _, again, _ = read(model, SAMPLES, part, temperature=1.0)
        assert torch.equal(again.detach(), flat(part, found.log_probs))


def test_a_policy_that_differs_from_its_reference_is_reported_at_the_start():
    check_reference([torch.zeros(3), torch.zeros(1)])
    with pytest.raises(ValueError, match=r"a log-probability is 0\.25 off: the model is not deterministic"):
        check_reference([torch.zeros(3), torch.tensor([0.0, -0.25])])


def test_token_values_are_concatenated_in_the_order_of_the_part():
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    assert flat([1, 0], rows).tolist() == [3.0, 1.0, 2.0]
