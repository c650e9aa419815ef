import pytest
import torch

import operant
from operant import build

SPEAKING = {"train_examples": 48, "held_out": 6, "max_completion_length": 6, "budget": 64, "evaluate_every": 32}
SPEAKING |= {"progress": "silent", "checkpoint_seconds": 0}


def test_the_language_extra_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "find_spec", lambda name: None if name == "peft" else name)
    with pytest.raises(ModuleNotFoundError, match=r'sft needs peft: pip install "operant\[language\]"'):
        operant.train("sft", "arithmetic", run=tmp_path / "run", **SPEAKING)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("cores", "small"), [(1, 1), (2, 2), (8, 2)])
def test_pretrained_models_get_all_cores_and_built_in_ones_two(cores, small, tmp_path, monkeypatch):
    quick = {**SPEAKING, "budget": 16, "batch_size": 16}
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
    tiny = operant.train("sft", "arithmetic", run=tmp_path / "run", **quick)
    assert tiny.run.resolved() == {"device": "cpu", "threads": small, "precision": "highest", "compile": False}
    tiny.experiment.learner.learners[0].model.save(tmp_path / "model")
    large = operant.train("sft", "arithmetic", run=tmp_path / "large", model=str(tmp_path / "model"), **quick)
    assert large.run.resolved()["threads"] == cores
    assert {small, cores} <= set(used)
