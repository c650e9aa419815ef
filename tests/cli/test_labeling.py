import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys

import pytest

from operant.cli import serving
from operant.cli.labeling import keys, read_answer, show
from operant.language.preferences import Item, PreferenceStore, SimulatedAnnotator, add_samples, new_event_id
from operant.language.preferences.items import Presentation


def write_samples(run, prompts, completions):
    (run / "eval").mkdir(parents=True, exist_ok=True)
    with (run / "eval" / "samples.jsonl").open("w") as file:
        for n in range(prompts):
            for text in completions:
                record = {"consumed": 10, "seed": 0, "prompt": f"p{n}", "completion": text, "reward": None}
                file.write(json.dumps(record) + "\n")


@pytest.fixture
def labeled(tmp_path):
    """Return the folder of a run with samples of four prompts."""
    path = tmp_path / "run"
    write_samples(path, 4, ["one", "two"])
    return path


@pytest.fixture
def start():
    """Return a function that starts `operant label` with pipes instead of a terminal; the test ends the process."""
    processes = []

    def call(*arguments, stdin=subprocess.PIPE):
        command = [sys.executable, "-m", "operant", "label", *map(str, arguments)]
        pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(command, text=True, **pipes))
        return processes[-1]

    yield call
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def session(cli, monkeypatch):
    """Return a function that labels in this process, with the given text as standard input."""

    def call(text, *arguments):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        status, out, err = cli("label", *arguments)
        assert status == 0
        return out, err

    return call


def labels(run):
    with PreferenceStore(run / "preferences.sqlite") as store:
        prompts = {item.item_id: item.prompt for item in store.items()}
        return [(prompts[event.item_id], event.annotator, event.outcome) for event in store.labels()]


def read_until(stream, text):
    read = ""
    while text not in read:
        part = stream.read(1)
        assert part, f"the output ended before {text!r}: {read}"
        read += part
    return read


def test_a_session_through_a_pipe(labeled, start):
    process = start(labeled, "--annotator", "ann")
    out, err = process.communicate("a\nB\nundo\nt\nwhat\nn\ns\n", timeout=60)
    assert process.returncode == 0
    assert err == "4 new items from the samples of 4 prompts\n"
    outcomes = [("p0", "A"), ("p1", "tie"), ("p2", "both-bad"), ("p3", "skip")]
    assert labels(labeled) == [(prompt, "ann", outcome) for prompt, outcome in outcomes]
    assert [line.strip() for line in out.splitlines() if "saved:" in line or "undone" in line] == [
        f"{keys(2)}: {what}" for what in ("saved: A", "saved: B", "undone; label it again:", "saved: tie")
    ] + [f"{keys(2)}: saved: both-bad", f"{keys(2)}: saved: skip"]
    assert f"'what' is not a valid answer; choose from: {keys(2)}" in out
    assert out.endswith("5 answers saved, 4 labels by ann in all; nothing is left to label.\n")
    with PreferenceStore(labeled / "preferences.sqlite") as store:
        assert all(0 <= event.answered_at - event.shown_at < 60 for event in store.events())
        assert len(store.events()) == 6


@pytest.mark.parametrize("end", ["q\n", "quit\n", ""])
def test_labeling_continues_where_it_stopped(labeled, session, end):
    out, _ = session(f"a\n{end}", labeled, "--annotator", "ann")
    assert "1 answers saved, 1 labels by ann in all; continue with the same command." in out
    out, err = session("b\nb\nb\n", labeled, "--annotator", "ann")
    assert "ann: 1 labels so far" in out
    assert err == ""
    assert [prompt for prompt, _, _ in labels(labeled)] == ["p0", "p1", "p2", "p3"]


def test_nothing_is_lost_when_it_is_killed(labeled, start):
    for count in (1, 2):
        process = start(labeled, "--annotator", "ann")
        read_until(process.stdout, f"{keys(2)}: ")
        process.stdin.write("a\n")
        process.stdin.flush()
        read_until(process.stdout, "saved: A\n")
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert labels(labeled) == [(f"p{n}", "ann", "A") for n in range(count)]


def test_a_session_in_a_terminal(labeled, start):
    ours, theirs = pty.openpty()
    try:
        process = start(labeled, "--annotator", "ann", stdin=theirs)
        read_until(process.stdout, f"{keys(2)}: ")
        os.write(ours, b"t\n")
        read_until(process.stdout, "saved: tie\n")
        read_until(process.stdout, f"{keys(2)}: ")
        os.write(ours, b"\x04")
        assert process.wait(60) == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert labels(labeled) == [("p0", "ann", "tie")]


def test_ctrl_c_ends_it(labeled, start):
    process = start(labeled)
    read_until(process.stdout, f"{keys(2)}: ")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr.read().endswith("operant: stopped\n")


