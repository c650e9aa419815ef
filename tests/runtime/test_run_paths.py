from pathlib import Path

import pytest

from operant.runtime.run_paths import RunError, TakenError, absolute, check_name, default_run_path, require_new


def test_default_paths_are_free_and_allowed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = default_run_path("ppo", "ALE/Pong-v5")
    assert first == Path("runs/ppo-ALE-Pong-v5-1")
    first.mkdir(parents=True)
    assert default_run_path("ppo", "ALE/Pong-v5").name == "ppo-ALE-Pong-v5-2"
    assert default_run_path("my.py:Mine", "path/to/env.py:Env", tmp_path) == tmp_path / "Mine-Env-1"
    for odd in ("../x", "ü" * 300, "a b", "." * 5):
        check_name(default_run_path("ppo", odd))
        check_name(default_run_path(odd, "task"))


@pytest.mark.parametrize("name", ["a b", ".hidden", "-flag", "ü", "x" * 129])
def test_invalid_names_are_rejected(name):
    with pytest.raises(RunError, match="is not a valid name for a run: use 1 to 128 letters"):
        check_name(Path("runs") / name)


def test_a_new_run_needs_a_new_or_empty_folder(tmp_path):
    require_new(tmp_path / "new" / "run")
    (tmp_path / "run").mkdir()
    require_new(tmp_path / "run")
    (file := tmp_path / "run" / "config.toml").touch()
    with pytest.raises(TakenError, match=r"already exists and is not empty: continue it with `operant resume "):
        require_new(tmp_path / "run")
    with pytest.raises(RunError, match=r"config\.toml is a file: choose another folder with --run"):
        require_new(file)
    with pytest.raises(RunError, match="is not a valid name"):
        require_new(tmp_path / "a b")


def test_paths_begin_at_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("runs/../one") == tmp_path.resolve() / "one"
    with pytest.raises(RunError, match="is not a path"):
        absolute("a\0b")
    with pytest.raises(RunError, match="'' is not a path: pass a folder"):
        absolute("")
