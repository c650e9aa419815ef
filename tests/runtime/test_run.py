import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from operant.runtime import files
from operant.runtime.run import Run, RunError
from operant.runtime.settings import Settings


@dataclass(frozen=True)
class Config:
    rate: float = 0.1
    target: float | None = None


SETTINGS = Settings("ppo", "CartPole-v1", seeds=(3, 4))


@pytest.fixture
def run(tmp_path):
    return Run.create(
        tmp_path / "runs" / "one", SETTINGS, Config(0.5), command=["operant", "train"], resolved={"threads": 1}
    )


def test_a_created_run_can_be_opened(run):
    again = Run.open(run.path)
    assert again.settings == SETTINGS
    assert again.config(Config) == run.config(Config) == Config(0.5)
    assert again.resolved() == {"threads": 1}
    assert again.checkpoints.latest() is None


def test_the_folder_holds_what_it_should(run):
    assert sorted(p.name for p in run.path.iterdir()) == ["checkpoints", "config.toml", "eval", "media", "run.json"]
    assert list(run.path.parent.iterdir()) == [run.path]
    tables = tomllib.loads((run.path / "config.toml").read_text())
    assert tables["schema_version"] == 2
    assert tables["settings"]["seeds"] == [3, 4]
    assert tables["config"] == {"rate": 0.5, "target": "none"}


def test_facts_say_where_it_comes_from(run):
    facts = json.loads((run.path / "run.json").read_text())
    assert facts["seeds"] == [3, 4]
    (session,) = facts["sessions"]
    assert session["command"] == ["operant", "train"]
    assert session["versions"]["torch"] == version("torch")
    assert session["host"]
    assert session["started"].endswith("+00:00")


def test_sessions_are_added(run):
    Run.open(run.path).add_session(["operant", "resume"], 0)
    facts = Run.open(run.path).facts()
    assert [s["command"][1] for s in facts["sessions"]] == ["train", "resume"]
    assert facts["resolved"] == {"threads": 1}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert Run.create("outside", SETTINGS, Config()).facts()["sessions"][0]["git_commit"] is None
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert Run.create("inside", SETTINGS, Config()).facts()["sessions"][0]["git_commit"] == commit


def test_an_existing_run_is_rejected_with_advice(run):
    before = {p: p.stat().st_mtime_ns for p in run.path.rglob("*")}
    with pytest.raises(RunError, match=r"already exists .*operant resume .*/one.*--run"):
        Run.create(run.path, SETTINGS, Config())
    assert before == {p: p.stat().st_mtime_ns for p in run.path.rglob("*")}
    (run.path / "config.toml").unlink()  # now it is another folder, which cannot be resumed
    with pytest.raises(RunError, match=r"is not empty: choose another folder"):
        Run.create(run.path, SETTINGS, Config())
    assert list(run.path.parent.iterdir()) == [run.path]


def test_the_command_that_trains_a_run_is_quoted(tmp_path):
    (tmp_path / "my runs").mkdir()
    run = Run.create(tmp_path / "my runs" / "one", Settings("ppo", "CartPole-v1"), Config())
    with pytest.raises(RunError, match=r"has no checkpoint yet; train it with `operant resume '/.*/my runs/one'`"):
        run.latest_checkpoint()


def test_a_run_that_another_process_trains_is_not_to_be_trained(tmp_path):
    run = Run.create(tmp_path / "one", Settings("ppo", "CartPole-v1", checkpoint_seconds=90), Config())
    with run.lock(), pytest.raises(RunError, match=r"it is being trained, and first saved after 90 s"):
        Run.open(run.path).latest_checkpoint()


def test_an_empty_folder_is_as_good_as_none(tmp_path):
    (tmp_path / "x").mkdir()
    Run.create(tmp_path / "x", SETTINGS, Config())
    assert Run.open(tmp_path / "x").settings == SETTINGS


def test_a_run_in_the_working_folder_leaves_it_in_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Run.create(".", SETTINGS, Config())
    assert Path.cwd() == tmp_path  # a replaced folder would be no working folder anymore
    assert Run.open(".").settings == SETTINGS


