import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optuna", reason="the extra tune")

from operant import api
from operant.runtime.metrics import RecordWriter
from operant.runtime.run import Run
from operant.runtime.run_paths import RunError
from operant.runtime.settings import Settings
from operant.tuning import Plan, Study, Trial, space_of
from operant.tuning.study import _Watcher

SEEDS = (1000, 1001)


def make(path, plan=None, runs=(), space=None, **changes):
    """Return a study of Q-learning on a cliff that takes a second."""
    config = api.configure("q-learning", "CliffWalking-v1", step_size=0.05, exploration_initial_eps=0.5)
    settings = Settings("q-learning", "CliffWalking-v1", seeds=SEEDS, budget=16_000, evaluate_every=2000)
    space = space_of(config, own={"step_size": space or {"low": 0.01, "high": 1.0, "log": True}})
    settings = replace(settings, **changes)
    return Study.create(path, plan or Plan(trials=9, fresh_seeds=3), settings, config, space, runs=runs)


def facts(study):
    """Return everything of the trials that does not depend on the clock."""
    return [replace(trial, seconds=0.0) for trial in study.trials()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a study that ran to its end, and its result."""
    study = make(tmp_path_factory.mktemp("studies") / "whole")
    told = []
    result = study.run(report=told.append)
    assert [replace(trial, seconds=0.0) for trial in told] == facts(study)
    return study, result


def test_the_best_trial_is_trained_again_on_fresh_seeds(whole):
    study, result = whole
    values = [-np.inf if trial.value is None else trial.value for trial in result.trials]
    assert len(values) == 9
    assert result.best.value == max(values)
    equals = [trial for trial in result.trials if trial.value == max(values)]
    means = [np.mean(list(trial.curve.values())) for trial in equals]
    assert result.best.number == equals[int(np.argmax(means))].number  # of equal scores the first one
    assert result.trials[0].values == {"step_size": 0.05}
    assert result.trials[0].value == result.trials[0].curve[8]
    assert Run.open(study.path / "trials" / "0000").settings.seeds == SEEDS
    assert result.default.run.settings.seeds == (0, 1, 2)
    assert result.default.run.settings.budget == study.settings.budget
    if result.tuned is not None:
        assert result.tuned.run.asked()["step_size"] == result.best.values["step_size"]
        assert result.tuned.difference == result.tuned.final.iqm - result.default.final.iqm


def test_trials_that_are_worse_than_most_end_early(whole):
    study, result = whole
    for trial in result.trials:
        run = Run.open(study.path / "trials" / f"{trial.number:04d}")
        assert (max(trial.curve) < 8) == (trial.state == "pruned")
        assert run.outcome()[0] == "finished"
    assert any(trial.state == "pruned" for trial in result.trials)


def test_pruning_begins_after_a_quarter_of_the_budget(tmp_path):
    study = make(tmp_path / "tenths", evaluate_every=1600)
    good = [Trial(n, {"step_size": 0.1}, "complete", 9.0, dict.fromkeys(range(1, 11), 9.0)) for n in range(5)]
    watcher = _Watcher(study, Trial(5, {"step_size": 0.2}), good)
    stopped = []
    for consumed in (1600, 3200, 4800):
        watcher.on_evaluation({"consumed": consumed, "scores": [0.0, 1.0]})
        stopped.append(watcher.should_stop(consumed))
    assert stopped == [False, False, True]


def test_an_interrupted_study_finds_what_an_uninterrupted_one_does(whole, tmp_path):
    study, result = make(tmp_path / "cut"), None
    for stop in (3, 14, 21, 5, 17, 9, 10**9):
        calls = iter(range(stop))
        result = Study.open(study.path).run(interrupted=lambda calls=calls: next(calls, None) is None)
        assert (result is None) == (stop < 10**9)
    assert facts(study) == facts(whole[0])
    assert result.default.final == whole[1].default.final


def test_a_study_that_was_killed_loses_nothing_but_what_was_not_written(whole, tmp_path):
    study = make(tmp_path / "killed", Plan(trials=3, fresh_seeds=0))
    study.run()
    file = study.path / "trials.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-1]) + '\n{"number": 2, "val')  # within the last record
    assert study.trials()[-1].state == "running"
    assert study.run().default is None
    assert facts(study) == facts(whole[0])[:3]


def test_more_trials_continue_the_search(whole, tmp_path):
    study = make(tmp_path / "short", Plan(trials=2, fresh_seeds=0))
    study.run()
    study.extend(trials=5)
    assert Study.open(study.path).plan.trials == 5
    Study.open(study.path).run()
    assert facts(study) == facts(whole[0])[:5]


def test_the_file_of_the_winner_trains_it(whole):
    from operant.cli.arguments import parse_training

    study, result = whole
    options, config = parse_training(["q-learning", "CliffWalking-v1", "--config", str(result.config)])
    assert config == study.configuration(result.best)
    assert options.chosen_seeds() == (0, 1, 2)
    assert options.budget == 16_000


def test_hours_end_the_search_and_keep_the_trial_in_flight(tmp_path):
    study = make(tmp_path / "timed", Plan(trials=500, hours=2.0 / 3600, fresh_seeds=0))
    result = study.run()
    assert result.best.value is not None
    assert 1 <= len(result.trials) < 500
    again = Study.open(study.path)
    assert len(again.trials()) - len(result.trials) in (0, 1)


def test_a_search_without_a_finished_trial_reports_it(tmp_path):
    study = make(tmp_path / "none", Plan(hours=1e-9))
    with pytest.raises(RunError, match=r"no trial of .* completed.*give it more --hours"):
        study.run()


def test_values_that_do_not_go_together_are_not_trained(tmp_path):
    config = api.configure("ppo", "CartPole-v1", num_envs=2, num_steps=8, hidden_sizes=(4,), num_epochs=1)
    settings = Settings("ppo", "CartPole-v1", seeds=(7,), budget=64, evaluate_episodes=2)
    own = {"num_minibatches": {"choices": [1, 3, 4, 16]}, "num_steps": {"choices": [8, 16, 512]}}
    study = Study.create(tmp_path / "odd", Plan(trials=6, fresh_seeds=0), settings, config, space_of(config, own=own))
    assert {trial.state for trial in study.run().trials} <= {"complete", "pruned"}
    space = space_of(config, own={"num_steps": {"choices": [8, 512]}, "num_minibatches": {"choices": [4, 5]}})
    study = Study.create(tmp_path / "none", Plan(trials=3, fresh_seeds=0), settings, config, space)
    study._is_valid = lambda values: values["num_steps"] == 512 or values["num_minibatches"] == 5
    failed = study.run().trials[1:]
    reasons = ("num_minibatches (5) must divide", "would use 1024 of a budget of 64")
    assert all(trial.state == "failed" and any(one in trial.reason for one in reasons) for trial in failed)
    assert not any((tmp_path / "none" / "trials" / f"{trial.number:04d}").exists() for trial in failed)


def test_the_time_of_an_interrupted_trial_counts(tmp_path):
    study = make(tmp_path / "cut", Plan(trials=2, fresh_seeds=0))
    calls = iter(range(2))
    assert study.run(interrupted=lambda: next(calls, None) is None) is None
    (trial,) = study.trials()
    assert trial.state == "running"
    assert trial.seconds > 0
    study.extend(hours=trial.seconds / 3600)
    with pytest.raises(RunError, match="there was no time for one"):
        study.run()
    assert study.trials() == [trial]  # nothing was trained
    study.extend(hours=0.0)
    study.run()
    assert study.trials()[0].seconds > trial.seconds


def test_an_untrainable_study_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="NoSuchTask"):
        make(tmp_path / "wrong", task="NoSuchTask-v0").run()


@pytest.mark.parametrize(
    ("algorithm", "values", "message"),
    [
        ("ppo", {"num_envs": 4, "num_steps": 64}, r"it would use 256 of a budget of 100; raise --budget, or shorten"),
        (
            "dqn",
            {"learning_starts": 128, "num_envs": 1, "train_freq": 1},
            r"learning_starts is 128, not less than the budget of 100; raise --budget",
        ),
    ],
)
def test_initial_values_that_the_budget_excludes_are_rejected(algorithm, values, message, tmp_path):
    settings = Settings(algorithm, "CartPole-v1", seeds=(1000,), budget=100, evaluate_every=100, evaluate_episodes=1)
    config = api.configure(algorithm, "CartPole-v1", **values)
    with pytest.raises(ValueError, match=rf"the initial values are not possible: {message}"):
        Study.create(tmp_path / "study", Plan(trials=3), settings, config, space_of(config, budget=100))
    assert list(tmp_path.iterdir()) == []


def test_initial_values_that_exceed_the_budget_end_the_search(tmp_path, monkeypatch):
    monkeypatch.setattr("operant.tuning.study.conflict", lambda *_: "")  # as for rollouts that the fields do not show
    settings = Settings("ppo", "CartPole-v1", seeds=(1000,), budget=100, evaluate_every=100, evaluate_episodes=1)
    config = api.configure("ppo", "CartPole-v1", num_envs=4, num_steps=64)
    study = Study.create(tmp_path / "study", Plan(trials=3, fresh_seeds=0), settings, config, space_of(config))
    with pytest.raises(
        ValueError, match=r"the initial values would use 256 of a budget of 100.*raise --budget, or shorten"
    ):
        study.run()


def make_breaking(tmp_path, condition, trials, tuned=("num_steps", {"choices": [8, 4, 2]})):
    """Return a study of PPO that runs out of memory under a condition."""
    file = tmp_path / "breaking.py"
    file.write_text(
        "from operant.control import PPO, PPOConfig\n\n\nclass Breaking(PPO):\n    config: PPOConfig\n\n"
        f"    def iterate(self):\n        if {condition}:\n"
        '            raise RuntimeError("CUDA out of memory")\n        return super().iterate()\n'
    )
    name = f"{file}:Breaking"
    small = {"num_envs": 1, "num_steps": 8, "num_epochs": 1, "num_minibatches": 1, "hidden_sizes": (4,)}
    config = api.configure(name, "CartPole-v1", normalize_advantage="none", **small)
    space = space_of(config, own=dict([tuned]))
    settings = Settings(name, "CartPole-v1", seeds=(1000,), budget=8, evaluate_every=8, evaluate_episodes=1)
    return Study.create(tmp_path / "study", Plan(trials=trials, fresh_seeds=0), settings, config, space)


def test_a_trial_that_cannot_be_trained_fails_alone(tmp_path):
    study = make_breaking(tmp_path, "self.config.num_steps == 4", trials=8)
    result = study.run()
    assert result.best.value is not None
    failed = [trial for trial in study.trials() if trial.state == "failed"]
    assert failed
    assert {trial.reason for trial in failed} == {"RuntimeError: CUDA out of memory"}
    assert all(trial.values == {"num_steps": 4} for trial in failed)
    assert "in iterate" in (study.path / "trials" / f"{failed[0].number:04d}" / "traceback.txt").read_text()
    study.extend(trials=9)
    assert len(Study.open(study.path).run().trials) == 9


def test_unexpected_errors_of_initial_values_and_of_several_trials_end_the_search(tmp_path):
    study = make_breaking(tmp_path, "True", trials=2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            study.run()
    assert [trial.state for trial in study.trials()] == ["running"]
    shutil.rmtree(study.path)
    rates = "learning_rate", {"low": 1e-4, "high": 1e-2, "log": True}
    study = make_breaking(tmp_path, "self.config.learning_rate != 0.007", trials=40, tuned=rates)
    ended = []
    with pytest.raises(RunError, match=r"5 trials in a row failed, the last with RuntimeError: CUDA out of memory;"):
        study.run(report=ended.append)
    assert [trial.state for trial in ended[-6:]] == ["complete", *["failed"] * 5]
    assert len(ended) == 6
    assert all(trial.state != "running" for trial in study.trials())


@pytest.mark.parametrize("name", ["random", "n-step-td"])
def test_algorithms_without_a_learned_policy_are_rejected(name, tmp_path):
    settings = Settings(name, "operant/RandomWalk19-v0", seeds=(1000,), budget=50)
    config = api.configure(name, settings.task)
    with pytest.raises(ValueError, match=f"{name} learns no policy"):
        Study.create(tmp_path / "study", Plan(), settings, config, space_of(config))


def test_wrong_plans(tmp_path):
    with pytest.raises(ValueError, match=r"trials must be in \[1, inf\), got 0"):
        Plan(trials=0)
    with pytest.raises(ValueError, match=r"seeds \[1\] are both trial seeds and new seeds"):
        make(tmp_path / "shared", seeds=(1, 1000))
    make(tmp_path / "twice")
    with pytest.raises(RunError, match=r"cannot create the folder .* of a study"):
        make(tmp_path / "twice")
    settings = Settings("sft", "arithmetic", seeds=SEEDS)
    with pytest.raises(ValueError, match="sft trains language models, which tune does not"):
        Study.create(tmp_path / "words", Plan(), settings, None, {})


def test_a_folder_that_is_no_study(tmp_path):
    with pytest.raises(RunError, match="is not the folder of a study"):
        Study.open(tmp_path)
    (tmp_path / "study.toml").write_text("schema_version = 99\n")
    with pytest.raises(RunError, match="schema_version is 99, this version of operant reads 1"):
        Study.open(tmp_path)


def test_one_process_at_a_time(tmp_path):
    from operant.runtime.locks import held

    study = make(tmp_path / "held")
    with held(study.path), pytest.raises(RunError, match="is being searched by process"):
        study.run()
    with held(study.path), pytest.raises(RunError, match="is being searched by process"):
        study.extend(trials=1)
    assert Study.open(study.path).plan == study.plan


def test_the_command_after_a_lost_record_is_quoted(tmp_path):
    (tmp_path / "my studies").mkdir()
    study = make(tmp_path / "my studies" / "one")
    with closing(RecordWriter(study._records)) as writer:
        writer.lost = 1
        with pytest.raises(RunError, match=r"free space and run `operant tune '/.*/my studies/one'`"):
            study._write(writer, Trial(0, {}))


def test_records_are_plain(whole):
    lines = [json.loads(line) for line in (whole[0].path / "trials.jsonl").read_text().splitlines()]
    assert [line["state"] for line in lines[::2]] == ["running"] * 9
    assert len(lines) == 18


def test_earlier_runs_are_the_first_trials_and_are_not_trained_again(whole, tmp_path):
    complete = [trial for trial in facts(whole[0]) if trial.state == "complete"][:3]
    runs = [whole[0].path / "trials" / f"{trial.number:04d}" for trial in complete]
    study = make(tmp_path / "study", Plan(trials=3, fresh_seeds=3), runs=runs)
    result = study.run()
    taken, own = result.trials[:3], result.trials[3:]
    assert [replace(trial, source="", number=0) for trial in taken] == [replace(trial, number=0) for trial in complete]
    assert [trial.source for trial in result.trials] == [*(str(run.resolve()) for run in runs), "", "", ""]
    assert result.initial == taken[0]
    assert all(trial.values not in [other.values for other in taken] for trial in own)
    assert sorted(folder.name for folder in (study.path / "trials").iterdir()) == ["0003", "0004", "0005"]
    assert result.default.final == whole[1].default.final
    cut, again = make(tmp_path / "cut", Plan(trials=3, fresh_seeds=3), runs=runs), None
    for stop in (3, 14, 8, 10**9):
        calls = iter(range(stop))
        again = Study.open(cut.path).run(interrupted=lambda calls=calls: next(calls, None) is None)
        assert (again is None) == (stop < 10**9)
    assert facts(cut) == facts(study)


def test_a_space_that_earlier_runs_exhaust(whole, tmp_path):
    first = whole[0].path / "trials" / "0000"
    other = make(tmp_path / "other", Plan(trials=2, fresh_seeds=0), space={"choices": [0.05, 0.8]}, runs=[first])
    runs = [Path(trial.source or other.path / "trials" / "0001") for trial in other.run().trials[:2]]
    study = make(tmp_path / "study", Plan(trials=2, fresh_seeds=0), space={"choices": [0.05, 0.8]}, runs=runs)
    result = study.run()
    assert not list((study.path / "trials").iterdir())
    for trial in result.trials[2:]:
        (same,) = [known for known in result.trials[:2] if known.values == trial.values]
        assert (trial.value, trial.curve, trial.source) == (same.value, same.curve, "")
        assert trial.reason == f"the values of trial {same.number + 1}, not trained again"


def test_initial_values_without_time_for_them(whole, tmp_path):
    (best,) = [trial for trial in facts(whole[0]) if trial.number == whole[1].best.number]
    run = whole[0].path / "trials" / f"{best.number:04d}"
    assert best.number > 0
    result = make(tmp_path / "study", Plan(hours=1e-9, fresh_seeds=3), runs=[run]).run()
    assert (result.initial.value, result.initial.values) == (None, {"step_size": 0.05})
    assert (result.best.source, result.default.final) == (str(run.resolve()), whole[1].default.final)
    assert result.tuned.final == whole[1].tuned.final
