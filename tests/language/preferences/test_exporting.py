import hashlib
import json

import pytest

from operant.language.data import compare, extremes, kind, read_rows
from operant.language.preferences import Completion, Item, PreferenceStore, export, new_event_id
from operant.language.preferences.exporting import manifest_path, pseudonym
from operant.language.preferences.importing import import_file


@pytest.fixture
def store(tmp_path):
    """Return a store with one label of each kind, by two annotators."""
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        for n in range(5):
            completions = [Completion("bad", {"reward": n, "seed": 1}), Completion("good", {"reward": n + 0.5})]
            store.add_item(Item.of(f"p{n} é\u2028", completions))
        store.add_item(Item.of("three", ["x", "y", "z"]))
        put(store, 1, "bob", "better", "good")
        put(store, 0, "bob", "better", "bad")
        put(store, 0, "ann", "better", "good")
        for n, outcome in ((2, "tie"), (3, "both-bad"), (4, "skip")):
            put(store, n, "ann", outcome)
        put(store, 5, "ann", "ranking", {"x": 2, "y": 1, "z": 2})
        yield store


def put(store, n, annotator, outcome, value=None, **more):
    at = store.present(store.items()[n].item_id, annotator, **more)
    ranks = [value[text] for text in at.completions] if outcome == "ranking" else None
    outcome = "AB"[at.completions.index(value)] if outcome == "better" else outcome
    return store.record(at, outcome, event_id=new_event_id(), shown_at=1.0, answered_at=2.0, ranks=ranks)


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def pairs(path):
    return sorted((row["prompt"][:2], row["chosen"], row["rejected"]) for row in rows(path))


def test_pairs_are_labels_with_a_preference(store, tmp_path):
    result = export(store, tmp_path / "pairs.jsonl")
    assert (result.rows, result.left_out) == (5, {"both-bad": 1, "skip": 1, "tie": 1})
    assert pairs(result.path) == [
        ("p0", "bad", "good"),
        ("p0", "good", "bad"),
        ("p1", "good", "bad"),
        ("th", "y", "x"),
        ("th", "y", "z"),
    ]


def test_the_source_of_completions_is_exported(store, tmp_path):
    export(store, tmp_path / "pairs.jsonl", names=True)
    row = next(row for row in rows(tmp_path / "pairs.jsonl") if row["prompt"].startswith("p1"))
    columns = {name: row[name] for name in row if name.startswith(("chosen_", "rejected_"))}
    assert columns == {"chosen_reward": 1.5, "chosen_seed": None, "rejected_reward": 1, "rejected_seed": 1}
    assert row["annotator"] == "bob"
    assert row["item"] == store.items()[1].item_id
    assert row["event"] == store.labels()[0].event_id


def test_rankings_are_those_of_nemo(store, tmp_path):
    result = export(store, tmp_path / "rankings.jsonl", form="rankings")
    assert (result.rows, result.left_out) == (4, {"both-bad": 1, "skip": 1, "tie": 1})
    last = rows(result.path)[-1]
    assert last["context"] == "three"
    assert [(c["rank"], c["completion"]) for c in last["completions"]] == [(0, "y"), (1, "x"), (1, "z")]


@pytest.mark.parametrize("form", ["pairs", "rankings"])
def test_all_texts_of_a_conversation_are_messages(tmp_path, form):
    prompt = [{"role": "user", "content": "2+2?"}]
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        store.add_item(Item.of(prompt, ["It is 4.", "It is 5."]))
        put(store, 0, "ann", "better", "It is 4.")
        path = export(store, tmp_path / "labels.jsonl", form=form).path
    found = read_rows(path)
    comparison = compare(found[0]) if kind(found) == "preference" else extremes(found[0])
    answers = [[{"role": "assistant", "content": text}] for text in ("It is 4.", "It is 5.")]
    assert comparison == (prompt, *answers)
    (row,) = rows(path)
    assert answers == (
        [row["chosen"], row["rejected"]] if form == "pairs" else [c["completion"] for c in row["completions"]]
    )


