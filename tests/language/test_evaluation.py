import math

import pytest
import torch

from operant.language import evaluation
from operant.language.engines import NativeEngine, Sampling
from operant.language.evaluation import greedy, sampled
from operant.language.examples import Prompt
from operant.language.rewards import combine
from operant.language.rollouts import ask
from operant.language.tokenizer import encode_prompt


def even(completions, completion_ids, **columns):
    return [float(len(ids) % 2 == 0) for ids in completion_ids]


def some(completions, **columns):
    return [None if i == 1 else 1.0 for i in range(len(completions))]


@pytest.fixture
def prompts(characters):
    texts = [f"{i}+{i}=" for i in range(7)]
    return [Prompt(encode_prompt(characters, text), {"prompt": text}) for text in texts]


def test_the_likeliest_answers_are_scored(make_model, prompts):
    model = make_model()
    scores, shown, _ = greedy(model, prompts, combine([even]), max_tokens=9)
    engine, sampling = NativeEngine(model), Sampling(max_tokens=9, temperature=0)
    found = ask(engine, prompts, 1, sampling, tokenizer=model.tokenizer, generator=torch.Generator())
    assert scores == [float(len(c.ids) % 2 == 0) for c in found.completions]
    first = [sample for sample in shown if sample["temperature"] == 0]
    assert [sample["prompt"] for sample in first] == [p.row["prompt"] for p in prompts]
    assert [sample["completion"] for sample in first] == found.texts
    assert [sample["reward"] for sample in first] == scores
    assert [sample["truncated"] for sample in first] == [c.truncated for c in found.completions]
    assert greedy(model, prompts, combine([even]), max_tokens=9)[:2] == (scores, shown), "greedy is deterministic"


def test_only_some_answers_are_shown(make_model, prompts, monkeypatch):
    monkeypatch.setattr(evaluation, "SHOWN", 2)
    scores, shown, _ = greedy(make_model(), prompts, combine([even]), max_tokens=3)
    assert len(scores) == 7
    assert len({sample["prompt"] for sample in shown}) == 2


def test_shown_answers_have_the_version_of_the_weights_if_there_is_one(make_model, prompts):
    _, shown, _ = greedy(make_model(), prompts, combine([even]), max_tokens=3, version=5)
    assert {sample["version"] for sample in shown} == {5}
    assert not any("version" in sample for sample in greedy(make_model(), prompts, combine([even]), max_tokens=3)[1])


def test_an_answer_without_a_reward_has_no_score(make_model, prompts):
    with pytest.warns(RuntimeWarning, match="no reward function applies"):
        scores, shown, _ = greedy(make_model(), prompts, combine([some]), max_tokens=3)
    assert str(scores) == "[1.0, nan, 1.0, 1.0, 1.0, 1.0, 1.0]"
    assert [sample["reward"] for sample in shown[:7]] == [1, None, 1, 1, 1, 1, 1]


def test_answers_without_a_reward_count_in_no_figure(make_model, prompts):
    none = None
    table = [[1.0, 0, none, 0], [none] * 4, [1, none, 0, 1]]
    given = [value for row in table for value in row]
    with pytest.warns(RuntimeWarning, match="no reward function applies"):
        found = sampled(
            make_model(), prompts[:3], combine([lambda completions, **_: given]), max_tokens=2, count=4, seed=0
        )
    assert found.average == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert found.missing == 6
    assert found.passes[1] == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert found.passes[2] == pytest.approx((2 / 3 + 1) / 2)
    assert math.isnan(found.passes[4])  # no prompt has four answers with a reward
    with pytest.warns(RuntimeWarning, match="no reward function applies"):
        nothing = sampled(
            make_model(), prompts[:1], combine([lambda completions, **_: [none] * 2]), max_tokens=2, count=2, seed=0
        )
    assert str([nothing.average, *nothing.interval, *nothing.passes.values()]) == str([math.nan] * 5)
    assert nothing.missing == 2


def test_one_named_reward_decides_what_passes(make_model, prompts):
    def right(completions, **_):
        return [1.0, 0.0] * (len(completions) // 2)

    def tidy(completions, **_):
        return [0.5] * len(completions)

    rewards = combine([right, tidy], [0.5, 1.0])  # a sum of 1 for right answers, and 0.5 for wrong ones
    options = {"max_tokens": 2, "count": 2, "seed": 0}
    assert sampled(make_model(), prompts[:2], rewards, **options).passes == {1: 0.5, 2: 1.0}
    found = sampled(make_model(), prompts[:2], rewards, decides="tidy", **options)
    assert (found.passes, found.pass_reward) == ({1: 0.0, 2: 0.0}, "tidy")
    with pytest.raises(ValueError, match="pass_reward is 'exact', expected a reward function of the run: right, tidy"):
        sampled(make_model(), prompts[:2], rewards, decides="exact", **options)


def test_statistics_of_several_answers_per_prompt(make_model, prompts):
    model = make_model()
    found = sampled(model, prompts, combine([even]), max_tokens=5, count=4, seed=3)
    again = sampled(model, prompts, combine([even]), max_tokens=5, count=4, seed=3)
    assert found == again
    assert found.samples == 4
    assert sorted(found.passes) == [1, 2, 4]
    assert found.passes[1] == pytest.approx(found.average)
    assert found.passes[1] <= found.passes[2] <= found.passes[4] <= 1
    assert found.interval[0] <= found.average <= found.interval[1]


def test_passes_by_hand(make_model, prompts):
    right = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]]).flatten().tolist()
    found = sampled(make_model(), prompts[:3], combine([lambda completions, **_: right]), max_tokens=2, count=4, seed=0)
    assert found.average == pytest.approx(4 / 12)
    assert found.passes == {
        1: pytest.approx(4 / 12),
        2: pytest.approx((0.5 + 0 + 1) / 3),
        4: pytest.approx(2 / 3),
    }
