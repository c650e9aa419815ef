import csv
import json
import math
import shutil
import socket
from pathlib import Path

import datasets
import pandas as pd
import pytest

from operant.language import huggingface
from operant.language.sources import read

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": 'say "hi",\nplease', "answer": "07"}]


def rows_of(source, split="train"):
    return [row for _, row in read(source, split=split)]


def places_of(source, split="train"):
    return [where for where, _ in read(source, split=split)]


@pytest.fixture
def written(tmp_path):
    """Return a function that writes rows as a file of a format."""

    def write(suffix, rows=ROWS):
        path = tmp_path / f"rows{suffix}"
        if suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        elif suffix == ".json":
            path.write_text(json.dumps(rows, indent=2), encoding="utf-8")
        elif suffix == ".parquet":
            datasets.Dataset.from_list(rows).to_parquet(path)
        else:
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)
        return path

    return write


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv"])
def test_files_of_all_formats_hold_the_same_rows(written, suffix):
    path = written(suffix)
    assert rows_of(path) == rows_of(str(path)) == ROWS


def test_a_json_file_may_have_a_single_conversation(tmp_path):
    """Do not take its list of messages for a split."""
    path, row = tmp_path / "rows.json", {"messages": [{"role": "user", "content": "a"}]}
    path.write_text(json.dumps(row))
    assert [found for _, found in read(path, split="train")] == [row]


def test_a_file_may_be_named_from_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    for name in ("~/rows.jsonl", Path("~/rows.jsonl")):
        assert [row for _, row in read(name, split="train")] == [{"prompt": "a"}]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_nested_columns_survive(written, suffix):
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "label": True}]
    assert rows_of(written(suffix, rows)) == rows


def test_columns_of_a_csv_file_that_are_no_strings(written):
    path = written(".csv", [{"prompt": "5", "label": "True", "margin": "0.5", "labels": "[true, false]", "ranks": ""}])
    assert rows_of(path) == [{"prompt": "5", "label": True, "margin": 0.5, "labels": [True, False], "ranks": None}]


@pytest.mark.parametrize("column", ["prompt", "completion", "chosen", "rejected", "messages"])
def test_cells_of_a_csv_file_may_be_conversations(written, column):
    messages = [{"role": "user", "content": "a"}]
    path = written(".csv", [{column: cell} for cell in (json.dumps(messages), '["a"]', '"a"', "a [")])
    assert [row[column] for row in rows_of(path)] == [messages, '["a"]', '"a"', "a ["]


def test_text_in_a_column_of_labels_of_a_csv_file_stays_text(written):
    row = {"prompt": "capital of France?", "label": "Paris", "labels": "none yet", "margin": "wide"}
    assert rows_of(written(".csv", [row])) == [row]


CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}
OTHER = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "g", "arguments": {"b": 2}}}]}
TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"properties": {n: {"type": "int"}}}}} for n in "fg"
]


@pytest.mark.parametrize("suffix", [".parquet", "of datasets"])
def test_keys_that_arrow_adds_are_removed_from_messages_and_tools(written, suffix):
    turns = [{"role": "user", "content": "a"}, CALL, {"role": "tool", "name": "f", "content": "b"}, OTHER]
    rows = [
        {"prompt": turns[:1], "completions": [[CALL], [OTHER]], "messages": turns, "tools": TOOLS, "meta": {"a": None}},
        {"prompt": turns[:3], "completions": [[OTHER], [CALL]], "messages": None, "tools": None, "meta": {"a": 1}},
    ]
    of_arrow = datasets.Dataset.from_list(rows)
    assert of_arrow[0]["messages"][0] != turns[0]  # it has the keys of the other messages
    assert rows_of(of_arrow if suffix == "of datasets" else written(suffix, rows)) == rows


def test_objects_that_are_no_messages_keep_none_and_so_do_rows_in_memory(written):
    rows = [{"instruction": "a", "completions": [{"response": None}, {"response": "b"}]}]
    assert rows_of(written(".parquet", rows)) == rows
    assert rows_of([{"prompt": [{**CALL, "content": None}]}]) == [{"prompt": [{**CALL, "content": None}]}]


def test_places(written):
    assert places_of(written(".jsonl"))[1].endswith("rows.jsonl, line 2")
    assert places_of(written(".csv"))[1].endswith("rows.csv, line 4")  # the quoted cell has two lines
    assert places_of(written(".parquet"))[1].endswith("rows.parquet, row 2")
    assert places_of(ROWS) == ["the data, row 1", "the data, row 2"]


