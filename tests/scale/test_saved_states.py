"""States under names."""

import pytest
import torch

from operant.runtime.checkpoints import Checkpoints, NonFiniteError
from operant.scale.saved_states import checked_name, read_state, write_state


def test_a_state_is_replaced_only_on_request(tmp_path):
    write_state(tmp_path / "one", {"x": torch.zeros(2)})
    with pytest.raises(ValueError, match="already exists; save the state under another name, or pass overwrite=True"):
        write_state(tmp_path / "one", {"x": torch.ones(2)})
    assert read_state(tmp_path / "one")["x"].tolist() == [0.0, 0.0]
    write_state(tmp_path / "one", {"x": torch.ones(2)}, overwrite=True)
    assert read_state(tmp_path / "one")["x"].tolist() == [1.0, 1.0]
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_failure_keeps_the_earlier_state(tmp_path):
    write_state(tmp_path / "one", {"x": torch.zeros(2)})
    lost = "2 of 2 numbers of state entry /x are NaN or Inf: nothing was saved, and an earlier state 'one', if any, is "
    with pytest.raises(NonFiniteError, match=lost):
        write_state(tmp_path / "one", {"x": torch.full((2,), torch.nan)}, overwrite=True)
    with pytest.raises(NonFiniteError):
        write_state(tmp_path / "two", {"x": torch.full((2,), torch.nan)})
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert read_state(tmp_path / "one")["x"].tolist() == [0.0, 0.0]


def test_a_crash_between_the_renames_keeps_the_earlier_state(tmp_path):
    write_state(tmp_path / "one", {"x": torch.zeros(2)})
    (tmp_path / "one").rename(tmp_path / ".one.old")
    assert read_state(tmp_path / "one")["x"].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="already exists"):
        write_state(tmp_path / "one", {"x": torch.ones(2)})
    assert read_state(tmp_path / "one")["x"].tolist() == [0.0, 0.0]


def test_a_crash_before_the_renames_keeps_the_earlier_state(tmp_path, monkeypatch):
    write_state(tmp_path / "one", {"x": torch.zeros(2)})

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_state(tmp_path / "one", {"x": torch.ones(2)}, overwrite=True)
    assert read_state(tmp_path / "one")["x"].tolist() == [0.0, 0.0]


def test_names_are_names_of_folders(tmp_path):
    assert checked_name("step-10") == "step-10"
    for name in ("", "../x", ".hidden", "a/b"):
        with pytest.raises(ValueError, match="is no valid name"):
            checked_name(name)
    with pytest.raises(ValueError, match="has no saved state"):
        read_state(tmp_path / "nothing")
