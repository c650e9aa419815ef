import errno
from pathlib import Path

import pytest
import torch

from operant.runtime import checkpoints as checkpoints_module
from operant.runtime.checkpoints import CheckpointError, Checkpoints, NonFiniteError, load, verify
from operant.runtime.files import read_regular
from operant.runtime.segments import marks
from operant.state import Part


def state(parts, weight=1.0):
    """Return the state of a learner with a replay buffer of several parts, each of two fields."""
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


def test_unchanged_segments_are_not_written_again(checkpoints):
    checkpoints.save(state([1, 2, 3]), 10)
    before = files(checkpoints)
    second = checkpoints.save(state([1, 2, 3, 4]), 20)
    after = files(checkpoints)
    assert len(before) == 3
    assert len(after) == 4
    assert {name: after[name] for name in before} == before
    small = (second / "state.safetensors").stat().st_size
    assert small < 300, "segments belong in separate files"


def test_equal_parts_are_stored_once(checkpoints):
    path = checkpoints.save(state([7, 7, 7]), 10)
    assert len(files(checkpoints)) == 1
    assert numbers(load(path)) == [7, 7, 7]


def test_segments_without_a_checkpoint_are_removed(checkpoints):
    for n in range(1, 5):
        checkpoints.save(state([n]), n)
    assert len(files(checkpoints)) == 2, "two checkpoints are kept"
    assert numbers(load(checkpoints.latest()[0])) == [4]
    checkpoints.save({"weight": torch.ones(1)}, 5)
    checkpoints.save({"weight": torch.ones(1)}, 6)
    assert not (checkpoints.folder / "segments").exists()


def test_saving_takes_no_longer_the_more_checkpoints_are_kept(tmp_path, monkeypatch):
    reads = []
    monkeypatch.setattr(checkpoints_module, "read_regular", lambda file: reads.append(file) or read_regular(file))
    everything = Checkpoints(tmp_path / "history", keep=None)
    for n in range(1, 5):
        reads.clear()
        saved = everything.save(state([n]), n)
        assert {file.parent for file in reads} == {saved}, "no manifests of other checkpoints"
    assert len(everything.paths()) == len(files(everything)) == 4
    everything.drop(after=2)
    assert len(everything.paths()) == len(files(everything)) == 2
    everything.prune()
    assert len(everything.paths()) == len(files(everything)) == 1


def test_leftovers_of_a_crash_are_cleaned(checkpoints):
    checkpoints.save(state([1]), 1)
    orphan = checkpoints.folder / "segments" / f"{'0' * 64}.safetensors"
    orphan.write_bytes(b"half")
    checkpoints.clean()
    assert not orphan.exists()
    assert numbers(load(checkpoints.latest()[0])) == [1]


def test_a_manifest_that_cannot_be_read_for_an_instant_loses_no_segments(checkpoints, monkeypatch):
    first = checkpoints.save(state([1]), 100)
    read = Path.read_bytes

    def read_bytes(path):
        if path == first / "manifest.json":
            raise OSError(errno.EMFILE, "Too many open files")
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_bytes)
        checkpoints.save(state([2]), 200)
    assert verify(first) == 100
    checkpoints.save(state([3]), 300)
    assert len(files(checkpoints)) == 2, "unused segments are deleted once every manifest can be read"


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: text.replace('"sha256": "', '"sha256": "0')])
def test_a_checkpoint_with_a_damaged_manifest_can_be_restored(checkpoints, damage, caplog):
    checkpoints.save(state([1]), 100)
    manifest = checkpoints.save(state([2]), 200) / "manifest.json"
    intact = manifest.read_text()
    manifest.write_text(damage(intact))
    checkpoints.clean()
    assert f"{manifest} is damaged" in caplog.text
    manifest.write_text(intact)
    assert verify(manifest.parent) == 200


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


