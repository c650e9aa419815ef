import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from operant.language.preferences import ConflictError, Item, PreferenceStore, StoreError, new_event_id
from operant.language.preferences.store import LEASE_SECONDS


@pytest.fixture
def store(tmp_path):
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        store.add_items(Item.of(f"p{n}", ["a", "b"]) for n in range(4))
        yield store


def answer(store, presentation, outcome="A", **more):
    stamps = {"event_id": new_event_id(), "shown_at": 1.0, "answered_at": 2.0}
    return store.record(presentation, outcome, **(stamps | more))


def prompts(store, annotator, **options):
    """Label all items left for an annotator and return the prompts in order."""
    seen = []
    while (at := store.next_item(annotator, **options)) is not None:
        seen.append(at.prompt)
        answer(store, at)
    return seen


def test_an_item_is_stored_once_and_whole(store):
    item = Item.of([{"role": "user", "content": "é"}], ["x", "y", "z"], gold=[3, 1, 2], provenance={"answer": 4})
    assert store.add_item(item) is True
    assert store.add_item(Item.of(item.prompt, ["z", "y", "x"])) is False
    assert store.item(item.item_id) == item
    assert store.items()[-1] == item
    with pytest.raises(KeyError, match="there is no item 'nowhere'"):
        store.item("nowhere")


def test_an_annotator_sees_every_item_once_in_order(store):
    assert prompts(store, "ann") == ["p0", "p1", "p2", "p3"]
    assert store.next_item("ann") is None


def test_questions_have_no_provenance_and_keep_their_order(store):
    at = store.next_item("ann")
    assert sorted(vars(at)) == ["annotator", "completions", "item_id", "prompt", "round", "shown"]
    assert at.completions == tuple("ab"[place] for place in at.shown)
    store.seed = 12345
    assert store.present(at.item_id, "ann") == at
    assert len({store.present(item.item_id, f"rater {n}").shown for item in store.items() for n in range(5)}) == 2


def test_labeling_continues_where_it_stopped(tmp_path, store):
    answer(store, store.next_item("ann"))
    at = store.next_item("ann")
    with PreferenceStore(store.path, seed=9) as again:
        assert again.next_item("ann") == at


def test_each_item_goes_to_as_many_annotators_as_asked_for(store):
    first, second = store.next_item("ann"), store.next_item("bob")
    assert (first.prompt, second.prompt) == ("p0", "p1")
    answer(store, first)
    assert prompts(store, "bob") == ["p1", "p2", "p3"]
    assert store.next_item("ann") is None
    assert prompts(store, "cho", overlap=2) == ["p0", "p1", "p2", "p3"]
    assert prompts(store, "dan", overlap=2) == []
    assert prompts(store, "dan", overlap=3) == ["p0", "p1", "p2", "p3"]


def test_a_skip_leaves_the_item_to_others(store):
    answer(store, store.next_item("ann"), "skip")
    assert store.next_item("ann").prompt == "p1"
    assert store.next_item("bob").prompt == "p0"


def test_an_unanswered_item_becomes_free_after_a_while(store):
    assert store.next_item("ann", now=0.0).prompt == "p0"
    assert store.next_item("bob", now=LEASE_SECONDS - 1).prompt == "p1"
    late = store.next_item("cho", now=LEASE_SECONDS + 1)
    assert late.prompt == "p0"
    answer(store, late)
    assert store.next_item("ann").prompt == "p0"
    answer(store, store.next_item("ann"))
    assert len(store.labels()) == 2


def test_known_answers_are_asked_of_everybody(store):
    store.add_item(Item.of("known", ["a", "b"], gold=[1, 2]))
    assert prompts(store, "ann")[-1] == "known"
    assert prompts(store, "bob") == ["known"]


def test_asking_again(store):
    assert store.next_item("ann", repeat=True) is None
    for outcome in ("A", "skip", "tie"):
        answer(store, store.next_item("ann"), outcome)
    assert prompts(store, "ann", repeat=True) == ["p0", "p2"]
    assert [event.round for event in store.labels()] == [0, 0, 0, 1, 1]
    assert store.next_item("ann").prompt == "p3"


def test_the_same_event_again_is_one_event(store):
    at = store.next_item("ann")
    first = answer(store, at, event_id="e")
    assert answer(store, at, event_id="e") == first
    assert store.events() == [first]
    with pytest.raises(ConflictError, match="event e already exists with other contents"):
        answer(store, at, "B", event_id="e")


def test_a_second_label_must_say_what_it_corrects(store):
    at = store.next_item("ann")
    first = answer(store, at)
    with pytest.raises(ConflictError, match=f"the valid label is {first.event_id}, not None"):
        answer(store, at, "B")
    second = answer(store, at, "B", supersedes=first.event_id)
    with pytest.raises(ConflictError, match=f"the valid label is {second.event_id}, not {first.event_id}"):
        answer(store, at, "tie", supersedes=first.event_id)
    assert store.labels() == [second]
    assert [event.outcome for event in store.events()] == ["A", "B"]


def test_undoing_is_an_event(store):
    first, second = (answer(store, store.next_item("ann")) for _ in range(2))
    undone = store.undo("ann", event_id="u")
    assert (undone.kind, undone.outcome, undone.supersedes) == ("undo", None, second.event_id)
    assert store.undo("ann", event_id="u") == undone
    assert store.labels() == [first]
    assert store.next_item("ann").item_id == second.item_id
    assert store.undo("ann", event_id="v").supersedes == first.event_id
    assert store.undo("ann", event_id="w") is None
    assert [event.kind for event in store.events()] == ["label", "label", "undo", "undo"]
    answer(store, store.next_item("ann"), "B")
    assert len(store.labels()) == 1