def test_several_completions_are_ranked(tmp_path, session):
    write_samples(tmp_path, 2, ["one", "two", "three"])
    out, _ = session("a\nc b=a\nabc\n", tmp_path, "--completions", "3", "--annotator", "ann")
    assert "'a' is not a valid answer; choose from: [best first, such as bac" in out
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        assert [(event.outcome, event.ranks) for event in store.labels()] == [
            ("ranking", (2, 2, 1)),
            ("ranking", (1, 2, 3)),
        ]


def test_the_page_shows_as_many_completions_as_asked_for(tmp_path, cli, monkeypatch):
    opened = []
    monkeypatch.setattr(serving, "start", lambda *given, page: opened.append((*given, page)) or 0)
    write_samples(tmp_path / "run", 2, ["one", "two", "three", "four"])
    assert cli("label", tmp_path / "run", "--web", "--completions", 4, "--annotator", "ann b", "--repeat")[0] == 0
    assert opened == [(tmp_path, 0, "/labels#run=run&as=ann+b&overlap=1&repeat=1")]
    with PreferenceStore(tmp_path / "run" / "preferences.sqlite") as store:
        assert [len(item.completions) for item in store.items()] == [4, 4]


def test_asking_again(labeled, session):
    session("u\na\na\nq\n", labeled, "--annotator", "ann")
    out, _ = session("a\na\na\n", labeled, "--annotator", "ann", "--repeat")
    assert out.endswith("2 answers saved, 4 labels by ann in all; nothing is left to label.\n")


@pytest.mark.parametrize(
    ("line", "count", "expected"),
    [
        ("a", 2, ("A", None)),
        (" B \n", 2, ("B", None)),
        ("t", 2, ("tie", None)),
        ("neither", 3, ("both-bad", None)),
        ("skip", 9, ("skip", None)),
        ("cab", 3, ("ranking", (2, 3, 1))),
        ("b a = c", 3, ("ranking", (2, 1, 2))),
        ("b=a c", 3, ("ranking", (1, 1, 2))),
        ("a=b=c", 3, ("tie", None)),
        ("ihgfedcba", 9, ("ranking", (9, 8, 7, 6, 5, 4, 3, 2, 1))),
    ],
)
def test_answers(line, count, expected):
    assert read_answer(line, count) == expected


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("", 2),
        ("ab", 2),
        ("c", 2),
        ("a", 3),
        ("ab", 3),
        ("aab", 3),
        ("abcd", 3),
        ("=abc", 3),
        ("abc=", 3),
        ("a==bc", 3),
    ],
)
def test_invalid_answers_are_rejected(line, count):
    with pytest.raises(ValueError, match="is not a valid answer; choose from: "):
        read_answer(line, count)


def test_texts_cannot_steer_the_terminal():
    texts = ("\x1b[2J\rgone\x07\u202e", "", "two\nlines\ttab")
    text = show(Presentation("i", "ann", 0, [{"role": "user", "content": "é 数"}], texts, (0, 1, 2)))
    assert set(text) - {"\n"} == {c for c in text if c.isprintable()}
    assert "    user: é 数\nA\n    \\x1b[2J\\rgone\\x07\\u202e\nB\n    (empty)\nC\n    two\n    lines\\ttab\n" in text


@pytest.fixture
def judged(labeled):
    """Return a run with labels of two simulated annotators."""

    def reward(prompts, completions, completion_ids):
        return [float(text == "two") for text in completions]

    with PreferenceStore(labeled / "preferences.sqlite") as store:
        store.add_items(Item.of(f"p{n}", ["one", "two"]) for n in range(4))
        for name in ("ann", "bob"):
            SimulatedAnnotator(reward, name=name, temperature=0).label(store)
        store.undo("bob", event_id=new_event_id())
    return labeled


def test_export_and_import(cli, judged, tmp_path):
    pairs, other = tmp_path / "pairs.jsonl", tmp_path / "other"
    other.mkdir()
    assert cli("label", judged, "--export", pairs) == (0, "", f"exported: 7 lines to {pairs}\n")
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert {(row["chosen"], row["rejected"]) for row in rows} == {("two", "one")}
    assert all(row["annotator"].startswith("annotator-") for row in rows)
    assert cli("label", other, "--import", pairs)[2] == "imported: 7 lines, 4 new items, 7 new labels\n"
    assert cli("label", other, "--import", pairs)[2] == "imported: 7 lines, 0 new items, 0 new labels\n"
    pairs.write_text(json.dumps({"prompt": "p", "completions": ["one", "one"]}) + "\n")
    pairs.with_name("pairs.jsonl.manifest.json").unlink()
    expected = "imported: 1 lines, 0 new items, 0 new labels; skipped: 1 lines without two different completions\n"
    assert cli("label", other, "--import", pairs)[2] == expected
    assert [outcome for _, _, outcome in labels(other)] == ["B"] * 7


