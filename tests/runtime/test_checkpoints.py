import json
import logging
import math
import shutil
from pathlib import Path

import pytest
import torch

from operant.runtime.checkpoints import SCHEMA, CheckpointError, Checkpoints, NonFiniteError, load, verify
from operant.runtime.checkpoints import _digest as digest


def state(number=1.0):
    return {"weight": torch.full((4, 3), number), "count": int(number)}


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_checkpoint_is_three_files(checkpoints):
    path = checkpoints.save(state(), 42)
    assert path.name == "step_000000000042"
    assert names(path) == ["manifest.json", "state.json", "state.safetensors"]
    assert verify(path) == 42
    assert torch.equal(load(path)["weight"], torch.ones(4, 3))
    assert checkpoints.latest() == (path, 42)


def test_equal_states_give_equal_bytes(tmp_path):
    base = torch.arange(12.0)
    views = {"a": base[:6], "b": base.view(3, 4).t(), "c": base[2]}
    copies = {name: view.clone(memory_format=torch.contiguous_format) for name, view in views.items()}
    one, two = (Checkpoints(tmp_path / n).save(s, 7) for n, s in (("one", views), ("two", copies)))
    assert contents(one) == contents(two)


def test_tensors_that_share_memory_come_back_apart_and_equal(checkpoints):
    base = torch.arange(6.0)
    again = load(checkpoints.save({"flat": base, "same": base, "part": base[2:5], "column": base.view(2, 3)[:, 1]}, 1))
    assert torch.equal(again["flat"], base)
    assert torch.equal(again["same"], base)
    assert again["part"].tolist() == [2, 3, 4]
    assert again["column"].tolist() == [1, 4]


def test_the_saved_state_is_left_alone(checkpoints):
    weight = torch.ones(3, requires_grad=True)
    checkpoints.save({"weight": weight, "view": weight[1:]}, 1)
    assert weight.requires_grad
    assert weight.tolist() == [1, 1, 1]


def test_the_last_two_are_kept(checkpoints):
    for n in (10, 20, 30, 1_000_000_000_000_000):
        checkpoints.save(state(n), n)
    assert names(checkpoints.folder) == ["step_000000000030", "step_1000000000000000"]
    assert checkpoints.latest()[1] == 1_000_000_000_000_000


def test_no_checkpoints_at_all(checkpoints):
    assert checkpoints.latest() is None
    assert checkpoints.paths() == []


def test_saving_the_same_step_again_keeps_what_is_good(checkpoints):
    path = checkpoints.save(state(), 1)
    stamps = [file.stat().st_mtime_ns for file in sorted(path.iterdir())]
    assert checkpoints.save(state(), 1) == path
    assert [file.stat().st_mtime_ns for file in sorted(path.iterdir())] == stamps


def test_saving_the_same_step_again_replaces_it_if_asked_for(checkpoints):
    path = checkpoints.save(state(), 1)
    assert checkpoints.save(state(2.0), 1, replace=True) == path
    assert load(path)["count"] == 2
    assert checkpoints.latest() == (path, 1)


def test_saving_the_same_step_again_replaces_what_is_damaged(checkpoints):
    path = checkpoints.save(state(5), 1)
    (path / "state.json").write_bytes(b"{}")
    Checkpoints(checkpoints.folder).save(state(5), 1)
    assert load(path)["count"] == 5


def test_a_damaged_one_does_not_count_among_the_two(checkpoints):
    for n in (1, 2):
        checkpoints.save(state(n), n)
    (checkpoints.folder / "step_000000000002" / "state.json").unlink()
    Checkpoints(checkpoints.folder).save(state(3), 3)
    assert names(checkpoints.folder) == ["step_000000000001", "step_000000000003"]


def test_later_damaged_ones_are_put_aside_when_training_passes_them(checkpoints, caplog):
    for n in (10, 20):
        checkpoints.save(state(n), n)
    (checkpoints.folder / "step_000000000020" / "state.json").unlink()
    fresh = Checkpoints(checkpoints.folder)
    with caplog.at_level(logging.WARNING):
        assert fresh.latest()[1] == 10
    fresh.save(state(15), 15)
    assert names(checkpoints.folder) == ["quarantine", "step_000000000010", "step_000000000015"]
    assert names(checkpoints.quarantine) == ["step_000000000020"]
    assert fresh.latest()[1] == 15


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float8_e5m2])
def test_states_that_are_not_finite_never_displace_good_ones(checkpoints, bad, dtype):
    good = [checkpoints.save(state(n), n) for n in (1, 2)]
    sick = {"net": {"weight": torch.tensor([1.0, bad, bad]).to(dtype)}}
    for n in (3, 4, 5):
        with pytest.raises(NonFiniteError, match=r"2 of 3 numbers of state entry /net/weight are NaN or Inf"):
            checkpoints.save(sick, n)
    assert checkpoints.paths() == good
    assert checkpoints.latest() == (good[1], 2)
    assert names(checkpoints.quarantine) == ["step_000000000004", "step_000000000005"]
    assert load(checkpoints.quarantine / "step_000000000005")["net"]["weight"].dtype == dtype