def test_undoing_a_label_that_is_named(store):
    first, second = (answer(store, store.next_item("ann")) for _ in range(2))
    with pytest.raises(ConflictError, match=f"{first.event_id} is not a valid label of bob"):
        store.undo("bob", event_id="u", label=first.event_id)
    assert store.undo("ann", event_id="u", label=first.event_id).supersedes == first.event_id
    with pytest.raises(ConflictError, match="was undone or corrected before"):
        store.undo("ann", event_id="v", label=first.event_id)
    with pytest.raises(ConflictError, match="event u already exists with other contents"):
        store.undo("ann", event_id="u", label=second.event_id)
    with pytest.raises(ConflictError, match=f"event {second.event_id} already exists with other contents"):
        store.undo("ann", event_id=second.event_id)
    assert store.labels() == [second]


@pytest.mark.parametrize(
    ("outcome", "more", "message"),
    [
        ("ranking", {"ranks": [1, 2]}, "two completions need no ranking"),
        ("C", {}, "outcome must be one of"),
        ("A", {"answered_at": 0.5}, "answered_at must be no earlier than shown_at"),
        ("A", {"answered_at": float("nan")}, "answered_at must be no earlier"),
        ("A", {"shown_at": float("-inf")}, "answered_at must be no earlier"),
        ("A", {"event_id": ""}, "CHECK constraint failed.*; nothing was stored"),
    ],
)
def test_nonsense_is_not_stored(store, outcome, more, message):
    with pytest.raises((ValueError, StoreError), match=message):
        answer(store, store.next_item("ann"), outcome, **more)
    assert store.events() == []


def test_an_answer_belongs_to_the_order_that_was_shown(store):
    at = store.next_item("ann")
    turned = type(at)(**(vars(at) | {"shown": at.shown[::-1]}))
    with pytest.raises(ConflictError, match="was shown the completions as"):
        answer(store, turned)
    with pytest.raises(ValueError, match=r"shown must have every index 0 \.\. 1"):
        answer(store, type(at)(**(vars(at) | {"shown": (0, 0)})))


def test_wrong_questions(store):
    with pytest.raises(ValueError, match="need overlap >= 1 and a name"):
        store.next_item("ann", overlap=0)
    with pytest.raises(ValueError, match="need overlap >= 1 and a name"):
        store.next_item("")


def test_several_changes_are_one(store):
    with pytest.raises(RuntimeError, match="on second thoughts"), store.transaction():  # noqa: PT012
        answer(store, store.next_item("ann"))
        store.add_item(Item.of("late", ["a", "b"]))
        raise RuntimeError("on second thoughts")
    assert (store.events(), len(store.items())) == ([], 4)
    answer(store, store.next_item("ann"))


def test_a_store_that_is_taken_away(store):
    shutil.copy(store.path, store.path.with_name("copy"))
    store.path.with_name("copy").replace(store.path)
    with pytest.raises(StoreError, match="was removed or replaced while it was open"):
        store.next_item("ann")
    store.path.unlink()
    with pytest.raises(StoreError, match="was removed or replaced while it was open"):
        store.labels()


def test_a_store_that_cannot_be_written(store, monkeypatch):
    at = store.next_item("ann")
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with store._reading() as connection:
        connection.execute("PRAGMA busy_timeout=50")
    with pytest.raises(StoreError, match="database is locked; nothing was stored"):
        answer(store, at)
    other.execute("ROLLBACK")
    other.close()
    answer(store, at)
    assert len(store.labels()) == 1


def test_a_forked_process_must_open_its_own(store, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(StoreError, match="open a store in each of them"):
        store.labels()


def test_closing_twice(tmp_path):
    store = PreferenceStore(tmp_path / "s.sqlite")
    store.close()
    store.close()


class Model(RuleBasedStateMachine):
    """Compare the store with a dictionary: label, correct, undo, retry, reopen."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = PreferenceStore(self.folder / "s.sqlite")
        self.store.add_items(Item.of(f"p{n}", ["a", "b"]) for n in range(3))
        self.live = {}  # (annotator, item) -> event, in the order of the log
        self.log = []

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.folder)

    names = st.sampled_from(["ann", "bob"])
    outcomes = st.sampled_from(["A", "B", "tie", "both-bad", "skip"])

    @rule(name=names, outcome=outcomes)
    def label(self, name, outcome):
        at = self.store.next_item(name, overlap=2)
        open_items = {item.item_id for item in self.store.items()} - {i for who, i in self.live if who == name}
        assert (at is None) == (not open_items)
        if at is not None:
            assert at.item_id in open_items
            self.log.append(answer(self.store, at, outcome))
            self.live[name, at.item_id] = self.log[-1]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), outcome=outcomes)
    def correct(self, data, outcome):
        key = data.draw(st.sampled_from(sorted(self.live)))
        old = self.live.pop(key)
        at = self.store.present(key[1], key[0])
        self.live[key] = answer(self.store, at, outcome, supersedes=old.event_id)
        self.log.append(self.live[key])

    @rule(name=names)
    def undo(self, name):
        event = self.store.undo(name, event_id=new_event_id())
        mine = [key for key in self.live if key[0] == name]
        assert (event is None) == (not mine)
        if event is not None:
            assert event.supersedes == self.live.pop(mine[-1]).event_id
            self.log.append(event)

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def retry(self, data):
        event = data.draw(st.sampled_from(self.log))
        assert self.store.append(event) == event

    @rule()
    def reopen(self):
        self.store.close()
        self.store = PreferenceStore(self.folder / "s.sqlite")

    @invariant()
    def both_agree(self):
        assert self.store.labels() == list(self.live.values())
        assert self.store.events() == self.log


Model.TestCase.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)
test_store_and_model = Model.TestCase
