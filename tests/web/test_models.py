import json
import subprocess
import sys

import pytest

from operant.language.grpo import GRPOConfig
from operant.language.reward_model import RewardModelConfig
from operant.runtime.run import Run
from operant.runtime.settings import Settings
from operant.web import models
from web.folders import make_run  # type: ignore[import-not-found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with runs of a policy, a reward model and a table, one without a checkpoint, and saved models."""
    path = tmp_path_factory.mktemp("web") / "runs"
    make_run(path / "table", [[0.1]])
    kinds = [("grpo", "arithmetic", GRPOConfig()), ("reward-model", "preference", RewardModelConfig())]
    for (algorithm, task, config), name in zip([*kinds, kinds[0]], ["words", "judge", "new"], strict=True):
        settings = Settings(algorithm=algorithm, task=task, seeds=(3, 4), budget=20)
        run = Run.create(path / name, settings, config, command=["operant", "train"])
        if name != "new":
            (run.path / "checkpoints" / "step_20").mkdir(parents=True)
    sample = {"consumed": 20, "seed": 3, "prompt": "1+1=", "completion": "2", "reward": 1.0}
    (path / "words" / "eval").mkdir(exist_ok=True)
    (path / "words" / "eval" / "samples.jsonl").write_text(json.dumps(sample) + "\n", encoding="utf-8")
    for place, file in (
        ("saved/model", "config.json"),
        ("saved/adapter", "adapter_config.json"),
        ("words/inner", "config.json"),
    ):
        (path / place).mkdir(parents=True)
        (path / place / file).write_text("{}", encoding="utf-8")
    return path


def test_policies_and_reward_models_are_listed(folder):
    found = models.models(folder)
    assert [(one["name"], one["seeds"], one["about"], one["example"]) for one in found["policies"]] == [
        ("words", 2, "grpo on arithmetic", "1+1="),
        ("saved/adapter", 1, "a saved model", ""),
        ("saved/model", 1, "a saved model", ""),
    ]
    assert [one["name"] for one in found["rewards"]] == ["judge"]
    assert found["policies"][0]["path"] == str(folder / "words")


def test_listing_does_not_import_torch(folder):
    code = "import sys, pathlib, operant.web.models as m; print(len(m.models(pathlib.Path(sys.argv[1]))['policies']))"
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3"


def test_an_unreadable_run_is_left_out(folder):
    (folder / "broken").mkdir(exist_ok=True)
    (folder / "broken" / "config.toml").write_text("[settings", encoding="utf-8")
    assert models.algorithm_of(folder / "broken") == ""
    assert len(models.models(folder)["policies"]) == 3
