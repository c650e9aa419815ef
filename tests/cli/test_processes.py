import pytest

from operant import scale
from operant.cli.processes import in_processes


@pytest.fixture(autouse=True)
def outside_of_torchrun(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_one_process_does_the_work_itself():
    assert in_processes(["train"], 1, lambda: 7) == 7


def test_several_are_started_with_the_same_command(monkeypatch):
    monkeypatch.setattr(scale, "launch", lambda command, processes: (command, processes))
    found = in_processes(["train", "ppo"], 3, lambda: pytest.fail("this process only starts others"))
    assert found == (["train", "ppo"], 3)


def test_less_than_one_is_refused():
    with pytest.raises(ValueError, match="--processes must be at least 1, got 0"):
        in_processes(["train"], 0, lambda: 0)