def test_a_failed_creation_in_an_empty_folder_leaves_it_empty(tmp_path, monkeypatch):
    def fail(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_durably", fail)
    with pytest.raises(RunError, match=r"cannot create the run folder .*No space left"):
        Run.create(tmp_path, SETTINGS, Config())
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["a b", "ä", "a\nb", "-x", ".x", "x" * 129, "a:b", "a\0b", "\\"])
def test_invalid_names_are_rejected(tmp_path, name):
    with pytest.raises(RunError, match=r"is not a (valid name|path)"):
        Run.create(str(tmp_path / "runs") + "/" + name, SETTINGS, Config())
    assert not (tmp_path / "runs").exists()


def test_the_folders_above_may_have_any_name(tmp_path):
    path = tmp_path / "ä b\n" / "run"
    Run.create(path, SETTINGS, Config())
    assert Run.open(path).settings == SETTINGS


def test_paths_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "x", tmp_path / Path(*["y" * 200] * 30) / "x", Path("/proc/x")):
        with pytest.raises(RunError, match=r"cannot create the run folder .*--run"):
            Run.create(path, SETTINGS, Config())
    assert (tmp_path / "file").read_text() == "x"


def test_missing_permission(tmp_path, request):
    run = Run.create(tmp_path / "one", SETTINGS, Config())
    for folder in (tmp_path, run.path):
        folder.chmod(0o555)
    (run.path / "config.toml").chmod(0o444)
    request.getfixturevalue("unprivileged")
    with pytest.raises(RunError, match="Permission denied"):
        Run.create(tmp_path / "two", SETTINGS, Config())
    again = Run.open(run.path)
    with pytest.raises(RunError, match=r"cannot write in .*Permission denied"), again.lock():
        pass
    with pytest.raises(RunError, match=r"Permission denied"):
        again.add_session([], 0)


def test_a_configuration_that_a_file_cannot_hold_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="rate"):
        Run.create(tmp_path / "x", SETTINGS, Config(rate="fast"))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_opening_what_is_no_run(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    run = Run.create(tmp_path / "all" / "one", SETTINGS, Config())
    for name, message in {
        "empty": r"config\.toml: No such file",
        "nowhere": "there is no such folder",
        "file": "it is a file",
        "all": "it contains runs, use one of them: one$",
        "all/one/config.toml": f"it is a part of the run {run.path}, use that folder",
        "all/one/best": "there is no such folder",
    }.items():
        with pytest.raises(RunError, match=f"is not the folder of a run: {message}"):
            Run.open(tmp_path / name)
    (run.path / "best").mkdir(exist_ok=True)
    with pytest.raises(RunError, match=r"a part of the run .*, use that folder, with --best, in Python best=True"):
        Run.open(run.path / "best")


def test_opening_a_run_by_its_bare_or_misspelled_name_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Run.create("runs/ppo-CartPole-v1-1", SETTINGS, Config())
    for given in ("ppo-CartPole-v1-1", "ppo-cartpole-v1-1", "runs/ppo-CartPole-v1-2"):
        with pytest.raises(RunError, match=r"did you mean runs.ppo-CartPole-v1-1\?$"):
            Run.open(given)
    (tmp_path / "runs" / "empty").mkdir()
    with pytest.raises(RunError, match=r"No such file or directory$"):
        Run.open("runs/empty")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema_version = 2", "schema_version = 3", "has schema_version 3; this operant reads versions up to 2"),
        ("schema_version = 2", "", "has no schema_version; this operant reads versions up to 2"),
        ("schema_version = 2", "schema_version = ", "config.toml is not TOML: Invalid value"),
        ("[config]", "[konfig]", r"must contain only the tables \[settings\] and \[config\]"),
        ("budget = 100000", "budgt = 100000", "settings.budgt: there is no such key; did you mean budget"),
        ("budget = 100000", "budget = 0", r"settings: budget must be in \[1, inf\), got 0"),
        ('device = "auto"', 'device = 3', "settings.device: 3 is not a value of type str"),
    ],
)  # fmt: skip
def test_damaged_settings_are_explained(run, old, new, message):
    file = run.path / "config.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(RunError, match=message):
        Run.open(run.path)