def test_a_damaged_segment_is_written_again(checkpoints):
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
    assert numbers(load(aside)) == [1, 2], "checkpoints in quarantine keep their segments"


def test_equal_states_give_equal_files(tmp_path):
    one, two = (Checkpoints(tmp_path / name).save(state([1, 2]), 5) for name in ("one", "two"))
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes()


# Parts with marks for changes


def marked(numbered, *, bad=None):
    """Return a state with the given marks and numbers; a part is NaN if its mark is ``bad``."""
    parts = []
    for mark, number in numbered:
        obs = torch.full((50, 2), torch.nan if mark == bad else float(number))
        parts.append(Part({"obs": obs, "actions": torch.full((50,), number)}, mark=mark))
    return {"replay": {"segments": parts}}


def test_marks_are_found_by_path():
    assert marks({"a/b": [{"segments": [Part({}, mark=1), Part({}, mark=2)]}], "c": 3}) == {
        "/a~1b/0/segments/0": 1,
        "/a~1b/0/segments/1": 2,
    }


def test_parts_marked_as_unchanged_are_not_read(checkpoints):
    checkpoints.save(marked([("a", 1), ("b", 2)]), 1)
    before = files(checkpoints)
    path = checkpoints.save(marked([("a", 7), ("c", 3)]), 2)
    assert numbers(load(path)) == [1, 3], "the 7 must not be read"
    assert verify(path) == 2
    after = files(checkpoints)
    assert {name: after[name] for name in before} == before
    assert numbers(load(checkpoints.save(marked([("d", 7), ("c", 3)]), 3))) == [7, 3]


def test_another_session_looks_at_everything(checkpoints):
    checkpoints.save(marked([("a", 1)]), 1)
    path = Checkpoints(checkpoints.folder).save(marked([("a", 7)]), 2)
    assert numbers(load(path)) == [7]


@pytest.mark.parametrize("damage", ["flip", "shorten", "remove"])
def test_a_modified_file_is_written_again_even_if_its_part_has_not_changed(checkpoints, damage):
    checkpoints.save(marked([("a", 1), ("b", 2)]), 1)
    for name in files(checkpoints):
        file = checkpoints.folder / "segments" / name
        contents = bytearray(file.read_bytes())
        contents[-1] ^= 1
        if damage == "remove":
            file.unlink()
        else:
            file.write_bytes(contents if damage == "flip" else contents[:-1])
    path = checkpoints.save(marked([("a", 1), ("b", 2)]), 2)
    assert verify(path) == 2
    assert numbers(load(path)) == [1, 2]


def test_segments_of_a_rejected_checkpoint_are_not_reused(checkpoints):
    checkpoints.save(marked([("a", 1)]), 1)
    for consumed in (2, 3):
        with pytest.raises(NonFiniteError, match=r"replay/segments/1/obs"):
            checkpoints.save(marked([("a", 1), ("b", 2)], bad="b"), consumed)
    assert numbers(load(checkpoints.latest()[0])) == [1]


def test_the_manifest_does_not_say_what_was_there_before(tmp_path):
    one, two = (Checkpoints(tmp_path / name) for name in ("one", "two"))
    one.save(marked([("b", 2), ("a", 1)]), 1)
    states = [marked([("b", 2), ("c", 3), ("a", 1)]) for _ in range(2)]
    left, right = one.save(states[0], 2), two.save(states[1], 2)
    for file in left.iterdir():
        assert file.read_bytes() == (right / file.name).read_bytes()


def test_a_segment_that_cannot_be_read_is_as_good_as_damaged(checkpoints, request):
    first = checkpoints.save(state([1]), 10)
    before = files(checkpoints)
    checkpoints.save(state([1, 2]), 20)
    (new,) = files(checkpoints).keys() - before.keys()
    (checkpoints.folder / "segments" / new).chmod(0)
    request.getfixturevalue("unprivileged")
    assert Checkpoints(checkpoints.folder).latest() == (first, 10)
