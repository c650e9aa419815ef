import json
from contextlib import closing

import pytest

import operant
from operant.language import GRPOConfig, SFTConfig
from operant.language.inputs import pin
from operant.runtime.run import RunError
from operant.runtime.settings import Settings

SIZE = {
    "held_out": 2,
    "max_completion_length": 4,
    "prompts_per_batch": 2,
    "num_generations": 2,
    "budget": 2,
    "progress": "silent",
}


def reward(value):
    return f"def score(completions, **_):\n    return [{value}] * len(completions)\n"


def test_built_in_models_are_no_inputs_and_data_sets_keep_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "rows.jsonl").write_text("{}\n")
    config, found = pin(Settings("sft", "rows.jsonl"), SFTConfig())
    assert config == SFTConfig()
    assert [(given.name, given.path, given.fills) for given in found] == [("task", tmp_path / "rows.jsonl", "dataset")]
    config, found = pin(Settings("sft", "any"), SFTConfig(model="./tiny", dataset="rows.jsonl"))
    assert (config.model, config.dataset) == (str(tmp_path / "tiny"), str(tmp_path / "rows.jsonl"))
    assert [given.name for given in found] == ["model", "dataset"]
    assert pin(Settings("grpo", "arithmetic"), GRPOConfig(rewards=("exact",))) == (GRPOConfig(rewards=("exact",)), [])


def test_a_run_means_the_same_from_every_folder(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, value in ((here, 1.0), (there, 0.0)):
        folder.mkdir()
        (folder / "reward.py").write_text(reward(value))
        rows = [{"prompt": f"{value} {n}"} for n in range(20)]
        (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.chdir(here)
    with closing(operant.train("grpo", "rows.jsonl", rewards=("reward.py:score",), run="run", **SIZE)):
        pass
    monkeypatch.chdir(there)
    with closing(operant.load("../here/run")) as trained:
        assert trained.evaluate().scores == (1.0,)
        assert {sample["prompt"][:3] for sample in trained.experiment.samples} == {"1.0"}
    (here / "reward.py").write_text(reward(2.0))
    with pytest.raises(RunError, match=r"rewards .*here/reward\.py has changed"):
        operant.load("../here/run")
    with closing(operant.load("../here/run", accept_changes=True)) as trained:
        assert trained.evaluate().scores == (2.0,)
    with pytest.raises(RunError, match=r"1 of its inputs changed"):
        operant.resume("../here/run")
    with closing(operant.resume("../here/run", accept_changes=True, progress="silent")):
        pass
    operant.load("../here/run").close()
