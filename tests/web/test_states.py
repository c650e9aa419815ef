import subprocess
import sys

import pytest

from operant.runtime.run import Run
from operant.runtime.settings import Settings
from operant.tabular.one_step import OneStepConfig
from operant.web.states import foreign, states
from operant.web.workers import NotFoundError
from web.folders import make_run  # type: ignore[import-not-found]


def test_saved_and_hashed_states_are_listed(tmp_path):
    run = make_run(tmp_path / "runs" / "one", [[0.1, 0.2]])
    assert states(tmp_path / "runs", "one") == {"seeds": [0, 1], "problem": "", "kept": [], "recorded": []}
    for folder, step in ((run.history.folder, 400), (run.history.folder, 0), (run.checkpoints.folder, 1000)):
        (folder / f"step_{step:012d}").mkdir(parents=True)
    (run.history.folder / ".step_000000000600.partial").mkdir()
    run.hashes_path.write_text(
        '{"consumed": 0, "sha256": "a"}\n{"consumed": 400, "sha256": "b"}\n{"consumed": 6', "utf-8"
    )
    found = states(tmp_path / "runs", "one")
    assert (found["kept"], found["recorded"]) == ([0, 400, 1000], [0, 400])
    with pytest.raises(NotFoundError):
        states(tmp_path / "runs", "two")


@pytest.mark.parametrize(
    ("settings", "config", "named"),
    [
        ({"algorithm": "file.py:Mine"}, {}, "file.py:Mine is custom code"),
        ({"algorithm": "my-algorithm"}, {}, "my-algorithm is custom code"),
        ({"algorithm": "grpo", "task": "arithmetic"}, {}, "are on the page Completions"),
        ({"task": "envs/mine.py:World"}, {}, "envs/mine.py:World is custom code"),
        ({"task": "package.module:World-v0"}, {}, "package.module:World-v0 is custom code"),
        ({"wrappers": ["subprocess:Popen(args=['touch', 'x'])"]}, {}, "subprocess:Popen"),
        ({"wrappers": ["a.py:Name(scale=0.1)"]}, {}, "a.py:Name"),
        ({"wrappers": ["a.py:Name\n"]}, {}, "a.py:Name"),
        ({"wrappers": ["a.py:Name(\nscale=0.1)"]}, {}, "a.py:Name"),
        ({"wrappers": ["(a)/a.py:Name(scale=0.1)"]}, {}, "a.py:Name"),
        ({"wrappers": ["operant.envs.wrapper:wrapped(names=['a.py:Name'])"]}, {}, "a.py:Name"),
        ({"wrappers": ["operant.envs:Mine(inner={'evil:Name(scale=1)': 2})"]}, {}, "evil:Name"),
        ({"wrappers": ["operant.envs:Mine(inner={'a.py:Name'})"]}, {}, "a.py:Name"),
        ({"wrappers": ["operant.envs.wrapper:wrapped"]}, {}, "operant.envs.wrapper:wrapped"),
        ({"wrappers": ["operant.envs.randomize:Path.unlink"]}, {}, "Path.unlink"),
        ({"callbacks": ["os:system(command='x')"]}, {}, "os:system"),
        ({"env_kwargs": {"inner": ["deep", {"deeper": "os:system"}]}}, {}, "os:system"),
        ({"env_kwargs": {"env_id": "evil:World-v0"}}, {}, "evil:World-v0"),
        ({}, {"objective": "mine.py:loss"}, "mine.py:loss"),
        ({}, {"encoder": "evil:Net"}, "evil:Net"),
    ],
)
def test_code_that_a_folder_names_is_not_run(tmp_path, settings, config, named):
    plain = {"algorithm": "ppo", "task": "CartPole-v1", "wrappers": [], "callbacks": []}
    problem = foreign(tmp_path / "run", plain | settings, config)
    assert named in problem
    assert "operant evaluate" in problem


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        ({}, {"activation": "tanh", "clip_range_vf": "none"}),
        ({"task": "operant/Grid-v0", "env_kwargs": {"drawing": "slip: 0.1\n\nS.G\n"}}, {}),
        ({"wrappers": ["operant.explore.bonuses:Bonus(weight=0.1)"]}, {}),
        ({"task": "ALE/Pong-v5"}, {}),
    ],
)
def test_code_of_the_library_is(tmp_path, settings, config):
    assert foreign(tmp_path / "run", {"algorithm": "ppo", "task": "CartPole-v1"} | settings, config) == ""


def test_a_run_with_a_custom_file_is_rejected_by_the_worker_too(tmp_path):
    from operant.runtime.run import RunError
    from operant.web import travel

    marker = tmp_path / "it ran"
    file = tmp_path / "evil.py"
    file.write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n", encoding="utf-8")
    settings = Settings(algorithm="q-learning", task=f"{file}:World", budget=100)
    Run.create(tmp_path / "runs" / "evil", settings, OneStepConfig())
    with pytest.raises(RunError, match="is custom code"):
        travel.go(tmp_path / "runs", "evil", 0)
    assert not marker.exists()


def test_the_process_that_lists_has_no_torch(tmp_path):
    code = "import sys, operant.web.states, operant.web.completions, operant.web.runs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