def test_labels_that_are_left_out_are_reported(cli, judged, tmp_path, session):
    session("t\ns\n", judged, "--annotator", "cho", "--overlap", "3")
    _, _, err = cli("label", judged, "--export", tmp_path / "x.jsonl", "--format", "rankings", "--names")
    assert err == f"exported: 7 lines to {tmp_path / 'x.jsonl'}; left out: 1 skip, 1 tie\n"
    assert '"annotator":"bob"' in (tmp_path / "x.jsonl").read_text()


def test_agreement(cli, answer, judged):
    status, out, _ = cli("label", judged, "--agreement")
    assert status == 0
    assert "percent agreement" in out
    report = answer("label", judged, "--agreement")["agreement"]
    assert report["percent"] == {"value": 1.0, "low": 1.0, "high": 1.0, "count": 3}
    assert report["alpha"]["value"] is None  # undefined, since all labels are equal
    assert report["kappas"][0]["annotators"] == ["ann", "bob"]
    assert sum(report["labels"].values()) == 7
    assert "Cohen's kappa, ann and bob  " in out
    assert "undefined" in out


def test_a_lost_database_is_restored(cli, judged):
    before = labels(judged)
    (judged / "preferences.sqlite").unlink()
    status, _, err = cli("label", judged, "--agreement")
    assert status == 1
    assert "it was lost or replaced; `operant label RUN --rebuild` rebuilds it" in err
    assert cli("label", judged, "--rebuild")[0] == 0
    assert labels(judged) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--completions", "1"], "completions must be from 2 to 9, got 1"),
        (["--completions", "10"], "completions must be from 2 to 9, got 10"),
        (["--overlap", "0"], "overlap must be at least 1"),
        (["--annotator", ""], "annotator must be a name"),
        ([], "there is nothing to label"),
    ],
)
def test_wrong_use(arguments, message, cli, tmp_path):
    status, _, err = cli("label", tmp_path, *arguments)
    assert status == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_samples_that_are_all_alike(cli, tmp_path):
    write_samples(tmp_path, 3, ["same", "same"])
    status, _, err = cli("label", tmp_path)
    assert status == 2
    assert "no prompt in" in err


def test_without_a_run(cli, tmp_path):
    assert cli("label", tmp_path / "none") == (
        2, "", f"operant: error: {tmp_path / 'none'} is not the folder of a run\n",
    )  # fmt: skip


def test_a_second_window_of_one_annotator_continues(labeled, cli, monkeypatch):
    answers, other = io.StringIO("a\na\nb\nt\ns\n"), []

    class Typed(io.StringIO):
        def readline(self, *_):
            if not other:  # while the first question is shown here, another window answers it
                with PreferenceStore(labeled / "preferences.sqlite") as store:
                    shown = store.next_item("ann")
                    assert shown is not None
                    other.append(store.record(shown, "B", event_id="other", shown_at=1.0, answered_at=2.0))
            return answers.readline()

    monkeypatch.setattr(sys, "stdin", Typed())
    status, out, _ = cli("label", labeled, "--annotator", "ann")
    assert status == 0
    assert "already labeled in another window" in out
    with PreferenceStore(labeled / "preferences.sqlite") as store:
        found = store.labels()
    assert len({label.item_id for label in found}) == len(found) == 4
    assert other[0] in found


def test_labels_of_held_out_prompts_are_distinguished(labeled, cli, tmp_path):
    def reward(prompts, completions, completion_ids):
        return [float(text == "two") for text in completions]

    rows = [{"prompt": f"mine {i}", "chosen": "yes", "rejected": "no"} for i in range(3)]
    rows.append({"prompt": "p0", "chosen": "long", "rejected": "short"})  # a prompt that is scored, too
    own = tmp_path / "own.jsonl"
    own.write_text("\n".join(map(json.dumps, rows)))
    assert cli("label", labeled, "--import", own)[0] == 0
    with PreferenceStore(labeled / "preferences.sqlite") as store:
        add_samples(store, labeled / "eval" / "samples.jsonl", run="run")
        SimulatedAnnotator(reward, name="imported", temperature=0).label(store)
    for what, count, held_out in (("with", 8, 5), ("without", 3, 0), ("only", 5, 5)):
        status, out, err = cli("label", labeled, "--export", tmp_path / "x.jsonl", "--held-out", what, "--json")
        assert status == 0
        answer = json.loads(out)["exported"]
        assert (answer["rows"], answer["held_out"]) == (count, held_out)
        assert ("are on held-out prompts" in err) == (what == "with")
        written = [json.loads(line)["prompt"] for line in (tmp_path / "x.jsonl").read_text().splitlines()]
        assert sum(prompt.startswith("mine") for prompt in written) == count - held_out


