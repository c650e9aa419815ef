import json
import socket

import pytest
import torch

from operant import api, catalog
from operant.language import factory
from operant.language.engines import NativeEngine
from operant.language.factory import BUILDERS, engine_for
from operant.language.grpo import GRPOConfig
from operant.runtime.evaluation import StoppedError
from operant.runtime.settings import Settings

SMALL = {"train_examples": 24, "held_out": 6, "learning_rate": 0.01, "batch_size": 8}


@pytest.fixture
def train(model_folder, tmp_path):
    """Return what trains a small model."""

    def train(name, *, algorithm="sft", task="reverse", budget=32, seeds=1, interrupted=lambda: False, **values):
        values = ({"model": model_folder} | SMALL if algorithm == "sft" else {"model": model_folder}) | values
        return api.train(
            algorithm,
            task,
            seeds=seeds,
            budget=budget,
            run=tmp_path / name,
            progress="silent",
            interrupted=interrupted,
            **values,
        )

    return train


def parameters(trained):
    return [
        torch.cat([value.detach().flatten() for value in member.learner.model.trained().values()])
        for member in trained.experiment.members
    ]


def after(count, run=None):
    """Return what asks for a stop after so many questions; of a run, counted from the evaluation of its start."""
    calls = iter(range(1, 10_000))
    path = run and run / "eval" / "evaluations.jsonl"
    return lambda: (not path or (path.exists() and path.stat().st_size > 0)) and next(calls) >= count


def settings(task="reverse", **values):
    return Settings(**{"algorithm": "sft", "task": task, "seeds": (0,), "budget": 32} | values)


# Whole runs


@pytest.mark.parametrize(
    "values",
    [{}, {"dtype": "bfloat16"}, {"lora_r": 2}, {"lr_schedule": "cosine", "warmup_ratio": 0.3, "weight_decay": 0.1}],
)
def test_a_run_that_was_stopped_ends_bit_for_bit_like_one_that_was_not(train, tmp_path, values):
    whole = train("whole", budget=64, **values)
    train("parts", budget=64, interrupted=after(3, tmp_path / "parts"), **values)
    resumed = api.resume(tmp_path / "parts", progress="silent", interrupted=after(2))
    assert 0 < resumed.experiment.learner.consumed < 64
    resumed = api.resume(tmp_path / "parts", progress="silent")
    assert torch.equal(parameters(whole)[0], parameters(resumed)[0])
    assert whole.experiment.members[0].learner.least == resumed.experiment.members[0].learner.least
    loaded = api.load(tmp_path / "parts")
    assert torch.equal(parameters(loaded)[0], parameters(whole)[0])
    assert loaded.evaluate().scores == whole.evaluate().scores


def test_an_answering_policy_resumes_bit_for_bit(train, tmp_path):
    values = {
        "algorithm": "grpo",
        "budget": 12,
        "prompts_per_batch": 3,
        "num_generations": 2,
        "train_examples": 10,
        "held_out": 4,
    }
    values |= {"learning_rate": 0.01, "num_minibatches": 3, "beta": 0.1, "max_completion_length": 5}
    whole = train("whole", **values)
    train("parts", interrupted=after(2, tmp_path / "parts"), **values)
    resumed = api.resume(tmp_path / "parts", progress="silent")
    assert torch.equal(parameters(whole)[0], parameters(resumed)[0])


def test_each_seed_learns_what_it_learns_alone(train):
    together = train("both", seeds=[2, 5], model="tiny", budget=16)
    for position, seed in enumerate((2, 5)):
        alone = train(f"alone-{seed}", seeds=[seed], model="tiny", budget=16)
        assert torch.equal(parameters(together)[position], parameters(alone)[0])
        assert together.evaluate().scores[position] == alone.evaluate().scores[0]
    assert not torch.equal(*parameters(together))


@pytest.mark.parametrize("calls", [1, 3, 8])
def test_an_evaluation_is_given_up_when_asked_to_stop(train, calls):
    trained = train("one", seeds=[1, 3])
    answered = list(trained.experiment.samples)
    with pytest.raises(StoppedError, match="interrupted in the middle"):
        trained.experiment.evaluate(interrupted=after(calls))
    assert trained.experiment.samples == answered


