import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from operant.language.preferences import (
    ConflictError,
    PreferenceStore,
    StoreError,
    agreement,
    export,
    new_event_id,
)
from operant.web import labels
from operant.web.worker import answer
from operant.web.workers import NotFoundError
from web.folders import make_run  # type: ignore[import-not-found]

PROMPTS = ("1+1=", "2+2=", "<script>alert(1)</script>")
REPEATING = """
import sys
from operant.language.preferences import PreferenceStore

PreferenceStore(sys.argv[1]).next_item("ann", repeat=True)
print("shown", flush=True)
sys.stdin.read()
"""


def test_the_page_accepts_names_as_long_as_the_server_does():
    script = (Path(labels.__file__).parent / "static" / "js" / "labels.js").read_text(encoding="utf-8")
    assert f"maxLength: {labels.LONGEST_NAME}," in script


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a run of three prompts with two answers each."""
    run = make_run(tmp_path / "runs" / "spoken", [[0.5]])
    with run.samples_path.open("w", encoding="utf-8") as file:
        for prompt in PROMPTS:
            for i, text in enumerate((f"{prompt}right", f"{prompt}wrong")):
                sample = {"consumed": 5, "seed": 0, "prompt": prompt, "completion": text, "reward": 1.0 - i}
                file.write(json.dumps(sample | {"truncated": False, "temperature": 0.0}) + "\n")
    yield tmp_path / "runs"
    for database in [path for path in labels._open if path.is_relative_to(tmp_path)]:
        labels._open.pop(database).close()


def record(folder, item, outcome, *, annotator="ann", event_id=None, **more):
    event_id = event_id or new_event_id()
    return labels.record(folder, "spoken", annotator, item["id"], outcome, event_id, 1.5, **more)


def stored(folder):
    with PreferenceStore(folder / "spoken" / "preferences.sqlite") as store:
        return store.labels()


def test_runs_with_answers_are_offered(folder):
    make_run(folder / "silent", [[0.5]])
    assert labels.index(folder) == {"runs": ["spoken"], "folder": str(folder)}


def test_every_item_is_asked_once_and_every_answer_is_on_the_disk(folder):
    state, seen = labels.following(folder, "spoken", "ann"), []
    assert (state["answered"], state["items"]) == (0, 3)
    for count, outcome in enumerate(("A", "tie", "both-bad"), 1):
        seen.append(state["item"]["prompt"])
        state = record(folder, state["item"], outcome)
        assert state["saved"]
        assert state["answered"] == count == len(stored(folder))
    assert sorted(seen) == sorted(PROMPTS)
    assert state["item"] is None
    assert [event.outcome for event in stored(folder)] == ["A", "tie", "both-bad"]


def test_answers_of_later_evaluations_are_asked_on_an_open_page(folder):
    state = labels.following(folder, "spoken", "ann")
    for _ in PROMPTS:
        state = record(folder, state["item"], "A")
    assert state["item"] is None
    with (folder / "spoken" / "eval" / "samples.jsonl").open("a", encoding="utf-8") as file:
        for text in ("later", "latest"):
            sample = {"consumed": 9, "seed": 0, "prompt": "3+3=", "completion": text, "reward": 1.0}
            file.write(json.dumps(sample | {"truncated": False, "temperature": 0.0}) + "\n")
    state = labels.following(folder, "spoken", "ann")
    assert (state["item"]["prompt"], state["answered"], state["items"]) == ("3+3=", 3, 4)


def test_the_page_does_not_learn_what_wrote_an_answer(folder):
    state = labels.following(folder, "spoken", "ann")
    assert set(state["item"]) == {"id", "round", "prompt", "completions"}
    assert "reward" not in json.dumps(state)


def test_an_answer_is_in_terms_of_what_was_shown(folder):
    state = labels.following(folder, "spoken", "ann")
    record(folder, state["item"], "B")
    (event,) = stored(folder)
    with PreferenceStore(folder / "spoken" / "preferences.sqlite") as store:
        item = store.item(event.item_id)
    assert item.completions[event.shown[1]].text == state["item"]["completions"][1]
    assert event.answered_at - event.shown_at == pytest.approx(1.5)


def test_an_answer_that_is_sent_again_is_one_answer(folder):
    item = labels.following(folder, "spoken", "ann")["item"]
    first = record(folder, item, "A", event_id="the-same")
    again = record(folder, item, "A", event_id="the-same")
    assert first == again
    assert len(stored(folder)) == 1


def test_another_answer_to_the_same_item_is_rejected(folder):
    item = labels.following(folder, "spoken", "ann")["item"]
    record(folder, item, "A", event_id="one")
    for event_id, outcome in (("two", "B"), ("one", "B")):
        with pytest.raises(ConflictError, match="ann has labeled this item in another window"):
            record(folder, item, outcome, event_id=event_id)
    arguments = {"run": "spoken", "annotator": "ann", "item_id": item["id"], "outcome": "B", "event_id": "x"}
    assert answer(folder, json.dumps(["labels.record", arguments | {"seconds": 1}]).encode())[0] == 409
    assert [event.outcome for event in stored(folder)] == ["A"]


def test_an_answer_that_is_undone_is_asked_again(folder):
    item = labels.following(folder, "spoken", "ann")["item"]
    record(folder, item, "A")
    undone = labels.undo(folder, "spoken", "ann", new_event_id())
    assert (undone["undone"], undone["item"], undone["answered"]) == (True, item, 0)
    assert labels.undo(folder, "spoken", "ann", new_event_id()) == {"undone": False}
    assert labels.undo(folder, "spoken", "bob", new_event_id()) == {"undone": False}


def test_an_item_that_another_process_repeats_waits_in_that_round_only(folder):
    state = labels.following(folder, "spoken", "ann")
    while state["item"]:
        state = record(folder, state["item"], "A")
    command = [sys.executable, "-c", REPEATING, str(folder / "spoken" / "preferences.sqlite")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "shown\n"
        assert labels.following(folder, "spoken", "ann")["waiting"] == 0
        state = labels.following(folder, "spoken", "ann", repeat=True)
        while state["item"]:
            state = record(folder, state["item"], "A", round=1)
        assert state["waiting"] == 1


def test_annotators_share_the_work(folder):
    first = labels.following(folder, "spoken", "ann")["item"]
    assert labels.following(folder, "spoken", "bob")["item"]["id"] != first["id"]


def test_labels_that_cannot_be_stored_raise_an_error(folder):
    item = labels.following(folder, "spoken", "ann")["item"]
    (folder / "spoken" / "preferences.sqlite").rename(folder / "spoken" / "moved.sqlite")
    with pytest.raises(StoreError):
        record(folder, item, "A")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"run": "nothing"}, NotFoundError),
        ({"run": "../spoken"}, NotFoundError),
        ({"item_id": "nothing"}, NotFoundError),
        ({"outcome": "C"}, ValueError),
        ({"annotator": ""}, ValueError),
        ({"ranks": [1, 2]}, ValueError),
    ],
)
def test_an_answer_that_makes_no_sense(folder, change, error):
    item = labels.following(folder, "spoken", "ann")["item"]
    arguments = {"run": "spoken", "annotator": "ann", "item_id": item["id"], "outcome": "A", "event_id": "e"}
    with pytest.raises(error):
        labels.record(folder, **(arguments | change), seconds=1.0)
    assert stored(folder) == []


def label_all(folder, annotator, outcomes, **more):
    state = labels.following(folder, "spoken", annotator, overlap=2, **more)
    for outcome in outcomes:
        chosen = outcome(state["item"]) if callable(outcome) else outcome
        state = record(folder, state["item"], chosen, annotator=annotator, overlap=2, round=state["item"]["round"])
    assert state["item"] is None
    return state


def right(item):
    return "AB"[[text.endswith("right") for text in item["completions"]].index(True)]


def wrong(item):
    return "AB"[[text.endswith("wrong") for text in item["completions"]].index(True)]


def test_agreement_is_that_of_the_library(folder):
    assert labels.overview(folder, "spoken")["annotators"] == []
    label_all(folder, "ann", [right, right, wrong])
    label_all(folder, "bob", [right, right, right])
    found = labels.overview(folder, "spoken")
    with PreferenceStore(folder / "spoken" / "preferences.sqlite") as store:
        report = agreement(store.items(), store.labels())
    assert found["items"] == 3
    assert found["annotators"] == [{"name": "ann", "labels": 3}, {"name": "bob", "labels": 3}]
    values = {one["name"]: one["value"] for one in found["statistics"]}
    assert values["percent agreement"] == pytest.approx(2 / 3)
    assert values["Krippendorff's alpha"] == report.alpha.value
    assert "Cohen's kappa, ann and bob" in values
    assert sum(found["outcomes"].values()) == 6


def test_labeled_items_can_be_asked_again(folder):
    label_all(folder, "ann", [right] * 3)
    state = label_all(folder, "ann", [right] * 3, repeat=True)
    assert state["answered"] == 6
    found = labels.overview(folder, "spoken")
    assert found["annotators"] == [{"name": "ann", "labels": 3}]
    (steady,) = [one for one in found["statistics"] if one["name"] == "same answer to repeated questions, ann"]
    assert (steady["value"], steady["count"]) == (1.0, 3)


@pytest.mark.parametrize("form", ["pairs", "rankings", "events"])
@pytest.mark.parametrize("held_out", ["with", "without", "only"])
def test_the_file_is_that_of_the_command(folder, tmp_path, form, held_out):
    label_all(folder, "ann", [right, "tie", right])
    found = labels.exported(folder, "spoken", form, held_out)
    with PreferenceStore(folder / "spoken" / "preferences.sqlite") as store:
        written = export(store, tmp_path / "file.jsonl", form=form, held_out=held_out)
    assert found["text"] == written.path.read_text()
    assert (found["rows"], found["left_out"]) == (written.rows, written.left_out)


def test_another_form_of_file_is_an_error(folder):
    with pytest.raises(ValueError, match="form must be one of pairs, rankings, events"):
        labels.exported(folder, "spoken", "csv")


def test_a_run_without_answers(folder):
    make_run(folder / "silent", [[0.5]])
    with pytest.raises(NotFoundError, match=r"it has no eval/samples\.jsonl"):
        labels.following(folder, "silent", "ann")


def test_a_page_that_was_open_long_or_has_a_wrong_clock(folder):
    for seconds in (-5.0, 1e12):
        item = labels.following(folder, "spoken", "ann")["item"]
        labels.record(folder, "spoken", "ann", item["id"], "tie", new_event_id(), seconds)
    spans = [event.answered_at - event.shown_at for event in stored(folder)]
    assert spans == pytest.approx([0.0, labels.MOST_SECONDS])


def test_another_process_labels_at_the_same_time(folder):
    labels.following(folder, "spoken", "ann")
    shown = []

    def other():
        with PreferenceStore(folder / "spoken" / "preferences.sqlite") as store:
            shown.append(store.next_item("bob"))
            store.record(shown[0], "A", event_id=new_event_id(), shown_at=1.0, answered_at=2.0)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    state = labels.following(folder, "spoken", "ann")
    assert state["item"]["id"] != shown[0].item_id
    assert len(stored(folder)) == 1


def test_a_conversation_is_sent_as_messages():
    given = [{"role": "user", "content": "hi", "extra": 1}]
    assert labels._text(given) == [{"role": "user", "content": "hi"}]
