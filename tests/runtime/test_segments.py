import pytest
import torch

from operant.runtime.checkpoints import CheckpointError, Checkpoints, NonFiniteError, load, verify


def state(parts, weight=1.0):
    """A learner with a memory of several parts, each of two fields."""
    memory = [{"obs": torch.full((50, 2), float(n)), "actions": torch.full((50,), n)} for n in parts]
    return {"weight": torch.full((3,), weight), "replay": {"added": len(parts), "segments": memory}}


def files(checkpoints):
    folder = checkpoints.folder / "segments"
    return {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} if folder.exists() else {}


def numbers(loaded):
    return [int(part["actions"][0]) for part in loaded["replay"]["segments"]]


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def test_a_state_with_segments_comes_back(checkpoints):
    path = checkpoints.save(state([1, 2, 3]), 10)
    again = load(path)
    assert numbers(again) == [1, 2, 3]
    assert again["replay"]["segments"][2]["obs"].shape == (50, 2)
    assert again["weight"].tolist() == [1, 1, 1]
    assert verify(path) == 10


def test_what_has_not_changed_is_not_written_again(checkpoints):
    checkpoints.save(state([1, 2, 3]), 10)
    before = files(checkpoints)
    second = checkpoints.save(state([1, 2, 3, 4]), 20)
    after = files(checkpoints)
    assert len(before) == 3
    assert len(after) == 4
    assert {name: after[name] for name in before} == before
    small = (second / "state.safetensors").stat().st_size
    assert small < 300, "segments belong into files of their own"


def test_equal_parts_are_stored_once(checkpoints):
    path = checkpoints.save(state([7, 7, 7]), 10)
    assert len(files(checkpoints)) == 1
    assert numbers(load(path)) == [7, 7, 7]


def test_what_no_checkpoint_needs_is_removed(checkpoints):
    for n in range(1, 5):
        checkpoints.save(state([n]), n)
    assert len(files(checkpoints)) == 2, "two checkpoints are kept"
    assert numbers(load(checkpoints.latest()[0])) == [4]
    checkpoints.save({"weight": torch.ones(1)}, 5)
    checkpoints.save({"weight": torch.ones(1)}, 6)
    assert not (checkpoints.folder / "segments").exists()


def test_leftovers_of_a_crash_are_cleaned(checkpoints):
    checkpoints.save(state([1]), 1)
    orphan = checkpoints.folder / "segments" / f"{'0' * 64}.safetensors"
    orphan.write_bytes(b"half")
    checkpoints.clean()
    assert not orphan.exists()
    assert numbers(load(checkpoints.latest()[0])) == [1]


@pytest.mark.parametrize("damage", ["flip", "shorten", "remove"])
def test_a_damaged_segment_damages_the_checkpoints_that_need_it(checkpoints, damage):
    checkpoints.save(state([1]), 1)
    old = set(files(checkpoints))
    checkpoints.save(state([1, 2]), 2)
    (new,) = set(files(checkpoints)) - old
    file = checkpoints.folder / "segments" / new
    contents = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    else:
        contents[-1] ^= 1
        file.write_bytes(contents if damage == "flip" else contents[:-1])
    fresh = Checkpoints(checkpoints.folder)
    path, consumed = fresh.latest()
    assert consumed == 1
    assert numbers(load(path)) == [1]
    with pytest.raises(CheckpointError, match=new):
        verify(checkpoints.folder / "step_000000000002")


def test_a_damaged_segment_is_written_anew(checkpoints):
    checkpoints.save(state([1]), 1)
    (name,) = files(checkpoints)
    file = checkpoints.folder / "segments" / name
    file.write_bytes(b"x" * file.stat().st_size)
    path = checkpoints.save(state([1], weight=2.0), 2)
    assert numbers(load(path)) == [1]


def test_a_memory_that_is_not_finite_is_put_aside_and_can_be_looked_at(checkpoints):
    checkpoints.save(state([1]), 1)
    bad = state([1, 2])
    bad["replay"]["segments"][1]["obs"][3] = torch.nan
    with pytest.raises(NonFiniteError, match=r"replay/segments/1/obs"):
        checkpoints.save(bad, 2)
    (aside,) = (checkpoints.folder / "quarantine").glob("step_*")
    assert numbers(load(aside)) == [1, 2]
    checkpoints.save(state([1, 3]), 3)
    assert numbers(load(aside)) == [1, 2], "what lies in quarantine keeps its segments"


def test_equal_states_give_equal_files(tmp_path):
    one, two = (Checkpoints(tmp_path / name).save(state([1, 2]), 5) for name in ("one", "two"))
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes()