def test_a_configuration_with_a_byte_order_mark_is_read(run):
    file = run.path / "config.toml"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert Run.open(run.path).settings == run.settings
    file.write_bytes(b"\xff")
    with pytest.raises(RunError, match=r"config\.toml is not UTF-8: byte 0 is 0xff"):
        Run.open(run.path)


def test_a_damaged_configuration_is_explained(run):
    file = run.path / "config.toml"
    file.write_text(file.read_text().replace("rate", "rats"))
    with pytest.raises(RunError, match=r"config\.toml: config\.rats: there is no such key; did you mean rate"):
        Run.open(run.path).config(Config)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ("[]", "must contain an object"),
        ('{"sessions": []}', "'resolved' must be a JSON object, got None"),
        ('{"resolved": {}, "sessions": {}}', "'sessions' must be a JSON list, got {}"),
    ],
)
def test_facts_that_lack_something_are_explained(run, facts, message):
    (run.path / "run.json").write_text(facts)
    with pytest.raises(RunError, match=rf"run\.json is damaged: .*{message}"):
        run.facts()


def test_damaged_facts_are_explained(run):
    (run.path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json cannot be read"):
        run.facts()
    (run.path / "run.json").unlink()
    with pytest.raises(RunError, match=r"run\.json cannot be read: No such file"):
        run.facts()


def test_two_objects_cannot_hold_one_run(run):
    other = Run.open(run.path)
    with run.lock():
        with (
            pytest.raises(
                RunError, match=rf"is being trained by process {os.getpid()} on .*: wait for it to end, or stop it$"
            ),
            other.lock(),
        ):
            pass
        with run.lock():
            pass
        with pytest.raises(RunError), other.lock():
            pass
    with other.lock():
        pass


def test_the_lock_names_its_holder_in_a_file_that_goes_with_it(run):
    holder = run.path / "lock.holder"
    with run.lock():
        assert holder.read_text().startswith(f"process {os.getpid()} on ")
    assert not holder.exists()


def test_nothing_needs_a_module_that_windows_lacks():
    code = "import sys; sys.modules['fcntl'] = None; import operant.api, operant.language.preferences.journal"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_pipe_is_not_waited_for(run):
    for name in ("config.toml", "run.json"):
        (run.path / name).unlink()
        os.mkfifo(run.path / name)
    with pytest.raises(RunError, match=r"config\.toml: it is not a regular file"):
        Run.open(run.path)
    with pytest.raises(RunError, match=r"run\.json cannot be read: it is not a regular file"):
        run.facts()


def test_leftovers_of_killed_processes_go(run):
    leftovers = [
        run.path / f".run.json-{'0' * 16}",
        run.path / "eval" / f".samples.jsonl-{'a' * 16}",
        run.path / "best" / ".step_000000000100.partial" / "state.json",
        run.path / "best" / "seed_0" / ".step_000000000100.partial" / "state.json",
        run.path / "checkpoints" / ".step_000000000100.removed" / "state.json",
    ]
    for path in leftovers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{")
    (run.path / ".mine").write_text("stays")
    with run.lock():
        run.clean()
    assert not any(path.exists() for path in leftovers)
    assert (run.path / ".mine").exists()


def test_leftovers_of_a_killed_creation_go_at_the_next_one(tmp_path):
    dead, young, other = (tmp_path / f".a-{digit * 16}" for digit in "012")
    for folder in (dead, young, other):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.toml").write_text("half")
    (other / "mine").write_text("stays")
    for folder in (dead, other):
        os.utime(folder, (0, 0))
    Run.create(tmp_path / "b", SETTINGS, Config())
    assert [folder.exists() for folder in (dead, young, other)] == [False, True, True]
