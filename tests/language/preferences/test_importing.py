import json
from itertools import combinations

import pytest

from operant.language.preferences import (
    ConflictError,
    Item,
    PreferenceStore,
    SimulatedAnnotator,
    agreement,
    export,
    import_file,
)
from operant.language.preferences.recovery import read_lines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "labels.jsonl"


@pytest.fixture
def store(tmp_path):
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        yield store


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def reward(prompts, completions, completion_ids):
    return [float(ord(text[0])) for text in completions]


@pytest.mark.parametrize(("chosen", "rejected"), [("a", "b"), ("b", "a")])
def test_a_pair(path, store, chosen, rejected):
    write(path, {"prompt": "p", "chosen": chosen, "rejected": rejected, "score": 3})
    assert vars(import_file(store, path)) == {"items": 1, "events": 1, "rows": 1, "skipped": 0}
    (item,), (label,) = store.items(), store.labels()
    ranks = dict(zip((c.text for c in item.completions), label.ranks_of_item(), strict=True))
    assert ranks == {chosen: 1, rejected: 2}
    assert (item.prompt, item.gold, label.annotator) == ("p", None, "imported")


def test_opposite_opinions_are_of_one_item(path, store):
    write(
        path,
        {"prompt": "p", "chosen": "a", "rejected": "b", "annotator": "ann"},
        {"prompt": "p", "chosen": "b", "rejected": "a", "annotator": "bob"},
    )
    assert vars(import_file(store, path)) == {"items": 1, "events": 2, "rows": 2, "skipped": 0}
    report = agreement(store.items(), store.labels())
    assert report.percent.value == 0
    assert report.first_shown.count == 0  # the order in which they saw them is unknown


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        ("2 + 2 = 4", "2 + 2 = 5", ("2 + 2 =", " 4", " 5")),
        ("yes", "no", ("", "yes", "no")),
        ("The answer is four", "The answer is five", ("The answer is", " four", " five")),
        ("ab", "abc", ("", "ab", "abc")),
        (
            [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}],
            [{"role": "user", "content": "p"}, {"role": "assistant", "content": "b"}],
            ([{"role": "user", "content": "p"}], [{"role": "assistant", "content": "a"}],
             [{"role": "assistant", "content": "b"}]),
        ),
    ],
)  # fmt: skip
def test_a_pair_without_a_prompt(path, store, chosen, rejected, expected):
    write(path, {"chosen": chosen, "rejected": rejected})
    import_file(store, path)
    (item,), (label,) = store.items(), store.labels()
    best_first = sorted(zip(label.ranks_of_item(), (c.text for c in item.completions), strict=True))
    assert (item.prompt, *(text for _, text in best_first)) == expected


def ranked(**ranks):
    completions = [{"rank": rank, "completion": [{"role": "assistant", "content": c}]} for c, rank in ranks.items()]
    return {"context": [{"role": "user", "content": "p"}], "completions": completions}


@pytest.mark.parametrize(
    ("ranks", "outcome", "expected"),
    [
        ({"a": 2, "b": 0, "c": 7}, "ranking", (2, 1, 3)),
        ({"c": 0, "a": 1, "b": 1}, "ranking", (2, 2, 1)),
        ({"b": 0, "a": 1}, "B", (2, 1)),
        ({"a": 1, "b": 1}, "tie", (1, 1)),
        ({"a": 1, "b": 1, "c": 1}, "tie", (1, 1, 1)),
    ],
)
def test_a_ranking(path, store, ranks, outcome, expected):
    write(path, ranked(**ranks))
    import_file(store, path)
    (label,) = store.labels()
    assert (label.outcome, label.ranks_of_item()) == (outcome, expected)
    assert [c.text[0]["content"] for c in store.items()[0].completions] == sorted(ranks)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"completions": ["4", "4", "5"]}, {"4": 1, "5": 2}),
        ({"completions": ["4", "5", "4"], "ranks": [3, 2, 1]}, {"4": 1, "5": 2}),
        ({"completions": ["4", "5", "4", "6"], "ranks": [1, 1, 2, 3]}, {"4": 1, "5": 1, "6": 2}),
    ],
)
def test_of_equal_completions_the_best_one_is_used(path, store, row, expected):
    write(path, {"prompt": "2+2=", **row})
    assert import_file(store, path).events == 1
    (item,), (label,) = store.items(), store.labels()
    assert dict(zip((c.text for c in item.completions), label.ranks_of_item(), strict=True)) == expected


def test_lines_without_a_comparison_are_skipped(path, store):
    write(
        path,
        {"prompt": "p", "chosen": "a", "rejected": "a"},
        {"prompt": "p", "completions": ["a", "a"]},
        {"chosen": "yes", "rejected": "yes"},
        ranked(a=1),
        {"instruction": "i", "completions": [{"response": "a", "overall_score": 1}, {"response": "b"}]},
        {"prompt": "p", "chosen": "a", "rejected": "b", "labels": [1]},
    )
    assert vars(import_file(store, path)) == {"items": 1, "events": 1, "rows": 6, "skipped": 5}


