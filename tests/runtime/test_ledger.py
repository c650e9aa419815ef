import logging

import numpy as np
import pytest

from operant.runtime.files import beside
from operant.runtime.ledger import FOLDER, Ledger, Visit, drop_later, keep_ledgers, ledgers_of, read_ledger
from operant.runtime.run import Run
from operant.runtime.settings import Settings


def ledger(consumed=8, seed=0):
    return Ledger(
        consumed=consumed,
        seed=seed,
        group=2,
        steps=1,
        loss={"losses/policy": -0.25},
        prompts=["1+1="],
        answers=[
            {"prompt": 0, "text": text, "reward": r, "counts": True} for text, r in (("2\u2028<b>", 1.0), ("3", None))
        ],
        pieces=["2", "3"],
        visits=[Visit(1, 0, 0, 1), Visit(0, 0, 1, 1)],
        columns={"piece": np.array([1, 0], np.int32), "policy": np.array([0.5, -0.75], np.float32)},
        rest={"tokens": 0, "policy": 0.0},
    )


def test_a_ledger_is_read_as_it_was_written(tmp_path):
    keep_ledgers(tmp_path, [ledger()])
    found, expected = read_ledger(tmp_path, 8, 0), ledger()
    assert {n: v for n, v in vars(found).items() if n != "columns"} == {
        n: v for n, v in vars(expected).items() if n != "columns"
    }
    assert {n: (c.dtype, c.tolist()) for n, c in found.columns.items()} == {
        n: (c.dtype, c.tolist()) for n, c in expected.columns.items()
    }


def test_ledgers_are_listed_in_order_and_those_of_a_later_batch_go(tmp_path):
    assert ledgers_of(tmp_path) == []
    keep_ledgers(tmp_path, [ledger(100, 1), ledger(20, 0), ledger(20, 1), ledger(20, 1)])
    (tmp_path / FOLDER / "note.txt").write_text("", encoding="utf-8")
    assert ledgers_of(tmp_path) == [(20, 0), (20, 1), (100, 1)]
    drop_later(tmp_path, 20)
    assert ledgers_of(tmp_path) == [(20, 0), (20, 1)]


def test_ledgers_of_large_seeds_are_listed(tmp_path):
    keep_ledgers(tmp_path, [ledger(8, 2**63)])
    assert ledgers_of(tmp_path) == [(8, 2**63)]


def test_a_folder_that_cannot_be_written_does_not_stop_training(tmp_path, caplog):
    (tmp_path / FOLDER).write_text("", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        keep_ledgers(tmp_path, [ledger()])
    assert "training continues" in caplog.text


def test_leftovers_of_a_killed_process_are_removed_by_the_next_one(tmp_path):
    run = Run.create(tmp_path / "run", Settings("grpo", "arithmetic"), Settings("a", "b"))
    keep_ledgers(run.path, [ledger()])
    (file,) = (run.path / FOLDER).iterdir()
    beside(file).write_bytes(b"half")
    run.clean()
    assert list((run.path / FOLDER).iterdir()) == [file]


@pytest.mark.parametrize("cut", [slice(0, 4), slice(0, 60), slice(0, -3), slice(9, None)], ids=str)
def test_a_damaged_file_is_named(tmp_path, cut):
    keep_ledgers(tmp_path, [ledger()])
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_bytes(file.read_bytes()[cut])
    with pytest.raises(ValueError, match=r"step_8_seed_0.safetensors is damaged"):
        read_ledger(tmp_path, 8, 0)


def test_a_missing_ledger_is_an_error(tmp_path):
    with pytest.raises(OSError, match="step_8"):
        read_ledger(tmp_path, 8, 0)