def test_what_was_answered_can_be_looked_at(train):
    trained = train("one", seeds=[1, 3])
    assert len(trained.evaluate(4).scores) == 2
    samples = trained.experiment.samples
    assert {sample["seed"] for sample in samples} == {1, 3}
    assert {"prompt", "completion", "reward", "truncated"} <= samples[0].keys()
    found = trained.experiment.sample(2, 3)
    assert [one.samples for one in found] == [2, 2]


def test_memory_is_estimated_at_the_start(train):
    (note,) = train("one").experiment.notes
    assert "of memory at the peak" in note


def test_a_data_set_in_a_file(train, tmp_path):
    rows = [{"prompt": f"{i}+{j}=", "completion": str(i + j)} for i in range(5) for j in range(4)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    for task, values in ((str(path), {}), ("sums", {"dataset": str(path)})):
        trained = train(f"run-{len(values)}", task=task, held_out=100, **values)
        learner = trained.experiment.members[0].learner
        assert len(learner.demonstrations) == 16
        assert len(learner.held_out) == 4
        (score,) = trained.evaluate().scores
        assert score < 0, "without a reward the score is the likelihood"
        with pytest.raises(ValueError, match="sft trains no model that answers prompts"):
            trained.experiment.sample(2, 2)


# Rewards and engines


def test_without_rewards_there_is_nothing_to_learn_from(train, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": str(i)}) for i in range(10)))
    with pytest.raises(ValueError, match="nothing rewards the answers: name --rewards or --reward-model"):
        train("none", algorithm="grpo", task=str(path))


def test_a_function_that_shall_decide_what_is_right_but_is_not_there_is_refused_before_training(train, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(10)))
    for task, values, names in (
        (str(rows), {"rewards": ("exact", "numeric")}, "exact, numeric"),
        ("reverse", {"rewards": ("numeric",)}, "exact"),  # the task's own, which score the policy
    ):
        expected = f"pass_reward is 'right', expected one of the reward functions: {names}"
        with pytest.raises(ValueError, match=expected):
            train("wrong", algorithm="grpo", task=task, **values, **{"pass_reward": "right"})
    assert not (tmp_path / "wrong").exists()


def test_the_engine_that_is_asked_for(make_model):
    model = make_model()
    engine = engine_for(GRPOConfig(engine_batch_size=17), model)
    assert isinstance(engine, NativeEngine)
    assert engine.rows == 17
    assert engine.model is model


@pytest.fixture
def closed():
    """Return the address of a port that nobody listens at."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_without_its_server_a_run_does_not_begin(train, tmp_path, closed):
    with pytest.raises(OSError, match=rf"{closed} cannot be reached .*Start one with `.*vllm serve FOLDER"):
        train("none", algorithm="grpo", engine=closed)
    assert not (tmp_path / "none").exists()


def test_without_its_server_a_run_does_not_go_on(train, tmp_path, closed):
    values = {
        "budget": 12,
        "prompts_per_batch": 3,
        "num_generations": 2,
        "train_examples": 10,
        "held_out": 4,
        "max_completion_length": 5,
    }
    train("parts", algorithm="grpo", interrupted=after(2, tmp_path / "parts"), **values)
    config = tmp_path / "parts" / "config.toml"
    config.write_text(config.read_text().replace('engine = "native"', f'engine = "{closed}"'))
    before = (tmp_path / "parts" / "run.json").read_bytes()
    with pytest.raises(OSError, match=f"{closed} cannot be reached"):
        api.resume(tmp_path / "parts", progress="silent")
    assert (tmp_path / "parts" / "run.json").read_bytes() == before
    assert len(api.load(tmp_path / "parts").evaluate().scores) == 1, "to look at it takes no server"


def test_every_learner_of_the_catalog_has_a_builder():
    learners = {algorithm.learner for algorithm in catalog.ALGORITHMS if algorithm.package == "language"}
    assert learners == set(BUILDERS)


def test_a_configuration_of_another_algorithm_is_refused():
    with pytest.raises(TypeError):
        factory.assemble(catalog.find("sft"), settings(), GRPOConfig(), device="cpu")