def full(tmp_path, sizes=(2, 3)):
    with PreferenceStore(tmp_path / "full.sqlite") as store:
        store.add_items(Item.of(f"p{n}", "abcd"[:size]) for size in sizes for n in range(6))
        for seed, name in enumerate(("ann", "bob")):
            annotator = SimulatedAnnotator(reward, name=name, seed=seed, tie_threshold=0.1)
            annotator.label(store)
        store.undo("ann", event_id="u")
        for form in ("pairs", "rankings", "events"):
            export(store, tmp_path / f"{form}.jsonl", form=form)
        return store.log()


@pytest.mark.parametrize("form", ["pairs", "rankings", "events"])
def test_round_trip(tmp_path, store, form):
    """Export, import and export again: the files are equal except for the ids that belong to a store."""
    full(tmp_path, sizes=(2,) if form == "pairs" else (2, 3))
    before = tmp_path / f"{form}.jsonl"
    first = import_file(store, before)
    assert first.rows > 10
    assert first.skipped == 0
    again = import_file(store, before)
    assert (again.items, again.events, again.rows) == (0, 0, first.rows)
    after = tmp_path / "again.jsonl"
    export(store, after, form=form, names=True)
    rows = [[row for _, row in read_lines(path)] for path in (before, after)]
    for row in rows[0] + rows[1]:
        row.pop("event", None)
        row.pop("item", None)
    assert rows[0] == rows[1]


def test_the_pairs_of_a_ranking_are_separate_items(tmp_path, store):
    full(tmp_path, sizes=(4,))
    import_file(store, tmp_path / "pairs.jsonl")
    assert {tuple(c.text for c in item.completions) for item in store.items()} == set(combinations("abcd", 2))


def test_the_log_of_another_store_is_taken_as_it_is(tmp_path, store):
    log = full(tmp_path)
    store.add_item(Item.of("mine", "ab"))
    SimulatedAnnotator(reward, name="cho").label(store)
    import_file(store, tmp_path / "events.jsonl")
    events = {event.event_id: event for event in store.events()}
    for record in log:
        if record["type"] == "event":
            mine = events[record["event_id"]]
            names = ("kind", "item_id", "outcome", "ranks", "shown", "supersedes", "answered_at")
            assert all(getattr(mine, name) == record[name] for name in names)


def test_existing_labels_of_an_annotator_are_not_added_again(tmp_path, store):
    store.add_items(Item.of(f"p{n}", "ab") for n in range(5))
    SimulatedAnnotator(reward, name="ann").label(store)
    export(store, tmp_path / "own.jsonl", names=True)
    assert import_file(store, tmp_path / "own.jsonl").events == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p", "completion": "a", "label": True}, r"this one has \['completion', 'label', 'prompt'\]"),
        (
            {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]},
            r"labels=\[True, False\] are of the steps",
        ),
        ({"prompt": "p", "completions": ["a", "b"], "ranks": [1]}, r"ranks must .* each of 2 completions, got \[1\]"),
        ({"prompt": "p", "completions": ["a", {"rank": 1}]}, r"\{'rank': 1\} is no text"),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "annotator": 3}, "annotator must be a nonempty string, got 3"),
        ({"context": "p", "completions": [{"rank": 1}]}, r"this one has \['completions', 'context'\]"),
        (
            {"context": "p", "completions": [{"rank": "x", "completion": "a"}, {"rank": 1, "completion": "b"}]},
            "not supp",
        ),
        ({"type": "event"}, "an event has missing"),
        ({"type": "item"}, "an item lacks"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_added(path, store, row, message):
    write(path, {"prompt": "p", "chosen": "x", "rejected": "y"}, row)
    with pytest.raises(ValueError, match=rf"labels\.jsonl, line 2: .*{message}"):
        import_file(store, path)
    assert (store.items(), store.events()) == ([], [])


def test_a_contradiction_is_named_and_nothing_is_added(path, store):
    row = {"prompt": "p", "chosen": "a", "rejected": "b"}
    write(path, row, row, {"prompt": "p", "chosen": "b", "rejected": "a"})
    with pytest.raises(ConflictError, match=r"line 3: imported, item .*; rows of several annotators need a column"):
        import_file(store, path)
    assert store.events() == []


def test_a_file_that_was_changed_after_its_export(tmp_path, store):
    full(tmp_path)
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"chosen"', b'"better"', 1))
    with pytest.raises(ValueError, match="has changed since its export"):
        import_file(store, path)
    path.with_name("pairs.jsonl.manifest.json").write_text("{}")
    with pytest.raises(ValueError, match=r"pairs\.jsonl\.manifest\.json is damaged"):
        import_file(store, path)


def test_without_a_file(path, store):
    with pytest.raises(FileNotFoundError):
        import_file(store, path)