@pytest.mark.parametrize("form", ["pairs", "rankings"])
def test_other_inputs_of_the_chat_template_are_exported_and_imported(tmp_path, form):
    given = {"tools": [{"name": "calculator"}], "chat_template_kwargs": {"enable_thinking": False}}
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        store.add_item(Item.of("p", ["a", "b"], provenance={"held_out": False, **given}))
        put(store, 0, "ann", "better", "a")
        path = export(store, tmp_path / "labels.jsonl", form=form).path
    (row,) = rows(path)
    assert {name: row[name] for name in given} == given
    with PreferenceStore(tmp_path / "other.sqlite") as store:
        import_file(store, path)
        (item,) = store.items()
        assert item.provenance == given


def test_labels_on_held_out_prompts_are_exported_only_if_asked_for(tmp_path):
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        for number, mark in enumerate(({}, {"held_out": True})):
            store.add_item(Item.of(f"p{number}", ["a", "b"], provenance=mark))
            put(store, number, "ann", "better", "a")
        result = export(store, tmp_path / "pairs.jsonl")
        assert (result.rows, result.left_out, result.held_out) == (1, {"held-out": 1}, 0)
        assert pairs(result.path) == [("p0", "a", "b")]
        assert export(store, tmp_path / "pairs.jsonl", held_out="with").rows == 2


def test_the_log_has_everything(store, tmp_path):
    undone = store.undo("ann", event_id="u")
    result = export(store, tmp_path / "events.jsonl", form="events")
    found = rows(result.path)
    assert (result.rows, result.left_out) == (14, {})
    assert [row["sequence"] for row in found] == list(range(1, 15))
    assert found[-1]["supersedes"] == undone.supersedes


def test_names_are_replaced_by_pseudonyms_that_stay(store, tmp_path):
    for form in ("pairs", "rankings", "events"):
        path = tmp_path / form
        export(store, path, form=form)
        assert b'ann"' not in path.read_bytes()
        assert b"bob" not in path.read_bytes()
        names = {row["annotator"] for row in rows(path) if "annotator" in row}
        assert names == {pseudonym(store.pseudonym_key(), name) for name in ("ann", "bob")}
        export(store, path, form=form, names=True)
        assert {row["annotator"] for row in rows(path) if "annotator" in row} == {"ann", "bob"}
    assert pseudonym("one key", "ann") != pseudonym("another", "ann")


def test_equal_stores_give_equal_files_with_a_manifest(store, tmp_path):
    first, second = (export(store, tmp_path / name).path for name in ("x.jsonl", "y.jsonl"))
    assert first.read_bytes() == second.read_bytes()
    manifest = json.loads(manifest_path(first).read_bytes())
    assert manifest == {
        "schema_version": 1,
        "file": "x.jsonl",
        "form": "pairs",
        "rows": 5,
        "left_out": {"both-bad": 1, "skip": 1, "tie": 1},
        "pseudonyms": True,
        "sha256": hashlib.sha256(first.read_bytes()).hexdigest(),
    }


def test_repeated_questions_are_not_exported_twice(store, tmp_path):
    put(store, 1, "bob", "better", "bad", round=1)
    assert export(store, tmp_path / "pairs.jsonl").rows == 5


def test_only_an_export_is_replaced(store, tmp_path):
    theirs = tmp_path / "pairs.jsonl"
    theirs.write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}\n')
    with pytest.raises(ValueError, match=r"pairs\.jsonl already exists, and is not an export of labels: choose"):
        export(store, theirs)
    assert rows(theirs) == [{"prompt": "p", "chosen": "a", "rejected": "b"}]
    ours = tmp_path / "ours.jsonl"
    assert export(store, ours).rows == export(store, ours).rows == 5
    ours.write_text(theirs.read_text())  # edited by hand
    with pytest.raises(ValueError, match=r"ours\.jsonl was changed after its export"):
        export(store, ours)
    assert rows(ours) == rows(theirs)


def test_datasets_reads_the_files(store, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    for form in ("pairs", "rankings"):
        path = export(store, tmp_path / f"{form}.jsonl", form=form).path
        loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        assert loaded.to_list() == rows(path)


def test_a_file_that_cannot_be_written(store, tmp_path):
    with pytest.raises(FileNotFoundError):
        export(store, tmp_path / "missing" / "pairs.jsonl")
