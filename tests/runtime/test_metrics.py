import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.runtime.metrics import RecordWriter, last_record, read_records, rewind


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write(path, *records):
    writer = RecordWriter(path)
    for record in records:
        writer.write(record)
    writer.close()
    return writer


def test_tensors_become_numbers_and_lists(path):
    write(path, {"consumed": 3, "a": torch.tensor([1.0, 2.0]), "b": torch.tensor(2), "c": np.float64(0.5), "d": (1, 2)})
    assert read_records(path) == [{"consumed": 3, "a": [1.0, 2.0], "b": 2, "c": 0.5, "d": [1, 2]}]


def test_numbers_that_are_not_finite_are_kept_in_strict_json(path):
    write(path, {"a": torch.tensor([math.nan, math.inf, -math.inf, 1.0]), "b": math.inf})
    line = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert line == {"a": ["NaN", "Infinity", "-Infinity", 1.0], "b": "Infinity"}
    (record,) = read_records(path)
    assert math.isnan(record["a"][0])
    assert record["a"][1:] == [math.inf, -math.inf, 1.0]


@settings(deadline=None, max_examples=30)
@given(st.floats(allow_nan=False))
def test_floats_are_exact(tmp_path_factory, number):
    path = tmp_path_factory.mktemp("metrics") / "m.jsonl"
    write(path, {"x": number})
    assert read_records(path) == [{"x": number}]


def test_appending_continues_at_the_end_of_the_file(path):
    write(path, {"consumed": 1})
    write(path, {"consumed": 2})
    assert [r["consumed"] for r in read_records(path)] == [1, 2]


def test_every_record_is_on_disk_immediately(path):
    writer = RecordWriter(path)
    writer.write({"consumed": 1})
    assert read_records(path) == [{"consumed": 1}]
    writer.close()
    writer.close()


@pytest.mark.parametrize("cut", range(1, 16))
def test_a_torn_last_line_costs_itself_alone(path, cut):
    write(path, {"consumed": 1}, {"consumed": 22})
    path.write_bytes(path.read_bytes()[:-cut])
    before = read_records(path)
    assert before in ([{"consumed": 1}], [{"consumed": 1}, {"consumed": 22}])
    write(path, {"consumed": 3})
    assert read_records(path) == [*before, {"consumed": 3}]


def test_lines_that_are_no_records_are_left_out(path):
    path.write_bytes(b'{"consumed": 1}\n\n[1]\n"x"\n\xff\xfe\n{"consumed": 2}\n' + b"[" * 100_000 + b"\n")
    assert [r["consumed"] for r in read_records(path)] == [1, 2]


@pytest.mark.parametrize("ending", ["", '{"consumed": 3'])
@pytest.mark.parametrize("padding", [0, 200_000])
def test_the_last_record_is_found_from_the_end(path, ending, padding):
    write(path, {"consumed": 1, "a": " " * padding}, {"consumed": 2, "a": " " * padding})
    with path.open("a", encoding="utf-8") as file:
        file.write(ending)
    assert last_record(path)["consumed"] == 2
    assert last_record(path.parent / "nothing") is None
    assert last_record(path.parent) is None


def test_no_file_has_no_records(path):
    assert read_records(path) == []
    assert rewind(path, 0) == 0
    assert not path.exists()


def test_rewind_moves_what_is_later(path):
    write(path, *({"consumed": n, "x": math.nan} for n in (10, 20, 30, 40)))
    lines = path.read_bytes().splitlines(keepends=True)
    assert rewind(path, 20) == 2
    assert path.read_bytes() == b"".join(lines[:2])
    aside = path.with_name("rewound.jsonl")
    assert aside.read_bytes() == b"".join(lines[2:])
    write(path, {"consumed": 25})
    assert rewind(path, 20) == 1
    assert [r["consumed"] for r in read_records(aside)] == [30, 40, 25]


def test_rewind_moves_damaged_lines_and_warns(path, caplog):
    path.write_bytes(b'{"consumed": 1}\n\xff\x00\n\n{"consumed": 2}\n{"cons\n{"consumed": 3}\n')
    assert rewind(path, 2) == 1
    assert path.read_bytes() == b'{"consumed": 1}\n{"consumed": 2}\n'
    assert path.with_name("rewound.jsonl").read_bytes() == b'\xff\x00\n{"cons\n{"consumed": 3}\n'
    assert "has 2 lines without a record, moved to rewound.jsonl" in caplog.text


def test_rewind_drops_a_torn_line(path, caplog):
    path.write_bytes(b'{"consumed": 1}\n{"consu')
    assert rewind(path, 5) == 0
    assert path.read_bytes() == b'{"consumed": 1}\n'
    assert not path.with_name("rewound.jsonl").exists()
    assert not caplog.text
