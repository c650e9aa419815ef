import io
import json
import shutil

import pytest

from operant import load
from operant.runtime.metrics import read_records


def test_scores_are_those_of_the_library(answer, run, monkeypatch):
    monkeypatch.chdir(run.parent)
    scored = answer("evaluate", run.name, "--episodes", 6)
    assert scored["run"] == str(run)
    expected = load(run).evaluate(6, backend="gymnasium")
    assert scored["per_seed_scores"] == list(expected.scores)
    assert scored["interval"] == list(expected.interval)
    assert (scored["episodes"], scored["env_backend"], scored["seeds"]) == (6, "gymnasium", [0, 1])
    kept = read_records(run / "eval" / "final.jsonl")[-1]
    assert (kept["scores"], kept["consumed"], kept["env_backend"]) == (list(expected.scores), 1024, "gymnasium")


def test_an_interrupted_evaluation_answers_in_json(cli, run, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("operant.api.Trained.evaluate", interrupt)
    monkeypatch.chdir(run.parent)
    status, out, _ = cli("evaluate", run.name, "--json")
    assert (status, json.loads(out)) == (130, {"run": str(run), "outcome": "interrupted"})


def test_the_backend_can_be_chosen(answer, run):
    scored = answer("evaluate", run, "--episodes", 6, "--env-backend", "tensor")
    assert scored["per_seed_scores"] == list(load(run).evaluate(6, backend="tensor").scores)


def test_the_best_policies_are_scored(cli, answer, run):
    scored = answer("evaluate", run, "--episodes", 6, "--best")
    best = load(run, best=True)
    assert scored["per_seed_scores"] == list(best.evaluate(6, backend="gymnasium").scores)
    assert (scored["best"], scored["consumed"]) == (True, list(best.consumed))
    kept = read_records(run / "eval" / "final.jsonl")[-1]
    assert (kept["best"], kept["consumed"]) == (True, list(best.consumed))
    status, out, _ = cli("evaluate", run, "--episodes", 2, "--best")
    first, second = (f"{steps:,}" for steps in best.consumed)
    assert status == 0
    assert out.endswith(
        f"\nPolicies with the best evaluation during training, by seed: 0 after {first}, 1 after {second}.\n"
    )


def test_the_policies_of_an_update_are_scored(cli, answer, run):
    recorded = {record["consumed"]: record["sha256"] for record in read_records(run / "history" / "hashes.jsonl")}
    at = sorted(recorded)[len(recorded) // 2]
    found = answer("evaluate", run, "--at", at, "--episodes", 4)
    assert (found["consumed"], found["sha256"]) == (at, recorded[at])
    with_library = load(run, at=at)
    assert found["per_seed_scores"] == list(with_library.evaluate(4, backend="gymnasium").scores)
    with_library.close()
    status, out, _ = cli("evaluate", run, "--at", at, "--episodes", 4)
    assert status == 0
    assert f"SHA-256 {recorded[at]} (equal to the hash recorded in training)." in out
    assert cli("evaluate", run, "--at", 10**9)[0] == 2
    assert "at=0" in cli("evaluate", run, "--at", 0, "--best")[2]


def test_a_required_score(cli, run):
    status, out, err = cli("evaluate", run, "--episodes", 2, "--require", 0)
    assert (status, err) == (0, "")
    assert [line.split()[-1] for line in out.splitlines()[:3]] == ["solved", "yes", "yes"]
    status, out, err = cli("evaluate", run, "--episodes", 2, "--require", 501)
    assert status == 1
    assert err.startswith("operant: below the required 501: seed 0 scored ")
    assert "seed 1 scored" in err


def test_a_language_model_is_scored_on_held_out_examples(cli, answer, spoken):
    status, out, _ = cli("evaluate", spoken, "--samples", 4)
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert lines[0] == ["seed", "score", "worst", "best", "examples"]
    assert lines[1][-1] == "12"
    assert ["seed", "avg@4", "95", "%", "interval", "pass@1", "pass@2", "pass@4"] in lines
    assert ["prompt", "completion", "reward"] in lines
    scored = answer("evaluate", spoken, "--samples", 4)
    assert (scored["unit"], scored["episodes"]) == ("demonstrations", 12)
    assert "env_backend" not in scored
    (sampled,) = scored["samples"]["per_seed"]
    assert (scored["samples"]["count"], sampled["seed"], list(sampled["pass"])) == (4, 0, ["1", "2", "4"])
    assert sampled["interval"][0] <= sampled["average"] <= sampled["interval"][1]
    (expected,) = load(spoken).experiment.sample(4, 12)
    assert (sampled["average"], list(sampled["pass"].values())) == (expected.average, list(expected.passes.values()))
    assert answer("evaluate", spoken, "--episodes", 5)["episodes"] == 5
    assert read_records(spoken / "eval" / "final.jsonl")[-1]["episodes"] == 5


def test_actions_may_be_sampled(answer, cli, run, spoken):
    scored = [answer("evaluate", run, "--episodes", 6, "--sample") for _ in range(2)]
    assert scored[0] == scored[1]
    assert scored[0]["sampled"]
    assert read_records(run / "eval" / "final.jsonl")[-1]["sampled"]
    trained = load(run)
    expected = trained.evaluate(6, backend="gymnasium", deterministic=False)
    trained.close()
    assert scored[0]["per_seed_scores"] == list(expected.scores)
    assert "sampled" not in answer("evaluate", run, "--episodes", 6)
    status, _, err = cli("evaluate", spoken, "--sample")
    assert status == 2
    assert "--sample is for deep control" in err
    assert "--samples 8 samples answers" in err
    status, _, err = cli("evaluate", run, "--sample", "--exact")
    assert status == 2
    assert "--exact is for greedy policies, and --sample for sampled actions" in err
    assert "Actions are sampled." in cli("evaluate", run, "--episodes", 2, "--sample")[1]


def test_samples_are_for_language_models(cli, run):
    status, _, err = cli("evaluate", run, "--samples", 4)
    assert status == 2
    assert "--samples is for language models" in err


@pytest.mark.parametrize("arguments", [[], ["--episodes", "0"], ["--samples", "-1"]])
def test_wrong_use(arguments, cli, run):
    assert cli("evaluate", *arguments, *([run] if arguments else []))[0] == 2


def test_an_unnamed_default_is_no_choice(cli, run):
    for arguments in (["evaluate", run, "--env-backend", "envpool"], ["resume", run, "--track", "foo"]):
        status, _, err = cli(*arguments)
        assert status == 2
        assert "Expected one of ('" in err
        assert "None" not in err


def test_no_run(cli, tmp_path):
    status, _, err = cli("evaluate", tmp_path)
    assert status == 2
    assert "is not the folder of a run" in err


@pytest.mark.parametrize("command", ["evaluate", "resume", "chat", "export"])
def test_code_that_a_run_wants_to_run_has_to_be_allowed(cli, spoken, tmp_path, monkeypatch, command):
    run = shutil.copytree(spoken, tmp_path / "run")
    config = run / "config.toml"
    config.write_text(config.read_text().replace("remote_code = false", "remote_code = true"))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    arguments = [command, run] + [tmp_path / "model"] * (command == "export")
    arguments += ["--accept-changes"] * (command == "resume")
    status, _, err = cli(*arguments)
    assert status == 2
    assert "run needs the Python code of its model tiny" in err
    assert "pass --remote-code" in err
    assert cli(*arguments, "--remote-code")[0] == 0


def test_the_best_weights_of_a_language_model_are_scored(answer, spoken):
    scored = answer("evaluate", spoken, "--best")
    assert scored["best"] is True
    trained = load(spoken, best=True)
    assert scored["consumed"] == list(trained.consumed)
    assert scored["per_seed_scores"] == list(trained.evaluate().scores)


@pytest.mark.parametrize("flags", [("--env-backend", "tensor"), ("--randomize", "FILE")])
def test_options_of_environments_are_not_for_language_models(flags, cli, spoken, tmp_path):
    file = tmp_path / "randomize.toml"
    file.write_text("noise = 0.1\n")
    status, _, err = cli("evaluate", spoken, *(file if flag == "FILE" else flag for flag in flags))
    assert status == 2
    assert f"{flags[0]} is for environments, and" in err


def test_the_environment_may_have_other_arguments(answer, cli, run):
    usual = answer("evaluate", run, "--episodes", 4)
    assert "env_kwargs" not in usual
    changed = answer("evaluate", run, "--episodes", 4, "--env-kwargs", "sutton_barto_reward=true")
    assert changed["env_kwargs"] == {"sutton_barto_reward": True}
    assert changed["lengths"] == usual["lengths"], "the episodes are those of the same policies and seeds"
    assert all(
        -1 <= score <= 0 < other
        for score, other in zip(changed["per_seed_scores"], usual["per_seed_scores"], strict=True)
    )
    last = json.loads((run / "eval" / "final.jsonl").read_text().splitlines()[-1])
    assert last["env_kwargs"] == changed["env_kwargs"]
    status, _, err = cli("evaluate", run, "--env-kwargs", "gravity=5")
    assert (status, "CartPole-v1 has no parameter 'gravity'" in err) == (2, True)


@pytest.mark.parametrize("package", ["spoken", "tabled"])
def test_tables_and_language_models_have_their_own_tasks(package, cli, spoken, tmp_path):
    run = spoken
    if package == "tabled":
        run = tmp_path / "table"
        assert cli("train", "q-learning", "FrozenLake-v1", "--budget", 100, "--run", run)[0] == 0
    status, _, err = cli("evaluate", run, "--env-kwargs", "is_slippery=false")
    assert (status, "--env-kwargs of evaluations is for deep control, and" in err) == (2, True)
