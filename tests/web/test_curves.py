import json

import numpy as np
import pytest

from operant.runtime.metrics import line_of
from operant.web.curves import MOST_POINTS, Columns, decimated, table


def write(path, records, mode="w"):
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_only_what_is_new_is_read(tmp_path):
    path, columns = tmp_path / "metrics.jsonl", Columns()
    write(path, [{"consumed": i, "a": [i, 2 * i]} for i in range(3)])
    first = columns.read(path, ["a"])
    assert (first.consumed, first.values["a"][2]) == ([0, 1, 2], [2, 4])
    read = first.offset
    write(path, [{"consumed": 3, "b": 1.0}, {"consumed": 4, "a": [4, 8]}], "a")
    second = columns.read(path, ["a"])
    assert second is first
    assert second.consumed == [0, 1, 2, 4]
    assert second.offset > read


@pytest.mark.parametrize("name", ["größe", 'a "b"', "back\\slash"])
def test_names_with_any_characters_are_found(tmp_path, name):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line_of({"consumed": 1, name: 2.0}))
    assert Columns().read(path, [name]).values[name] == [2.0]


def test_a_torn_line_is_read_once_it_is_whole(tmp_path):
    path, columns = tmp_path / "metrics.jsonl", Columns()
    path.write_text('{"consumed": 1, "a": 1.0}\n{"consumed": 2, "a"', encoding="utf-8")
    assert columns.read(path, ["a"]).consumed == [1]
    with path.open("a", encoding="utf-8") as file:
        file.write(": 2.0}\n")
    assert columns.read(path, ["a"]).consumed == [1, 2]


@pytest.mark.parametrize("text", ['{"consumed": 9, "a": 9.0}\n', '{"consumed": 9, "a": 9.0}\n' * 9])
def test_a_rewritten_file_is_read_again(tmp_path, text):
    path, columns = tmp_path / "metrics.jsonl", Columns()
    write(path, [{"consumed": i, "a": i} for i in range(5)])
    columns.read(path, ["a"])
    new = tmp_path / "new"
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    assert set(columns.read(path, ["a"]).consumed) == {9}


def test_lines_that_hold_no_record_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('nonsense "a"\n[1, "a"]\n{"consumed": 1, "a": "NaN"}\n', encoding="utf-8")
    column = Columns().read(path, ["a"])
    assert np.isnan(table(column.values["a"])).all()
    assert decimated(column, "a")["center"] == [None]
    assert Columns().read(tmp_path / "nothing", ["a"]).consumed == []


def test_a_curve_keeps_its_extremes(tmp_path):
    path = tmp_path / "metrics.jsonl"
    values = np.random.default_rng(0).normal(size=(5000, 3))
    write(path, [{"consumed": i, "a": row.tolist()} for i, row in enumerate(values)])
    curve = decimated(Columns().read(path, ["a"]), "a")
    assert len(curve["x"]) == MOST_POINTS
    assert curve["x"][-1] == 4999
    assert len(curve["seeds"]) == 3
    assert (min(curve["low"]), max(curve["high"])) == (values.min(), values.max())
    np.testing.assert_allclose(np.mean(curve["center"]), values.mean())
    np.testing.assert_allclose(np.mean(curve["seeds"][1]), values[:, 1].mean())


def test_a_seed_without_a_number_does_not_hide_the_others(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [{"consumed": 1, "a": ["NaN", 2.0]}])
    curve = decimated(Columns().read(path, ["a"]), "a")
    assert (curve["center"], curve["low"], curve["high"], curve["seeds"]) == ([2.0], [2.0], [2.0], [[None], [2.0]])