def test_undoing_keeps_the_question_from_another_window(labeled, session):
    session("a\nu\nq\n", labeled, "--annotator", "ann")
    assert labels(labeled) == []


def test_a_question_in_another_window_is_reported(labeled, start):
    first = start(labeled, "--annotator", "ann")
    read_until(first.stdout, f"{keys(2)}: ")
    second = start(labeled, "--annotator", "ann")
    out, _ = second.communicate("a\na\na\n", timeout=300)
    assert out.endswith("3 answers saved, 3 labels by ann in all; 1 items are open in another window.\n")
    out, _ = first.communicate("b\n", timeout=300)
    assert out.endswith("1 answers saved, 4 labels by ann in all; nothing is left to label.\n")
    assert sorted(labels(labeled)) == [("p0", "ann", "B")] + [(f"p{n}", "ann", "A") for n in (1, 2, 3)]


def test_the_policy_of_a_run_answers_prompts_to_train_on_apart_from_those_it_is_scored_by(
    spoken, cli, session, tmp_path
):
    run = tmp_path / "run"
    shutil.copytree(spoken, run)
    answers = "a\n" * 20
    _, err = session(answers, run, "--annotator", "ann", "--prompts", "training", "--count", 4)
    assert "new items from answers of the run to 4 of 4 prompts" in err
    with PreferenceStore(run / "preferences.sqlite") as store:
        trained_on = {item.prompt for item in store.items()}
        assert {item.provenance["held_out"] for item in store.items()} == {False}
        assert len(trained_on) > 1
        assert len(store.labels()) == len(store.items())
    out, err = session(answers, run, "--annotator", "ann", "--prompts", "training", "--count", 4)
    assert "nothing is left to label" in out
    assert err == "", "no prompt is answered twice"
    _, err = session(answers, run, "--annotator", "ann", "--prompts", "held-out", "--count", 3)
    assert "to 3 of 3 prompts" in err
    with PreferenceStore(run / "preferences.sqlite") as store:
        scored = {item.prompt for item in store.items() if item.provenance["held_out"]}
    assert scored
    assert not scored & trained_on
    _, _, err = cli("label", run, "--export", tmp_path / "train.jsonl")
    assert "lines on held-out prompts, which are for evaluation, were left out" in err
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert {row["prompt"] for row in rows} == trained_on
    assert not any("held_out" in row for row in rows)


@pytest.mark.parametrize("form", ["pairs", "rankings", "events"])
def test_a_held_out_mark_survives_export_and_import(labeled, cli, session, tmp_path, form):
    session("a\n" * 4, labeled, "--annotator", "ann")
    for folder in ("other", "third"):
        (tmp_path / folder).mkdir()
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    shared = ["--held-out", "with", "--format", form]
    cli("label", labeled, "--export", files[0], *shared)
    cli("label", tmp_path / "other", "--import", files[0])
    cli("label", tmp_path / "other", "--export", files[1], *shared)
    cli("label", tmp_path / "third", "--import", files[1])
    assert len(labels(tmp_path / "third")) == 4
    _, _, err = cli("label", tmp_path / "third", "--export", tmp_path / "last.jsonl")
    assert "exported: 0 lines" in err
    assert "left out: 4 held-out" in err


def test_prompts_alone_are_answered_by_the_policy_of_the_run(spoken, session, tmp_path):
    run, own = tmp_path / "run", tmp_path / "own.jsonl"
    shutil.copytree(spoken, run)
    shutil.rmtree(run / "eval")
    own.write_text("".join(json.dumps({"prompt": f"{n}+1="}) + "\n" for n in range(3)))
    _, err = session("a\n" * 9, run, "--annotator", "ann", "--ask", own)
    assert "to 3 of 3 prompts" in err
    assert {prompt for prompt, _, _ in labels(run)} <= {"0+1=", "1+1=", "2+1="}
    assert labels(run)


def test_prompts_of_a_folder_that_is_no_run_of_a_language_model(labeled, run, cli):
    assert cli("label", labeled, "--prompts", "training")[0] == 2
    status, _, err = cli("label", run, "--prompts", "training")
    assert status == 2
    assert "which has no prompts; name a run of a language model" in err
    assert not (run / "preferences.sqlite").exists()


def test_a_custom_file_is_labeled(tmp_path, session):
    (tmp_path / "run").mkdir()
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"prompt": "mine", "completions": ["x", "y"]}))
    out, err = session("a\n", tmp_path / "run", "--annotator", "ann", "--ask", own)
    assert "1 new items from 1 rows" in err
    assert "saved: A" in out
    assert labels(tmp_path / "run") == [("mine", "ann", "A")]
