import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import operant
from operant import catalog, doors
from operant.catalog import outside
from operant.catalog.bonuses import BONUSES
from operant.cli.copying import source, write
from operant.control.bonuses import Named
from operant.runtime.encoding import digest, flatten
from operant.runtime.metrics import read_records

TASKS = {
    "ppo": ("CartPole-v1", {"num_envs": 4, "num_steps": 16, "num_minibatches": 2, "num_epochs": 2}),
    "double-dqn": ("CartPole-v1", {"learning_starts": 64, "train_freq": 16, "gradient_steps": 2}),
    "sarsa": ("FrozenLake-v1", {"steps_per_iteration": 64}),
}


@pytest.mark.parametrize("entry", catalog.ALGORITHMS, ids=lambda entry: entry.name)
def test_the_file_of_every_algorithm_can_be_copied_and_is_found_as_it(entry, tmp_path):
    path = write(entry, tmp_path / "mine.py")
    found = catalog.find(f"{path}:{entry.learner}")
    assert found.base == entry.name
    assert found.learner_class is not entry.learner_class
    if entry.config_class.__module__ == entry.module:  # otherwise the copy imports it
        assert found.config_class is not entry.config_class
    for fact in outside.INHERITED:
        assert getattr(found, fact) == getattr(entry, fact), fact
    assert found.preset_values == entry.preset_values


def test_a_copy_that_does_not_fit_on_the_disk_leaves_no_file(cli, tmp_path, small_files):
    with small_files(4096):
        status, _, err = cli("copy", "ppo", tmp_path / "mine.py")
    assert (status, err) == (1, f"operant: error: {tmp_path / 'mine.py'}: File too large\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TASKS)
def test_a_copy_does_what_the_original_does(name, tmp_path):
    entry, (task, values) = catalog.find(name), TASKS[name]
    path = write(entry, tmp_path / "mine.py")
    options = {"seeds": 2, "budget": 192, "progress": "silent", "evaluate_episodes": 2, **values}
    built_in = operant.train(name, task, run=tmp_path / "a", **options)
    copied = operant.train(f"{path}:{entry.learner}", task, run=tmp_path / "b", **options)
    (one, first), (other, second) = (flatten(t.experiment.learner.state_dict()) for t in (built_in, copied))
    assert one == other
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())
    scores = [
        [record["episode_scores"] for record in read_records(trained.run.evaluations_path)]
        for trained in (built_in, copied)
    ]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("name", BONUSES)
def test_the_file_of_every_bonus_can_be_copied_and_is_a_bonus(name, cli, tmp_path):
    status, out, _ = cli("copy", name, path := tmp_path / "mine.py")
    assert status == 0
    assert f"operant train ppo operant/DeepSea-v0 --bonus {path}:" in out
    place = out.split("--bonus ")[1].strip()
    original, copied = Named.of(name), Named.of(place)
    assert copied.place == place
    assert vars(copied) | {"place": ""} == vars(original) | {"place": ""}
    assert doors.load(place, expected="a bonus") is not doors.load(original.place, expected="a bonus")


def test_a_copied_bonus_trains_and_resumes_as_the_original(cli, tmp_path):
    cli("copy", "icm", path := tmp_path / "mine.py")
    options = {"seeds": 2, "progress": "silent", "evaluate_episodes": 1, **TASKS["ppo"][1]}

    def trained(bonus, run, budget):
        return operant.train("ppo", "operant/DeepSea-v0", bonus=[bonus], run=tmp_path / run, budget=budget, **options)

    whole = trained("icm", "a", 128)
    trained(f"{path}:InverseCuriosity", "b", 64)
    resumed = operant.resume(tmp_path / "b", budget=128, progress="silent")
    assert digest(resumed.experiment.learner.state_dict()) == digest(whole.experiment.learner.state_dict())


def test_only_what_the_classes_are_like_is_added():
    entry = catalog.find("expected-sarsa")
    original = Path(operant.__file__).parent / "tabular" / "one_step.py"
    lines, added = original.read_text().splitlines(), source(entry).splitlines()
    new = [line for line in added if "CATALOG" in line]
    assert [line.split('"')[3] for line in new] == ["q-learning", "sarsa", "expected-sarsa"]
    assert [line for line in added if line not in new and line] == [line for line in lines if line]
    ast.parse("\n".join(added))


def test_the_task_of_the_example_fits_the_algorithm(cli, tmp_path):
    for name, task in (("world-models", "operant/PixelCatch-v0"), ("sac", "Pendulum-v1"), ("muzero", "CartPole-v1")):
        _, out, _ = cli("copy", name, tmp_path / f"my_{name.replace('-', '_')}.py")
        assert out.rstrip().endswith(f" {task}")


def test_nothing_is_overwritten(cli, tmp_path):
    path = tmp_path / "mine.py"
    status, out, _ = cli("copy", "ppo", path)
    assert status == 0
    assert f"operant train {path}:PPO CartPole-v1" in out
    before = path.read_text()
    status, _, errors = cli("copy", "dqn", path)
    assert status == 2
    assert "already exists" in errors
    assert path.read_text() == before
    for name, said in (("mine", "end in .py"), ("my.own.py", "no other dot"), ("none/mine.py", "No such file")):
        status, _, errors = cli("copy", "ppo", tmp_path / name)
        assert status != 0
        assert said in errors
    status, _, errors = cli("copy", f"{path}:PPO", tmp_path / "again.py")
    assert status == 2
    assert "is not built in: copy its file" in errors


def test_a_file_in_the_home_folder_is_checked_and_named_by_its_path(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    status, out, _ = cli("copy", "ppo", "~/mine.py")
    path = tmp_path / "mine.py"
    assert (status, path.is_file()) == (0, True)
    assert f"written: {path}\n" in out
    assert f"operant train {path}:PPO CartPole-v1" in out
    status, _, errors = cli("copy", "ppo", "~/mine.py")
    assert (status, errors) == (2, f"operant: error: {path} already exists: choose another file\n")
    assert write(catalog.find("sarsa"), Path("~/sarsa.py")) == tmp_path / "sarsa.py"


def test_copying_imports_nothing_heavy(tmp_path):
    code = "import sys; from operant.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, "copy", "ppo", "mine.py"], check=True, cwd=tmp_path)
