"""The best weights of runs of language models are kept in training and used by everything that continues from a run."""

import pytest
import torch

import operant
from operant.language.best import ModelWeights, best_state
from operant.language.chat import find_chat_model, trained_model
from operant.language.configs import ModelOptions
from operant.language.runs import load_trained, trained_state
from operant.runtime.evaluation import Evaluation
from operant.runtime.run import RunError
from operant.runtime.weights import Best

SMALL = {"train_examples": 24, "held_out": 4, "batch_size": 8, "budget": 32, "evaluate_every": 8, "progress": "silent"}
SCORES = {0: (0.1, 0.9), 8: (0.5, 0.2), 16: (0.8, 0.3), 24: (0.8, 0.9), 32: (0.4, 0.1)}
"""Of two seeds: the first is best at 16, the second at the start."""


@pytest.fixture
def course(monkeypatch):
    """Replace the scores of evaluations by those above, and record the weights at each evaluation."""
    seen = {}

    def evaluate(experiment, *_, **__):
        consumed = experiment.learner.consumed
        seen[consumed] = [values(member.learner) for member in experiment.members]
        return Evaluation.of([[score] for score in SCORES[consumed]])

    monkeypatch.setattr("operant.language.factory.Experiment.evaluate", evaluate)
    return seen


def values(learner):
    return {name: value.detach().clone() for name, value in ModelWeights(learner).kept.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def speak(folder, algorithm="sft", task="arithmetic", seeds=2, **options):
    return operant.train(algorithm, task, seeds=seeds, run=folder, **SMALL | options)


@pytest.mark.parametrize(
    "options",
    [{}, {"lora_r": 2}, {"dtype": "bfloat16"}, {"algorithm": "reward-model", "task": "preference"}],
    ids=["whole", "adapter", "16 bits", "reward model"],
)
def test_each_seed_keeps_its_best_and_every_door_leads_to_it(course, tmp_path, options):
    trained = speak(tmp_path / "run", **options)
    loaded = operant.load(tmp_path / "run", best=True)
    assert loaded.consumed == (16, 0)
    found = [values(member.learner) for member in loaded.experiment.members]
    assert same(found[0], course[16][0])
    assert same(found[1], course[0][1])
    assert not same(found[0], values(trained.experiment.members[0].learner))
    if options.get("lora_r"):
        assert all("lora" in name for name in best_state(trained.run, 0)["model"])
    begun = load_trained(ModelOptions(init=f"{tmp_path}/run/best", dtype=options.get("dtype", "float32")), seed=0)
    own = {name: value[0] for name, value in course[16][0].items() if name.startswith("model.")}
    assert same({f"model.{name}": value.detach() for name, value in begun.trained().items()}, own)
    if options.get("algorithm"):
        _, head = trained_state(f"{tmp_path}/run/best", "head", seed=1)
        assert torch.equal(head["weight"], course[0][1]["head.weight"][0])
        return
    for model in (
        trained_model(trained.run, 0, best=True),
        find_chat_model(f"{tmp_path}/run", best=True).model,
    ):
        assert same({f"model.{name}": value.detach() for name, value in model.trained().items()}, own)


def test_a_run_that_was_cut_keeps_the_same(course, tmp_path):
    speak(tmp_path / "whole")
    questions = iter(range(100))
    speak(tmp_path / "cut", interrupted=lambda: next(questions) == 5)
    operant.resume(tmp_path / "cut", progress="silent")
    files = [
        {path.relative_to(folder): path.read_bytes() for path in sorted((folder / "best").rglob("*")) if path.is_file()}
        for folder in (tmp_path / "whole", tmp_path / "cut")
    ]
    assert len(files[0]) == 6, "one copy of the weights of each seed"
    assert files[0] == files[1]


def test_the_optimizer_of_16_bits_takes_the_best_too(course, tmp_path):
    speak(tmp_path / "run", dtype="bfloat16", seeds=1)
    learner = operant.load(tmp_path / "run", best=True).experiment.members[0].learner
    for name, value in learner.stepper.state_dict()["masters"].items():
        assert torch.equal(value, learner.model.trained()[name].float())


def test_a_run_without_best_weights(course, tmp_path):
    run = speak(tmp_path / "run", seeds=1).run
    (folder,) = (run.path / "best").glob("*/step_*")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    with pytest.raises(RunError, match="has no best policies"):
        Best(run, index=0).load()
    with pytest.raises(RunError, match="has no best policies"):
        trained_state(f"{run.path}/best", "model", seed=0)
    with pytest.raises(ValueError, match="--best needs a run, got tiny"):
        find_chat_model("tiny", best=True)