def test_observations_may_be_nan_in_a_checkpoint_but_not_learned_statistics(checkpoints):
    nan = torch.tensor([math.nan])
    shown = {"env": {"env": {"obs": nan}}, "other": {"env": {"obs": {"here": nan}}}}
    assert math.isnan(load(checkpoints.save(shown, 1))["env"]["env"]["obs"])
    for n, sick in enumerate(({"env": {"observations": nan}}, {"env": {"mean": {"obs": nan}}}, {"obs": nan}), 2):
        with pytest.raises(NonFiniteError):
            checkpoints.save(sick, n)


def test_statistics_and_plain_floats_may_be_infinite(checkpoints):
    fine = {
        "best": -math.inf,
        "statistics": {"low": torch.tensor([math.inf])},
        "env": {"statistics": torch.tensor(math.nan)},
    }
    again = load(checkpoints.save(fine, 1))
    assert again["best"] == -math.inf
    assert math.isnan(again["env"]["statistics"])


def test_a_run_that_was_never_finite_is_not_restarted_silently(checkpoints):
    with pytest.raises(NonFiniteError):
        checkpoints.save({"weight": torch.tensor(math.nan)}, 1)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used .*is in quarantine"):
        checkpoints.latest()


def test_leftovers_are_cleaned_and_never_chosen(checkpoints):
    path = checkpoints.save(state(), 1)
    for name in (".step_000000000009.partial", ".step_000000000000.removed"):
        shutil.copytree(path, checkpoints.folder / name)
    assert checkpoints.latest() == (path, 1)
    checkpoints.clean()
    assert names(checkpoints.folder) == [path.name]


def test_a_checkpoint_that_was_about_to_be_replaced_is_restored_after_a_kill(checkpoints, monkeypatch):
    path = checkpoints.save(state(1.0), 1)
    rename = Path.rename

    def killed(self, target):
        if self.suffix == ".partial":
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(state(2.0), 1, replace=True)
    assert checkpoints.latest() is None
    checkpoints.clean()
    assert checkpoints.latest() == (path, 1)
    assert load(path)["count"] == 1
    assert checkpoints.save(state(2.0), 1, replace=True) == path
    assert load(path)["count"] == 2
    assert names(checkpoints.folder) == [path.name]


def test_things_of_other_names_are_not_checkpoints(checkpoints):
    path = checkpoints.save(state(), 1)
    shutil.copytree(path, checkpoints.folder / "step_000000000009-backup")
    assert checkpoints.latest() == (path, 1)


def test_a_checkpoint_from_the_future_is_rejected_and_not_skipped(checkpoints):
    for n in (1, 2):
        checkpoints.save(state(n), n)
    file = checkpoints.folder / "step_000000000002" / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["digest"]
    manifest["schema_version"] = SCHEMA + 1
    file.write_text(json.dumps(manifest | {"digest": digest(manifest)}))
    with pytest.raises(CheckpointError, match=f"has format {SCHEMA + 1}, this operant reads formats up to {SCHEMA}"):
        checkpoints.latest()


def test_too_little_space_is_noticed_before_writing(checkpoints, monkeypatch):
    path = checkpoints.save(state(1), 1)
    usage = shutil.disk_usage(checkpoints.folder)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(OSError, match=r"a checkpoint needs .* bytes, 1000 are free"):
        checkpoints.save(state(2), 2)
    assert names(checkpoints.folder) == [path.name]


def test_lost_writes_are_noticed(checkpoints, monkeypatch):
    import operant.runtime.checkpoints as module

    good = checkpoints.save(state(1), 1)
    checkpoints.save(state(2), 2)
    real = module.write_durably

    def lossy(path, data):
        real(path, data)
        if path.name == "manifest.json":
            (path.parent / "state.json").write_bytes(b"\0" * 20)

    monkeypatch.setattr(module, "write_durably", lossy)
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        checkpoints.save(state(3), 3)
    assert good in checkpoints.paths()
    assert checkpoints.latest()[1] == 2


def test_nothing_here_is_a_pickle(checkpoints):
    path = checkpoints.save({"weight": torch.ones(3), "name": "x"}, 1)
    for file in path.iterdir():
        data = file.read_bytes()
        assert not data.startswith((b"\x80", b"PK")), file