def test_empty_lines_are_passed_over_and_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a\xe2\x80\xa8b"}\r\n\n{"prompt": "c"}')
    assert [place.rpartition(" ")[2] for place in places_of(path)] == ["1", "3"]
    assert rows_of(path) == [{"prompt": "a\u2028b"}, {"prompt": "c"}]


def test_lines_are_read_as_they_are_needed(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prom')
    rows = read(path, split="train")
    assert next(rows)[1] == {"prompt": "a"}
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2, character 2: Unterminated string.*truncated\?"):
        next(rows)


def test_lines_of_json_under_another_name(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert rows_of(path) == [{"prompt": "a"}, {"prompt": "b"}]
    path.write_text('{"prompt": "a"}')
    assert rows_of(path) == [{"prompt": "a"}]


def test_splits_of_a_json_file(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"train": ROWS, "test": ROWS[:1]}))
    assert rows_of(path) == ROWS
    assert rows_of(path, "test") == ROWS[:1]
    with pytest.raises(ValueError, match=r"no split 'validation', only 'train', 'test': rename"):
        rows_of(path, "validation")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": "b",}\n', r"a\.jsonl, line 2, character 1\d: "),
        ("a.jsonl", b'{"prompt": "a"}\n[1]\n', r"a\.jsonl, line 2: found a list, expected an object with columns"),
        ("a.jsonl", b'{"prompt": "a", "prompt": "b"}\n', r"a\.jsonl, line 1: an object has the key 'prompt' twice"),
        ("a.json", b'[{"m": {"role": "a", "role": "b"}}]', r"a\.json: an object has the key 'role' twice: remove one"),
        ("a.jsonl", b'{"prompt": "\xff"}\n', r"a\.jsonl, line 1, byte 13: the text is not UTF-8"),
        ("a.json", b'[{"prompt": "a"},\n {"prompt" "b"}]', r"a\.json, line 2, character 12: Expecting ':'"),
        ("a.json", b'["a"]', r"a\.json, row 1: found a str"),
        ("a.csv", b"prompt,answer\na,b\nc,d,e\n", r"a\.csv, line 3: more or fewer cells than the 2 of the header"),
        ("a.csv", b"prompt,answer\na\n", r"a\.csv, line 2: more or fewer cells"),
        (
            "a.json",
            b'{"prompt": ["a"], "completion": ["b"]}',
            "'prompt', 'completion', which are columns, expected a list",
        ),
        ("a.json", b'{"prompt": [[{"role": "user"}]]}', "object of the lists 'prompt', which are columns"),
        ("a.csv", b'prompt,answer\na,"b"c\n', r"a\.csv, line 2: .*expected after"),
        ("a.csv", b"prompt\n\xff\n", r"a\.csv: the text is not UTF-8"),
        ("a.json", b'["\xff"]', r"a\.json, byte 3: the text is not UTF-8"),
        ("a.parquet", b"PAR1 or not", r"a\.parquet cannot be read as Parquet: "),
        ("a.txt", b"prompt", r"a\.txt ends in '\.txt', expected one of \.jsonl, \.json, \.parquet, \.csv"),
    ],
)
def test_broken_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        rows_of(path)


def test_datasets_in_memory():
    dataset = datasets.Dataset.from_list(ROWS)
    assert rows_of(dataset) == rows_of(ROWS) == rows_of(iter(ROWS)) == ROWS
    parts = datasets.DatasetDict(train=dataset, test=dataset.select([1]))
    assert rows_of(parts, "test") == ROWS[1:]
    with pytest.raises(
        ValueError, match=r"no split .*, only 'prompt', 'answer': if these are columns, pass datasets\.Data"
    ):
        list(read({"prompt": ["a"], "answer": ["b"]}, split="train"))
    with pytest.raises(ValueError, match=r"the data has no split 'dev', only 'train', 'test': rename"):
        rows_of(parts, "dev")


def test_examples_for_evaluation_are_those_of_the_usual_splits_and_never_those_of_training():
    dataset = datasets.Dataset.from_list(ROWS)
    for name in ("test", "validation", "eval", "test_prefs"):
        assert rows_of({"train": dataset, name: dataset.select([1])}, "test") == ROWS[1:]
    with pytest.raises(
        ValueError, match=r"no split 'test' or 'validation' or 'eval' or 'test_prefs', only 'train'"
    ) as found:
        rows_of(datasets.DatasetDict(train=dataset), "test")
    assert "rename" not in str(found.value), "the training split must not become the one for evaluation"
    assert str(found.value).endswith("train_test_split(test_size=0.1)`, or leave eval_dataset out")


