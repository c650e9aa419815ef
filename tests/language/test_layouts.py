import json
import logging

import pytest

from operant.language.data import ACCEPTS, compare, kind, read_rows
from operant.language.examples import pairs, rankings
from operant.language.layouts import standard
from operant.language.preferences import PreferenceStore, import_file

ENDS = {2}


def rated(response, overall, rating="3", **more):
    """Return a completion in the format of openbmb/UltraFeedback."""
    aspects = ("instruction_following", "honesty", "truthfulness", "helpfulness")
    return {
        "annotations": {aspect: {"Rating": rating, "Rationale": "because"} for aspect in aspects},
        "custom_system_prompt": "Be helpful.",
        "model": "llama-2-7b-chat",
        "principle": "helpfulness",
        "response": response,
        "critique": "good",
        "overall_score": overall,
        "fine-grained_score": 3.5,
    } | more


ULTRAFEEDBACK = {
    "source": "sharegpt",
    "instruction": "2+2=",
    "models": ["a", "b", "c", "d"],
    "completions": [rated("5", 3.0), rated("4", 8.5), rated("four", 8.5), rated("fish", 1.0)],
    "correct_answers": ["None"],
    "incorrect_answers": ["None"],
}
SIDES = {
    side: [{"content": "2+2=", "role": "user"}, {"content": text, "role": "assistant"}]
    for side, text in (("chosen", "4"), ("rejected", "5"))
}
BINARIZED = {
    "prompt": "2+2=",
    "prompt_id": "f0e37e9f",
    **SIDES,
    "messages": SIDES["chosen"],
    "score_chosen": 8.5,
    "score_rejected": 3.0,
}
ARGILLA = {
    "source": "sharegpt",
    "instruction": "2+2=",
    "chosen_response": "4",
    "rejected_response": "5",
    "chosen_avg_rating": 5.0,
    "rejected_avg_rating": 2.25,
    "chosen_model": "wizardlm-7b",
}
CLEANED = {
    "source": "sharegpt",
    "prompt": "2+2=",
    **SIDES,
    "chosen-rating": 5.0,
    "chosen-model": "wizardlm-7b",
    "rejected-rating": 2.25,
    "rejected-model": "bard",
}
DISTILABEL = {
    "instruction": "2+2=",
    "generations": ["5", "4", None, "fish"],
    "model_names": ["a", "b", "c", "d"],
    "distilabel_metadata": {},
    "ratings": [2, 5, 4, 1],
    "rationales": ["", "", "", ""],
    "model_name": "judge",
}
ORCA = {"system": "Be brief.", "question": "2+2=", "chosen": "4", "rejected": "5"}
INTEL = {"system": "", "input": "2+2=", "chosen": "4", "rejected": "5", "generations": ["4", "5"], "ratings": [9, 1]}
SUMMARIES = {
    "info": {"id": "t3_1", "post": "I went out.", "title": "A walk", "subreddit": "AskReddit", "site": None},
    "summaries": [{"text": " He stayed.", "policy": "sup1"}, {"text": " He walked.", "policy": "ref"}],
    "choice": 1,
    "worker": "w",
    "batch": "b",
    "split": "train",
    "extra": {"confidence": None},
}
HH = {
    "chosen": "\n\nHuman: 2+2?\n\nAssistant: 4",
    "rejected": "\n\nHuman: 2+2?\n\nAssistant: 5",
}
USER = {"role": "user", "content": "2+2="}


def said(text):
    return text if isinstance(text, str) else text[-1]["content"]


