import math
from itertools import permutations

import pytest

from operant.language import verifiers
from operant.language.preferences import Completion, Item, PreferenceStore, SimulatedAnnotator
from operant.language.preferences.items import Presentation
from operant.language.tasks import writing

REWARDS = {"a": 0.0, "b": 0.5, "c": 1.5}
DRAWS = 4000


def reward(prompts, completions, completion_ids, **columns):
    assert len(prompts) == len(completions) == len(completion_ids)
    return [REWARDS.get(text) for text in completions]


def shown(texts, n=0):
    return Presentation(f"item {n}", "simulated", 0, "p", tuple(texts), tuple(range(len(texts))))


def answers(annotator, texts):
    return [annotator.answer(shown(texts, n)) for n in range(DRAWS)]


def share(found, wanted):
    return sum(answer == wanted for answer in found) / len(found)


def close(p):
    """Return four standard deviations of a share."""
    return pytest.approx(p, abs=4 * math.sqrt(max(p * (1 - p), 1e-3) / DRAWS))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("bias", [0.0, 0.7])
def test_two_are_chosen_between_as_bradley_and_terry_say(temperature, bias):
    found = answers(SimulatedAnnotator(reward, temperature=temperature, position_bias=bias), "ac")
    assert share(found, ("A", None)) == close(1 / (1 + math.exp((1.5 - bias) / temperature)))
    assert share(found, ("A", None)) + share(found, ("B", None)) == 1


def test_three_are_ranked_as_plackett_and_luce_say():
    found = answers(SimulatedAnnotator(reward), "abc")
    for order in permutations(range(3)):
        weights = [math.exp(REWARDS["abc"[i]]) for i in order]
        probability = weights[0] / sum(weights) * weights[1] / sum(weights[1:])
        ranks = tuple(order.index(i) + 1 for i in range(3))
        assert share(found, ("ranking", ranks)) == close(probability)


def test_without_temperature_it_is_always_right():
    annotator = SimulatedAnnotator(reward, temperature=0)
    assert set(answers(annotator, "ba")) == {("A", None)}
    assert set(answers(annotator, "bca")) == {("ranking", (2, 1, 3))}
    assert annotator.answer(shown(["a", "a"])) == ("tie", None)


def test_small_differences_are_ties():
    annotator = SimulatedAnnotator(reward, temperature=0, tie_threshold=0.6)
    assert annotator.answer(shown("ab")) == ("tie", None)
    assert annotator.answer(shown("abc")) == ("ranking", (3, 2, 1))
    assert SimulatedAnnotator(reward, temperature=0, tie_threshold=0.5).answer(shown("ab")) == ("B", None)


def test_errors_are_even_draws():
    found = answers(SimulatedAnnotator(reward, temperature=0, error_rate=0.4), "ac")
    assert share(found, ("A", None)) == close(0.2)


def test_none_may_be_good():
    annotator = SimulatedAnnotator(reward, temperature=0, both_bad_below=1.0)
    assert annotator.answer(shown("ab")) == ("both-bad", None)
    assert annotator.answer(shown("ac")) == ("B", None)


def test_items_without_a_reward_are_skipped():
    assert SimulatedAnnotator(reward).answer(shown(["a", "?"])) == ("skip", None)


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"tie_threshold": -0.1}, {"error_rate": 1.1}])
def test_wrong_settings(wrong):
    with pytest.raises(ValueError, match="temperature and tie_threshold must be at least 0"):
        SimulatedAnnotator(reward, **wrong)


def test_wrong_rewards():
    with pytest.raises(ValueError, match="gave 1 rewards for 2 completions"):
        SimulatedAnnotator(lambda **_: [1.0]).answer(shown("ab"))
    with pytest.raises(ValueError, match="rewards must be finite, got"):
        SimulatedAnnotator(lambda **_: [1.0, math.nan]).answer(shown("ab"))


def test_columns_reach_the_reward_function():
    def matches(prompts, completions, completion_ids, answer):
        return [float(text == right) for text, right in zip(completions, answer, strict=True)]

    annotator = SimulatedAnnotator(matches, temperature=0)
    assert annotator.answer(shown("45"), {"answer": "5"}) == ("B", None)


def test_verifiers_and_the_hidden_reward_can_be_asked():
    exact = SimulatedAnnotator(verifiers.exact(), temperature=0)
    assert exact.answer(shown("45"), {"answer": "4"}) == ("A", None)
    hidden = SimulatedAnnotator(writing.hidden, temperature=0)
    presentation = Presentation("i", "a", 0, "cat likes dog:", ("zzz", "the cat likes the dog."), (0, 1))
    assert hidden.answer(presentation) == ("B", None)


def items(count):
    return [Item.of(f"p{n}", [Completion(c, {"seed": n}) for c in "abc"[: 2 + n % 2]]) for n in range(count)]


def test_a_store_is_labeled_the_same_whatever_was_there(tmp_path):
    labels = []
    for name, parts in (("x", [items(20)]), ("y", [items(7), items(20)])):
        with PreferenceStore(tmp_path / name) as store:
            for part in parts:
                store.add_items(part)
                SimulatedAnnotator(reward).label(store, now=5.0)
            assert SimulatedAnnotator(reward).label(store) == []
            assert store.next_item("simulated") is None
            found = {e.item_id: (e.event_id, e.outcome, e.ranks, e.shown) for e in store.labels()}
            labels.append(found)
    assert len(labels[0]) == 20
    assert labels[0] == labels[1]


def test_a_noisy_annotator_differs_from_itself_and_a_sure_one_does_not(tmp_path):
    with PreferenceStore(tmp_path / "s.sqlite") as store:
        store.add_items(items(40))
        for temperature, name in ((0.0, "sure"), (5.0, "noisy")):
            annotator = SimulatedAnnotator(reward, name=name, temperature=temperature)
            first, again = annotator.label(store), annotator.label(store, repeat=True)
            assert [e.item_id for e in first] == [e.item_id for e in again]
            same = [a.ranks_of_item() == b.ranks_of_item() for a, b in zip(first, again, strict=True)]
            assert all(same) == (name == "sure")
