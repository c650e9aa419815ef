import json
import socket

import pytest
import torch

from operant import api, catalog
from operant.language import factory
from operant.language.grpo import GRPOConfig
from operant.runtime.encoding import digest
from operant.runtime.evaluation import StoppedError
from operant.runtime.settings import Settings
from operant.runtime.shards import Alone, within
from operant.state import clone
from runtime.teams import ranks, team

SMALL = {"train_examples": 24, "held_out": 6, "learning_rate": 0.01, "batch_size": 8}


@pytest.fixture
def train(model_folder, tmp_path):
    """Return a function that trains a small model."""

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
    """Return an ``interrupted`` that is true from call `count` on, counted after the first evaluation of `run`."""
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
    with pytest.raises(StoppedError, match="interrupted during"):
        trained.experiment.evaluate(interrupted=after(calls))
    assert trained.experiment.samples == answered


def test_sampled_answers_are_available_after_evaluation(train):
    trained = train("one", seeds=[1, 3])
    assert len(trained.evaluate(4).scores) == 2
    samples = trained.experiment.samples
    assert {sample["seed"] for sample in samples} == {1, 3}
    assert {"prompt", "completion", "reward", "truncated"} <= samples[0].keys()
    found = trained.experiment.sample(2, 3)
    assert [one.samples for one in found] == [2, 2]


def test_memory_is_estimated_at_the_start(train):
    (note,) = train("one").experiment.notes
    assert "Peak memory about" in note


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
        with pytest.raises(ValueError, match="this run of sft has no reward function for answers"):
            trained.experiment.sample(2, 2)


# Rewards and engines


def test_without_rewards_there_is_nothing_to_learn_from(train, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": str(i)}) for i in range(10)))
    with pytest.raises(ValueError, match="there is no reward function: add --rewards or --reward-model"):
        train("none", algorithm="grpo", task=str(path))


def test_an_unknown_pass_reward_is_rejected_before_training(train, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(10)))
    for task, values, names in (
        (str(rows), {"rewards": ("exact", "numeric")}, "exact, numeric"),
        ("reverse", {"rewards": ("boxed",)}, "exact"),  # the task's own, which score the policy
    ):
        expected = f"pass_reward is 'right', expected a reward function of the run: {names}"
        with pytest.raises(ValueError, match=expected):
            train("wrong", algorithm="grpo", task=task, **values, **{"pass_reward": "right"})
    assert not (tmp_path / "wrong").exists()