@pytest.mark.parametrize("row", [BINARIZED, ARGILLA, CLEANED, ORCA, INTEL, SUMMARIES, HH])
def test_layouts_of_pairs(row, words, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    rows = read_rows(tmp_path / "rows.jsonl")
    assert kind(rows, accept=ACCEPTS["dpo"]) == kind(rows, accept=ACCEPTS["reward-model"]) == "preference"
    prompt, chosen, rejected = compare(rows[0])
    wanted = (" He walked.", " He stayed.") if row is SUMMARIES else ("4", "5")
    assert (said(chosen).removeprefix(" "), said(rejected).removeprefix(" ")) == tuple(map(str.lstrip, wanted))
    if row not in (SUMMARIES, HH):
        assert said(prompt) == "2+2="
    (pair,) = pairs(words, rows, eos_ids=ENDS)
    assert pair.chosen != pair.rejected


def test_a_prompt_next_to_conversations_becomes_one():
    assert compare(BINARIZED).prompt == [{"content": "2+2=", "role": "user"}]
    assert standard(BINARIZED) is BINARIZED


def test_systems_of_orca():
    assert standard(ORCA) == {
        "prompt": [{"role": "system", "content": "Be brief."}, USER],
        "chosen": [{"role": "assistant", "content": "4"}],
        "rejected": [{"role": "assistant", "content": "5"}],
    }
    assert (standard(INTEL) or {})["prompt"] == [USER]
    assert (standard({"input": "2", "chosen": "a", "rejected": "b"}) or {})["prompt"] == "2"
    held = {"question": "2?", "chosen": "2? yes", "rejected": "2? no"}
    assert standard(held) is held, "both sides contain the prompt"


def test_the_input_of_an_instruction_belongs_to_the_prompt():
    row = {"instruction": "Translate.", "input": "Bonjour", "chosen": "Hello", "rejected": "Bye"}
    assert standard(row) == {"prompt": "Translate.\nBonjour", "chosen": "Hello", "rejected": "Bye"}
    assert (standard(row | {"input": ""}) or {})["prompt"] == "Translate."
    assert (standard(row | {"input": "Translate."}) or {})["prompt"] == "Translate."
    ranked = {"instruction": "Translate.", "input": "Bonjour", "generations": ["Hello", "Bye"], "ratings": [2, 1]}
    assert (standard(ranked) or {})["prompt"] == "Translate.\nBonjour"


def test_a_comparison_of_summaries():
    row = standard(SUMMARIES) or {}
    assert row["prompt"] == "SUBREDDIT: r/AskReddit\nTITLE: A walk\nPOST: I went out.\nTL;DR:"
    assert (row["chosen"], row["rejected"], row["worker"]) == (" He walked.", " He stayed.", "w")
    article = {"info": {"article": "A text."}, "summaries": SUMMARIES["summaries"], "choice": 0}
    assert (standard(article) or {})["prompt"] == "POST: A text.\nTL;DR:"


@pytest.mark.parametrize("row", [ULTRAFEEDBACK, DISTILABEL])
def test_layouts_of_rankings(row, characters, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    rows = read_rows(tmp_path / "rows.jsonl")
    assert kind(rows, accept=ACCEPTS["dpo"]) == kind(rows, accept=ACCEPTS["reward-model"]) == "ranking"
    ranks = {"5": 2, "4": 1, "four": 1, "fish": 3} if row is ULTRAFEEDBACK else {"5": 2, "4": 1, "fish": 3}
    assert dict(zip(rows[0]["completions"], rows[0]["ranks"], strict=True)) == ranks
    assert rows[0]["prompt"] == "2+2="
    (ranking,) = rankings(characters, rows, eos_ids=ENDS)
    assert [characters.decode(ids) for ids in ranking.completions][-1] == "fish<eos>"
    (pair,) = pairs(characters, rows, eos_ids=ENDS)
    assert [characters.decode(ids) for ids in (pair.chosen, pair.rejected)] == ["4<eos>", "fish<eos>"]


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({"overall_score": None}, [2, 1]),
        ({"overall_score": None, "fine-grained_score": None}, [2, 1]),
        ({"overall_score": "N/A", "fine-grained_score": float("nan"), "annotations": None}, None),
    ],
)
def test_scores_that_are_missing_are_replaced_by_finer_ones(changes, ranks):
    worse = rated("5", 9.0, "2", **{"fine-grained_score": 2.0} | changes)
    better = rated("4", 1.0, "N/A", **{"fine-grained_score": 4.0} | changes)
    if better["annotations"] is not None:
        better["annotations"]["honesty"]["Rating"] = "5"
    row = standard(ULTRAFEEDBACK | {"completions": [worse, better]})
    assert (None if row is None else row["ranks"]) == ranks


def test_rows_that_compare_nothing_are_left_out(tmp_path, caplog):
    rows = [ULTRAFEEDBACK, ULTRAFEEDBACK | {"completions": []}, DISTILABEL | {"ratings": [None] * 4}]
    with caplog.at_level(logging.WARNING):
        assert len(read_rows(rows)) == 1
    assert "Left out 2 of 3 rows: fewer than two completions with a score." in caplog.text
    with pytest.raises(ValueError, match="has no rows that compare completions"):
        read_rows(rows[1:])


def test_all_tied_rankings_are_left_out_of_pairs(characters, caplog):
    tied = {"prompt": "p", "completions": ["a", "b"], "ranks": [1, 1]}
    with caplog.at_level(logging.WARNING):
        assert len(pairs(characters, [tied, {"prompt": "p", "completions": ["a", "b"]}], eos_ids=ENDS)) == 1
    assert "1 with no completion that is better than another" in caplog.text


@pytest.mark.parametrize("row", [BINARIZED, ARGILLA, CLEANED, ORCA, SUMMARIES, ULTRAFEEDBACK, DISTILABEL])
@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_layouts_are_imported_as_labels(row, tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    path.write_text(json.dumps([row] if ending == "json" else row))
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        assert import_file(store, path).events == 1
        assert import_file(store, path).events == 0
        (item,), (event,) = store.items(), store.labels()
        ranks = dict(zip((said(c.text) for c in item.completions), event.ranks_of_item() or (), strict=True))
        best = " He walked." if row is SUMMARIES else "4"
        assert ranks[best] == min(ranks.values())
        assert all(isinstance(c.text, str) or len(c.text) == 1 for c in item.completions), "without the prompt"


def test_a_split_for_preferences_stands_in_for_train():
    parts = {"train_sft": [{"prompt": "no", "completion": "no"}], "train_prefs": [BINARIZED], "test_prefs": []}
    assert read_rows(parts) == [BINARIZED]
    assert read_rows(parts, split="train_sft")[0]["prompt"] == "no"
