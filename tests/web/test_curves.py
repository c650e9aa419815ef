import json
import math
import time

import numpy as np
import pytest

from operant.runtime.metrics import line_of
from operant.web.curves import MOST_POINTS, Columns, decimated


def write(path, records, mode="w"):
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_only_what_is_new_is_read(tmp_path):
    path, columns = tmp_path / "metrics.jsonl", Columns()
    write(path, [{"consumed": i, "a": [i, 2 * i]} for i in range(3)])
    first = columns.read(path, "a")
    assert (first.consumed.tolist(), first.seeds.table[2].tolist()) == ([0, 1, 2], [2, 4])
    read = first.offset
    write(path, [{"consumed": 3, "b": 1.0}, {"consumed": 4, "a": [4, 8]}], "a")
    second = columns.read(path, "a")
    assert second is first
    assert second.consumed.tolist() == [0, 1, 2, 4]
    assert second.offset > read


@pytest.mark.parametrize("name", ["größe", 'a "b"', "back\\slash"])
def test_names_with_any_characters_are_found(tmp_path, name):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line_of({"consumed": 1, name: 2.0}))
    assert Columns().read(path, name).seeds.table == [2.0]
    assert Columns().names(path) == {"consumed", name}


def test_a_torn_line_is_read_once_it_is_whole(tmp_path):
    path, columns = tmp_path / "metrics.jsonl", Columns()
    path.write_text('{"consumed": 1, "a": 1.0}\n{"consumed": 2, "a"', encoding="utf-8")
    assert columns.read(path, "a").consumed.tolist() == [1]
    with path.open("a", encoding="utf-8") as file:
        file.write(": 2.0}\n")
    assert columns.read(path, "a").consumed.tolist() == [1, 2]


@pytest.mark.parametrize("text", ['{"consumed": 9, "a": 9.0}\n', '{"consumed": 9, "a": 9.0}\n' * 9])
def test_a_rewritten_file_is_read_again(tmp_path, text):
    path, columns = tmp_path / "metrics.jsonl", Columns()
    write(path, [{"consumed": i, "a": i} for i in range(5)])
    columns.read(path, "a")
    new = tmp_path / "new"
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    assert set(columns.read(path, "a").consumed) == {9}


def test_lines_that_hold_no_record_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('nonsense "a"\n[1, "a"]\n{"consumed": 1, "a": "NaN"}\n', encoding="utf-8")
    column = Columns().read(path, "a")
    assert np.isnan(column.seeds.table).all()
    assert decimated(column)["center"] == [None]
    assert not Columns().read(tmp_path / "nothing", "a").consumed


def test_a_curve_keeps_its_extremes(tmp_path):
    path = tmp_path / "metrics.jsonl"
    values = np.random.default_rng(0).normal(size=(5000, 3))
    write(path, [{"consumed": i, "a": row.tolist()} for i, row in enumerate(values)])
    curve = decimated(Columns().read(path, "a"))
    assert len(curve["x"]) == MOST_POINTS
    assert curve["x"][-1] == 4999
    assert len(curve["seeds"]) == 3
    assert (min(curve["low"]), max(curve["high"])) == (values.min(), values.max())
    np.testing.assert_allclose(np.mean(curve["center"]), values.mean())
    np.testing.assert_allclose(np.mean(curve["seeds"][1]), values[:, 1].mean())


def test_a_seed_without_a_number_does_not_hide_the_others(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [{"consumed": 1, "a": ["NaN", 2.0]}])
    curve = decimated(Columns().read(path, "a"))
    assert (curve["center"], curve["low"], curve["high"], curve["seeds"]) == ([2.0], [2.0], [2.0], [[None], [2.0]])


def merged(values, points, merge):
    """Return the merged finite values, group by group."""
    kept = [group[np.isfinite(group)] for group in np.array_split(np.array(values), points)]
    return [float(merge(group)) if group.size else None for group in kept]


@pytest.mark.parametrize("seeds", [1, 3, 8, 9, 33])
def test_a_growing_curve_is_that_of_a_single_pass(tmp_path, seeds):
    """Bit for bit: the means of groups and of seeds are rounded as if they were calculated one by one."""
    path, columns, draws = tmp_path / "metrics.jsonl", Columns(), np.random.default_rng(seeds)
    rows = []
    for count in (1, 1, 498, 1, 777):
        more = draws.normal(size=(count, seeds))
        more[draws.random(more.shape) < 0.1] = math.nan
        with path.open("ab") as file:
            file.writelines(line_of({"consumed": len(rows) + i, "a": row}) for i, row in enumerate(more))
        rows += [*more]
        finite = [np.where(np.isfinite(row), row, 0.0) for row in rows]
        with np.errstate(invalid="ignore"):
            center = [row.sum() / np.isfinite(own).sum() for row, own in zip(finite, rows, strict=True)]
        points, curve = min(len(rows), MOST_POINTS), decimated(columns.read(path, "a"))
        assert curve["x"] == [int(group[-1]) for group in np.array_split(np.arange(len(rows)), points)]
        assert curve["center"] == merged(center, points, np.mean)
        assert curve["seeds"] == [merged(column, points, np.mean) for column in np.array(rows).T]
        assert (curve["low"], curve["high"]) == tuple(
            merged([end(row, initial=math.nan) for row in rows], points, merge)
            for end, merge in ((np.fmin.reduce, np.min), (np.fmax.reduce, np.max))
        )


def test_a_record_with_more_seeds_widens_the_table(tmp_path):
    path, columns = tmp_path / "metrics.jsonl", Columns()
    for record in ({"consumed": 1, "a": 1.0}, {"consumed": 2, "a": [2.0, 4.0]}, {"consumed": 3, "a": [5.0]}):
        write(path, [record], "a")
        curve = decimated(columns.read(path, "a"))
    assert (curve["center"], curve["seeds"]) == ([1.0, 3.0, 5.0], [[1.0, 2.0, 5.0], [None, 4.0, None]])


def test_a_record_of_a_long_run_takes_little_time(tmp_path):
    path, columns = tmp_path / "metrics.jsonl", Columns()
    write(path, [{"consumed": i, "a": [float(i)] * 8} for i in range(20_000)])
    began = time.process_time()
    decimated(columns.read(path, "a"))
    first = time.process_time() - began
    write(path, [{"consumed": 20_000, "a": [0.0] * 8}], "a")
    began = time.process_time()
    assert decimated(columns.read(path, "a"))["x"][-1] == 20_000
    assert time.process_time() - began < first / 10


def test_the_cache_is_limited_by_its_size_not_the_number_of_files(tmp_path):
    paths = [tmp_path / f"{i}.jsonl" for i in range(100)]
    for path in paths:
        write(path, [{"consumed": 1, "a": 1.0}])
    large, small = Columns(), Columns(most_bytes=0)
    first = [(large.read(path, "a"), small.read(path, "a")) for path in paths]
    assert all(large.read(path, "a") is kept for path, (kept, _) in zip(paths, first, strict=True))
    assert small.read(paths[-1], "a") is first[-1][1]
    assert small.read(paths[0], "a") is not first[0][1]


def test_names_are_those_of_all_records(tmp_path):
    path, columns = tmp_path / "metrics.jsonl", Columns()
    write(path, [{"consumed": 1, "b": [1.0], "text": '"no": 1'}, {"consumed": 2, "a": {"inner": 1}}, {"consumed": 3}])
    assert columns.names(path) == {"consumed", "a", "b", "text"}
    write(path, [{"consumed": 4, "c\\": 1}], "a")
    assert columns.names(path) == {"consumed", "a", "b", "text", "c\\"}
