import logging
import shutil

import pytest
import torch

from operant.runtime.checkpoints import CheckpointError, Checkpoints, load

FILES = ["manifest.json", "state.json", "state.safetensors"]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    checkpoints = Checkpoints(folder)
    for n in (1, 2):
        checkpoints.save({"weight": torch.arange(4.0) + n, "nested": {"name": "x", "number": n}}, n)
    return folder


@pytest.fixture
def damaged(original, tmp_path):
    shutil.copytree(original, tmp_path / "checkpoints")
    return Checkpoints(tmp_path / "checkpoints")


def newest(checkpoints):
    return checkpoints.paths()[-1]


def expect_fallback(checkpoints, name, caplog):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        path, consumed = checkpoints.latest()
    assert consumed == 1
    assert load(path)["nested"]["number"] == 1
    assert f"step_000000000002/{name}" in caplog.text
    assert "; the checkpoint is skipped" in caplog.text


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_noticed(damaged, name, caplog):
    file = newest(damaged) / name
    whole = file.read_bytes()
    for i in range(len(whole)):
        for mask in (0x01, 0x80):
            broken = bytearray(whole)
            broken[i] ^= mask
            file.write_bytes(broken)
            expect_fallback(damaged, name, caplog)


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_noticed(damaged, name, caplog):
    file = newest(damaged) / name
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        expect_fallback(damaged, name, caplog)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(damaged, name, caplog):
    (newest(damaged) / name).unlink()
    expect_fallback(damaged, name, caplog)


@pytest.mark.parametrize("name", FILES)
def test_bytes_at_the_end_are_noticed(damaged, name, caplog):
    with (newest(damaged) / name).open("ab") as file:
        file.write(b"x")
    expect_fallback(damaged, name, caplog)


def test_a_folder_in_place_of_a_file_is_noticed(damaged, caplog):
    file = newest(damaged) / "state.json"
    file.unlink()
    file.mkdir()
    expect_fallback(damaged, "state.json", caplog)


def test_if_none_is_left_the_newest_intact_state_of_the_history_is_named(damaged):
    history = damaged.folder.with_name("history")
    shutil.copytree(damaged.folder, history)
    (newest(Checkpoints(history)) / "state.json").unlink()
    for path in damaged.paths():
        (path / "state.safetensors").write_bytes(b"")
    checkpoints = Checkpoints(damaged.folder, spare=history)
    with pytest.raises(
        CheckpointError,
        match=r"continue from \S+/history/step_000000000001 \(move the damaged ones away, and move it to \S+/c",
    ):
        checkpoints.latest()
    shutil.rmtree(damaged.folder)
    damaged.folder.mkdir()
    (history / "step_000000000001").rename(damaged.folder / "step_000000000001")
    assert checkpoints.latest()[1] == 1


def test_if_none_is_left_nothing_is_restarted_silently(damaged):
    for path in damaged.paths():
        (path / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint .* can be used .*000002/state\.safetensors.*000001/"):
        damaged.latest()