def test_the_format_of_a_dataset_does_not_matter():
    dataset = datasets.Dataset.from_list([{"prompt": "1+1=", "answer": 2}])
    for kind in ("torch", "numpy", "pandas"):
        assert rows_of(dataset.with_format(kind)) == [{"prompt": "1+1=", "answer": 2}]
    assert rows_of(dataset.to_pandas()) == [{"prompt": "1+1=", "answer": 2}]


def test_missing_cells_of_a_table_are_none():
    columns = {"prompt": ["a", None], "margin": [0.5, math.nan], "ranks": [[1, 2], None], "level": [1, 2]}
    columns["day"] = pd.to_datetime(["2026-01-02", None])
    assert rows_of(pd.DataFrame(columns)) == [
        {"prompt": "a", "margin": 0.5, "ranks": [1, 2], "level": 1, "day": pd.Timestamp("2026-01-02")},
        {"prompt": None, "margin": None, "ranks": None, "level": 2, "day": None},
    ]


def test_lists_of_a_table_from_parquet_are_lists(written):
    turns = [{"role": "user", "content": "a"}, CALL, {"role": "tool", "name": "f", "content": "b"}]
    rows = [{"prompt": turns, "completions": ["c", "d"], "labels": [True, False], "nested": [[1, 2], [3]]}]
    assert rows_of(pd.read_parquet(written(".parquet", rows))) == rows
    assert rows_of(datasets.Dataset.from_list(rows).to_pandas()) == rows


def test_cells_of_a_csv_file_may_be_long(written):
    rows = [{"prompt": "a" * 200_000, "completion": "b"}]
    assert rows_of(written(".csv", rows)) == rows


def test_a_column_of_a_table_that_appears_twice_is_an_error(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("prompt,answer,answer\n0+1=,1,999\n")
    with pytest.raises(ValueError, match=r"rows.csv: the header has the column 'answer' more than once: rename"):
        rows_of(path)


def test_rows_are_copies():
    (row, *_) = rows_of(ROWS)
    row["prompt"] = "changed"
    assert ROWS[0]["prompt"] == "1+1="


def test_invalid_rows_are_rejected():
    with pytest.raises(ValueError, match="the data, row 2: found a str"):
        rows_of([{"prompt": "a"}, "prompt"])


def test_saved_datasets(tmp_path):
    dataset = datasets.Dataset.from_list(ROWS)
    dataset.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=dataset, test=dataset.select([1])).save_to_disk(tmp_path / "two")
    assert rows_of(tmp_path / "one") == rows_of(tmp_path / "two") == ROWS
    assert rows_of(tmp_path / "two", "test") == ROWS[1:]


def test_a_folder_without_a_dataset_is_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match="the folder cannot be loaded"):
        rows_of(tmp_path)


@pytest.mark.parametrize(
    "source", ["missing.jsonl", "data/missing.csv", "/nowhere/at/all", "./owner/name", "./name", "owner/name"]
)
def test_a_file_that_is_not_there_is_not_looked_for_elsewhere(source, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("looked for it in the network"))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        rows_of(source)


def test_a_dataset_of_the_hub_that_cannot_be_had_is_named(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match=r"'nobody/nothing:main': there is no such file.*with network access"):
        rows_of("nobody/nothing:main")


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    """Set a hub without a server, and an empty cache."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    for name in ("huggingface_hub.constants.ENDPOINT", "datasets.config.HF_ENDPOINT"):
        monkeypatch.setattr(name, address)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    huggingface._hub_problem.cache_clear()
    yield tmp_path / "cache"
    huggingface._hub_problem.cache_clear()


def test_a_hub_that_cannot_be_reached_is_not_asked_again_and_again(no_hub, caplog):
    message = r"'owner/name': there is no such file.*Hub cannot be reached: .*refused.*cache on this machine lacks"
    with pytest.raises(FileNotFoundError, match=message):
        rows_of("owner/name")
    assert "Retrying" not in caplog.text
    assert not datasets.config.HF_HUB_OFFLINE


def test_without_the_hub_its_cache_serves(no_hub, written):
    loaded = datasets.load_dataset("json", data_files={"train": str(written(".jsonl"))}, cache_dir=str(no_hub / "made"))
    (file,) = {entry["filename"] for entry in loaded["train"].cache_files}
    cached = no_hub / "owner___name" / "default" / "0.0.0" / "abc"
    shutil.copytree(Path(file).parent, cached)
    (cached / Path(file).name).rename(cached / "name-train.arrow")
    assert rows_of("owner/name") == ROWS
    with pytest.raises(FileNotFoundError, match="cannot be loaded"):
        rows_of("owner/name", "test")
