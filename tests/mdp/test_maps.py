import numpy as np
import pytest

from operant.mdp import maps, save

DRAWING = "S.#\n..G\n"


def test_a_frozen_lake_has_its_map_and_arrows():
    model = maps.read("FrozenLake-v1")
    assert model.shape == (4, 4)
    assert model.symbols[0, 0] == "S"
    assert model.symbols[3, 3] == "G"
    assert model.arrows == "←↓→↑"
    assert model.mdp.states == 16


def test_a_cliff_has_a_shape_but_no_symbols():
    model = maps.read("CliffWalking-v1")
    assert model.shape == (4, 12)
    assert model.symbols is None
    assert model.arrows == "↑→↓←"


@pytest.mark.parametrize("task", ["operant/BlockingMaze-v0", "operant/ShortcutMaze-v0"])
def test_a_changing_maze_has_arrows_and_a_warning(task, caplog):
    model = maps.read(task)
    assert model.arrows == "↑→↓←"
    assert "changes with the number of steps: the model and its solution hold at the beginning" in caplog.text
    caplog.clear()
    later = maps.read(task, env_kwargs={"frozen_at": 5000})
    assert not caplog.text
    assert (later.mdp.successors != model.mdp.successors).any()


def test_a_model_without_a_map_has_none():
    model = maps.read("Taxi-v4")
    assert model.shape is None
    assert model.arrows == ""


def test_a_drawing_may_begin_with_a_byte_order_mark_and_a_wrong_one_names_its_file(tmp_path):
    drawing = tmp_path / "grid.txt"
    drawing.write_text("slip: 0.2\n\nS . +1\n", encoding="utf-8-sig")
    assert maps.read(drawing=drawing).mdp.states == 3
    drawing.write_text("slop: 0.2\n\nS . +1\n")
    with pytest.raises(ValueError, match=r"grid\.txt: line 1, column 1: 'slop' is not a setting"):
        maps.read(drawing=drawing)


def test_a_drawing_is_read(tmp_path):
    path = tmp_path / "grid.txt"
    path.write_text(DRAWING)
    model = maps.read(drawing=path)
    assert model.name == "grid.txt"
    assert model.shape == (2, 3)
    assert model.symbols[0, 2] == "#"
    assert model.mdp.terminal.reshape(2, 3)[1, 2]


def test_a_saved_model_is_read(tmp_path):
    model = maps.read("FrozenLake-v1").mdp
    save(model, tmp_path / "lake.json")
    again = maps.read(file=tmp_path / "lake.json")
    assert again.name == "lake.json"
    np.testing.assert_array_equal(again.mdp.probabilities, model.probabilities)


def test_a_table_is_read(tmp_path):
    path = tmp_path / "chain.csv"
    path.write_text("s,a,s',p,r\n0,0,1,1.0,2.5\n")
    mdp = maps.read(file=path).mdp
    assert mdp.states == 2
    assert mdp.rewards.tolist() == [2.5]


def test_a_file_of_another_kind_is_rejected():
    with pytest.raises(ValueError, match=r"has the suffix '\.py', expected one of \.json, \.npz, \.csv, \.tsv"):
        maps.read(file="model.py")


@pytest.mark.parametrize("sources", [{}, {"task": "FrozenLake-v1", "drawing": "x"}, {"drawing": "x", "file": "y"}])
def test_exactly_one_source_is_needed(sources):
    with pytest.raises(ValueError, match="exactly one model"):
        maps.read(**sources)


def test_a_task_without_a_table_is_rejected():
    with pytest.raises(ValueError, match="CartPole"):
        maps.read("CartPole-v1")


def test_errors_of_a_named_table_list_its_names(tmp_path):
    path = tmp_path / "week.csv"
    path.write_text("s,a,s',p,r\nhome,go,work,0.9,0\nwork,stay,home,1,1\n")
    message = r"state 0, action 0: the probabilities sum to 0\.9, .*; states: 0 home, 1 work; actions: 0 go, 1 stay$"
    with pytest.raises(ValueError, match=message):
        maps.read(file=path)


def test_a_separator_needs_a_table():
    with pytest.raises(ValueError, match="separator is ';', but no file is given"):
        maps.read("FrozenLake-v1", separator=";")
    with pytest.raises(ValueError, match=r"model.json is not a table \(.csv, .tsv\)"):
        maps.read(file="model.json", separator=";")
