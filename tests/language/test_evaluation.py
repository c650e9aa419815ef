import pytest
import torch

from operant.language import evaluation
from operant.language.engines import NativeEngine, Sampling
from operant.language.evaluation import greedy, sampled
from operant.language.rewards import combine
from operant.language.rollouts import ask
from operant.language.tokenised import Prompt
from operant.language.tokens import encode_prompt


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
    assert greedy(model, prompts, combine([even]), max_tokens=9)[:2] == (scores, shown), "nothing is left to chance"


def test_only_some_answers_are_shown(make_model, prompts, monkeypatch):
    monkeypatch.setattr(evaluation, "SHOWN", 2)
    scores, shown, _ = greedy(make_model(), prompts, combine([even]), max_tokens=3)
    assert len(scores) == 7
    assert len({sample["prompt"] for sample in shown}) == 2


def test_an_answer_without_a_reward_scores_0(make_model, prompts):
    with pytest.warns(RuntimeWarning, match="no reward function applies"):
        scores, *_ = greedy(make_model(), prompts, combine([some]), max_tokens=3)
    assert scores == [1, 0, 1, 1, 1, 1, 1]


def test_what_many_answers_tell(make_model, prompts):
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
