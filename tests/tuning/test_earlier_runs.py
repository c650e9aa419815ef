"""Earlier runs are trials if the study would have trained them itself, and otherwise have a reason."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("optuna", reason="the extra tune")

from operant import api
from operant.runtime.settings import Settings
from operant.tuning import Plan, Study, space_of
from operant.tuning.earlier_runs import earlier_trials

TASK, SEEDS = "FrozenLake-v1", (1000, 1001)
SETTINGS = Settings("q-learning", TASK, seeds=SEEDS, budget=8000, evaluate_every=4000, evaluate_episodes=2)
CONSTANT = {"step_size_schedule": "constant"}
CONFIG = api.configure("q-learning", TASK, step_size=0.5, exploration_initial_eps=0.2, **CONSTANT)
SPACE = space_of(CONFIG, own={"step_size": {"low": 0.01, "high": 1.0, "log": True}})


def train(path, **changes):
    """Train a run that fits, except for the changes, and return its folder."""
    given = {"seeds": SEEDS, "budget": 8000, "evaluate_every": 4000, "evaluate_episodes": 2, "step_size": 0.1}
    given |= {"exploration_initial_eps": 0.2, "run": path, "progress": "silent", **CONSTANT}
    api.train("q-learning", TASK, **(given | changes))
    return path


def reason(*runs):
    """Return the reason of the last run that does not fit, next to one that does."""
    told = []
    earlier_trials(runs, SETTINGS, CONFIG, SPACE, report=lambda path, text: told.append((path, text)))
    assert told[-1][0] == runs[-1].resolve()
    return told[-1][1]


@pytest.fixture(scope="module")
def fitting(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "fitting")


@pytest.mark.parametrize(("interval", "evaluations"), [(4000, [1, 2]), (3000, [1, 2, 3])])
def test_a_run_is_the_trial_that_the_study_would_have_trained(interval, evaluations, tmp_path):
    settings, run = replace(SETTINGS, evaluate_every=interval), train(tmp_path / "run", evaluate_every=interval)
    (trial,) = earlier_trials([run, run], settings, CONFIG, SPACE)
    assert (trial.number, trial.source, trial.values) == (0, str(run.resolve()), {"step_size": 0.1})
    config = replace(CONFIG, step_size=0.1)
    study = Study.create(tmp_path / "study", Plan(trials=1, fresh_seeds=0), settings, config, SPACE)
    (own,) = study.run().trials
    assert list(own.curve) == evaluations
    assert replace(own, seconds=0.0, source=trial.source) == trial


def test_more_frequent_evaluations_are_left_out(fitting, tmp_path):
    often = train(tmp_path / "often", evaluate_every=2000, threads=2, keep_checkpoints="none")
    found, wanted = (earlier_trials([run], SETTINGS, CONFIG, SPACE)[0] for run in (often, fitting))
    assert len((often / "eval" / "evaluations.jsonl").read_text().splitlines()) > len(wanted.curve)
    assert (found.curve.keys(), found.value) == (wanted.curve.keys(), wanted.value)
    assert reason(fitting, train(tmp_path / "odd", evaluate_every=3000)).startswith(
        "it was evaluated every 3000, which"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": (0, 1)}, "it has 2 seeds, 0 to 1, and a trial 2 seeds, 1000 to 1001"),
        ({"budget": 9000}, "its budget is 9000, and that of a trial 8000"),
        ({"evaluate_episodes": 3}, "its evaluate_episodes is 3, and that of a trial 2"),
        ({"env_kwargs": {"is_slippery": False}}, "its env_kwargs is {'is_slippery': False}, and that of a trial {}"),
        ({"step_size": 0.001}, "its step_size is 0.001, outside the search space"),
        ({"gamma": 0.5}, "its gamma is 0.5, but the study does not tune it and has "),
    ],
)
def test_other_protocols_and_values(fitting, tmp_path, changes, message):
    assert reason(fitting, train(tmp_path / "other", **changes)).startswith(message)


def test_runs_that_did_not_use_their_whole_budget_at_once(fitting, tmp_path):
    calls = iter(range(2))
    cut = train(tmp_path / "cut", step_size=0.2, interrupted=lambda: next(calls, None) is None)
    assert reason(fitting, cut) == "it is not finished: interrupted"
    longer = train(tmp_path / "longer", step_size=0.3, budget=4000)
    api.resume(longer, budget=8000, progress="silent")
    assert reason(fitting, longer) == "its budget was changed: 4000, 8000"
    evaluations = cut / "eval" / "evaluations.jsonl"
    api.resume(cut, progress="silent")
    assert len(earlier_trials([cut], SETTINGS, CONFIG, SPACE)) == 1
    lines = evaluations.read_text().splitlines(keepends=True)
    evaluations.write_text("".join(lines[:-1]))
    assert reason(fitting, cut).startswith("it stopped early: its last evaluation is at ")
    evaluations.write_text(json.dumps({"consumed": 8000}) + "\n")
    assert "contains a record that is not an evaluation" in reason(fitting, cut)


def test_a_run_that_used_much_more_than_its_budget(fitting, tmp_path):
    long = train(tmp_path / "long", step_size=0.2)
    evaluations = long / "eval" / "evaluations.jsonl"
    record = json.loads(evaluations.read_text().splitlines()[-1])
    with evaluations.open("a") as file:
        file.write(json.dumps(record | {"consumed": 9000}) + "\n")
    assert reason(fitting, long) == "used 9000 of a budget of 8000"


def test_of_equal_runs_the_first_one_counts(fitting, tmp_path):
    again = train(tmp_path / "again")
    assert reason(fitting, again) == f"its values are those of {fitting.resolve()}"


def test_changed_inputs(tmp_path):
    file, told = tmp_path / "lake.py", []
    file.write_text("from operant.envs import Wrapper\n\nclass Same(Wrapper):\n    pass\n")
    settings = replace(SETTINGS, wrappers=(f"{file}:Same",))
    runs = [
        train(tmp_path / name, wrappers=settings.wrappers, step_size=size) for name, size in (("a", 0.1), ("b", 0.2))
    ]
    assert len(earlier_trials(runs, settings, CONFIG, SPACE)) == 2
    file.write_text(file.read_text() + "\n")
    with pytest.raises(ValueError, match=r"none of 2 earlier runs fits the study, the first one because .*lake\.py"):
        earlier_trials(runs, settings, CONFIG, SPACE, report=lambda path, _: told.append(path))
    assert told == runs


def test_folders_without_a_run(fitting, tmp_path):
    assert "is not the folder of a run" in reason(fitting, tmp_path / "nothing")


def test_networks_of_another_run(tmp_path):
    given = {"num_envs": 2, "num_steps": 16, "hidden_sizes": (4,), "num_epochs": 1, "num_minibatches": 1}
    settings = Settings("ppo", "CartPole-v1", budget=32, evaluate_episodes=1)
    config = api.configure("ppo", "CartPole-v1", **given)
    space = space_of(config, own={"gamma": {"choices": [0.9, 0.99]}})
    told = []
    for name, more in (("first", {}), ("second", {"init": tmp_path / "first"})):
        common = {"seeds": (0,), "budget": 32, "evaluate_episodes": 1, "progress": "silent", "run": tmp_path / name}
        api.train("ppo", "CartPole-v1", **given, **common, **more)
    runs = [tmp_path / "first", tmp_path / "second"]
    assert len(earlier_trials(runs, settings, config, space, report=lambda *rest: told.append(rest))) == 1
    assert told == [(runs[1].resolve(), "its networks were initialized from another run")]


def test_an_error_if_no_run_fits(tmp_path):
    other = train(tmp_path / "other", budget=9000)
    with pytest.raises(ValueError, match=r"none of 1 earlier runs fits the study, the first one because its budget is"):
        Study.create(tmp_path / "study", Plan(), SETTINGS, CONFIG, SPACE, runs=[other])
    assert not (tmp_path / "study").exists()
    assert earlier_trials([], SETTINGS, CONFIG, SPACE) == []