@pytest.fixture
def closed():
    """Return the address of a port without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_without_its_server_a_run_does_not_begin(train, tmp_path, closed):
    with pytest.raises(OSError, match=rf"{closed} cannot be reached .*Start one with `.*vllm serve FOLDER"):
        train("none", algorithm="grpo", engine=closed)
    assert not (tmp_path / "none").exists()


def test_without_its_server_a_run_does_not_resume(train, tmp_path, closed):
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
        api.resume(tmp_path / "parts", progress="silent", accept_changes=True)
    assert (tmp_path / "parts" / "run.json").read_bytes() == before
    assert len(api.load(tmp_path / "parts").evaluate().scores) == 1, "loading a run does not need the server"


def test_a_configuration_of_another_algorithm_is_rejected():
    with pytest.raises(TypeError):
        factory.assemble(catalog.find("sft"), settings(), GRPOConfig(), device="cpu")


# Shards

SHARDED = {
    "sft": ("sft", "reverse", {"batch_size": 6, "validations": 1000}),
    "sft by sequences": ("sft", "reverse", {"batch_size": 6, "loss_aggregation": "sequence_mean", "lora_r": 2}),
    "dpo": ("dpo", "preference", {"batch_size": 6, "beta": 0.5}),
    "dpo, reference in memory": ("dpo", "preference", {"batch_size": 6, "precompute_ref_log_probs": False}),
    "reward model": ("reward-model", "preference", {"batch_size": 6, "dtype": "bfloat16"}),
    "with imitation": ("reward-model", "preference", {"batch_size": 6, "lm_coef": 0.5, "micro_batch_tokens": 100}),
    "reward model of steps": ("process-reward-model", "steps", {"batch_size": 6, "supervision": "process"}),
    "rlhf": ("rlhf", "preference", {"objective": "clip-and-penalty", "num_minibatches": 2}),
    "rlhf, shared critic": ("rlhf", "preference", {"critic": "shared", "critic_warmup": 1, "num_generations": 2}),
    "rlhf by vpg": ("rlhf", "preference", {"step": "vpg", "num_iterations": 2}),
    "grpo": ("grpo", "preference", {"num_generations": 2, "beta": 0.1}),
}


@pytest.fixture
def make_sharded(model_folder):
    """Return a function that builds the learner of one process of a run in several shards."""

    def make(case, group, *, shards=4, **more):
        name, task, values = SHARDED[case]
        sampled = {"prompts_per_batch": 6, "max_completion_length": 8} if name in ("rlhf", "grpo") else {}
        common = {"model": model_folder, "learning_rate": 1e-3, "train_examples": 24, "held_out": 4}
        entry = catalog.find(name)
        config = entry.config_class(**common | sampled | values | more)
        with within(group):
            own = Settings(name, task, seeds=(3,), budget=24, shards=shards)
            return factory.assemble(entry, own, config, device="cpu").learner

    return make


def iterated(learner, count=2):
    reports = [clone(learner.iterate()) for _ in range(count)]
    return digest(learner.state_dict()), reports


@pytest.mark.parametrize("case", SHARDED)
def test_the_number_of_processes_changes_no_bit_of_what_is_learned(make_sharded, case):
    alone, reports = iterated(make_sharded(case, Alone()))
    members = ranks(3)
    learners = [make_sharded(case, member) for member in members]
    for found, others in team(3, lambda rank: iterated(learners[rank.rank]), members):
        assert found == alone
        assert digest({"metrics": others}) == digest({"metrics": reports})


@pytest.mark.parametrize("case", [case for case in SHARDED if "rlhf" not in case and case != "grpo"])
def test_shards_have_loss_and_gradient_of_the_whole_batch(make_sharded, case):
    whole, parts = (make_sharded(case, Alone(), shards=count).iterate() for count in (1, 4))
    assert whole.keys() == parts.keys()
    for name in [name for name in whole if name.startswith("losses/")]:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("case", ["sft", "dpo", "rlhf"])
def test_a_run_continues_exactly_on_another_number_of_processes(make_sharded, case):
    members = ranks(2)
    learners = [make_sharded(case, member) for member in members]
    team(2, lambda rank: iterated(learners[rank.rank], 1), members)
    resumed = make_sharded(case, Alone())
    resumed.load_state_dict(clone(learners[0].state_dict()))
    assert iterated(resumed, 1)[0] == iterated(make_sharded(case, Alone()), 2)[0]


@pytest.mark.parametrize(
    ("case", "values", "message"),
    [
        ("rlhf", {"step": "trpo", "objective": "clip"}, "step=trpo does not support shards"),
        ("rlhf", {"engine": "http://127.0.0.1:1"}, "the engine http://127.0.0.1:1 samples all prompts in one batch"),
        ("grpo", {"prompts_per_batch": 3}, "prompts_per_batch is 3, less than the 4 shards"),
        ("sft", {"batch_size": 3}, "batch_size is 3, less than the 4 shards"),
    ],
)
def test_options_without_support_for_shards_raise_errors(make_sharded, case, values, message):
    with pytest.raises(ValueError, match=message):
        make_sharded(case, Alone(), **values)


def test_algorithms_without_shards_say_it(tmp_path):
    entry = catalog.find("iterative-grpo")
    own = Settings("iterative-grpo", "preference", budget=24, shards=2)
    with pytest.raises(ValueError, match="iterative-grpo does not support shards: leave out --shards 2"):
        factory.assemble(entry, own, entry.config_class(ref_reset_interval=1), device="cpu")
