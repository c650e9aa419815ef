"""Learners of one seed and the rewards of their evaluation; tests/language/test_factory.py trains them."""

import json

import pytest

from operant import api, catalog
from operant.language import members
from operant.language.configs import ModelOptions
from operant.language.dpo import DPO, DPOConfig
from operant.language.engines import NativeEngine
from operant.language.grpo import GRPO, GRPOConfig
from operant.language.iterative import IterativeGRPO, IterativeGRPOConfig
from operant.language.members import BUILDERS, Builder, engine_for
from operant.language.models import ScalarHead, load
from operant.language.rlhf import RLHF, RLHFConfig
from operant.language.scoring import RewardModelFunction, Scorer
from operant.language.sft import SFT, SFTConfig
from operant.runtime.settings import Settings
from operant.runtime.shards import Shards
from operant.state import clone


def test_the_engine_that_is_asked_for(make_model):
    model = make_model()
    engine = engine_for(GRPOConfig(engine_batch_size=17), model)
    assert isinstance(engine, NativeEngine)
    assert engine.rows == 17
    assert engine.model is model


def test_every_learner_of_the_catalog_has_a_builder():
    learners = {algorithm.learner for algorithm in catalog.ALGORITHMS if algorithm.package == "language"}
    assert learners == set(BUILDERS)


def built(learner, kind, config, task="reverse", shards=None):
    settings = Settings(algorithm="sft", task=task, seeds=(0,), budget=8)
    return BUILDERS[learner](Builder(kind, settings, config, 0, "cpu", shards))


def test_answers_with_a_reward_are_sampled_and_others_are_scored_by_their_log_probabilities(model_folder, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{i}=", "completion": str(i)}) for i in range(6)))
    config = SFTConfig(model=str(model_folder), train_examples=4, held_out=2)
    assert built("SFT", SFT, config).sample is not None
    member = built("SFT", SFT, config, task=str(path))
    assert member.sample is None
    means = [float(row.mean()) for row in member.learner.model.completion_log_probs(member.learner.held_out, tokens=99)]
    assert member.score(9, lambda: False).scores == pytest.approx(means)


def test_preferences_without_a_reward_are_scored_by_their_order(model_folder, tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = ({"prompt": f"{i}=", "chosen": str(i), "rejected": f"{i + 1}"} for i in range(8))
    path.write_text("\n".join(map(json.dumps, rows)))
    member = built("DPO", DPO, DPOConfig(model=str(model_folder), held_out=2), task=str(path))
    assert member.sample is None
    assert len(member.score(1, lambda: False).scores) == 1


@pytest.mark.parametrize("learner", [GRPO, RLHF])
def test_a_reward_model_without_a_chat_template_takes_no_conversations(
    learner, model_folder, tmp_path, monkeypatch, words
):
    scorer = Scorer(load(ModelOptions(), seed=0), ScalarHead(128))
    scorer.model.tokenizer.chat_template = None
    function = RewardModelFunction(scorer, process=False, separator="\n", tokenizer=words)
    monkeypatch.setattr(members, "load_scorer", lambda *_, **__: function)
    path, kind = tmp_path / "rows.jsonl", {GRPO: GRPOConfig, RLHF: RLHFConfig}[learner]
    path.write_text("\n".join(json.dumps({"prompt": [{"role": "user", "content": f"{i}="}]}) for i in range(6)))
    config = kind(model=str(model_folder), held_out=2, reward_model="runs/rm", prompts_per_batch=2)
    with pytest.raises(
        ValueError, match=r"--reward-model runs/rm has no chat template, but the prompts .*are messages"
    ):
        built(learner.__name__, learner, config, task=str(path))
    path.write_text("\n".join(json.dumps({"prompt": f"{i}="}) for i in range(6)))
    assert built(learner.__name__, learner, config, task=str(path)).engine is not None


STATES = []


def noting(completions, trainer_state, **_):
    """Note the trainer state, whose share of the steps is the reward of every answer."""
    STATES.append((trainer_state.global_step, trainer_state.max_steps, trainer_state.epoch))
    return [trainer_state.global_step / trainer_state.max_steps] * len(completions)


NOTING = {"held_out": 2, "prompts_per_batch": 2, "num_generations": 2, "max_completion_length": 2}


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{i}="}) for i in range(10)))
    return str(path)


@pytest.mark.parametrize(("learner", "config"), [(GRPO, GRPOConfig), (RLHF, RLHFConfig)])
def test_evaluations_know_how_far_training_is(learner, config, model_folder, prompts):
    own = config(model=str(model_folder), rewards=(f"{__name__}:noting",), **NOTING)
    members = [built(learner.__name__, learner, own, task=prompts) for _ in range(2)]
    STATES.clear()
    assert members[0].score(2, lambda: False).scores == [0.0, 0.0]
    members[0].learner.iterate()
    assert members[0].score(2, lambda: False).scores == [0.25, 0.25]
    members[1].learner.load_state_dict(clone(members[0].learner.state_dict()))
    assert members[1].score(2, lambda: False).scores == [0.25, 0.25]
    assert members[1].sample(1, 2).average == 0.25
    # Evaluations ask for the greedy answers and then for others.
    assert STATES == [(0, 4, 0.0)] * 3 + [(1, 4, 0.25)] * 5


def test_the_annotator_and_evaluations_of_iterative_grpo_know_how_far_training_is(model_folder, prompts, tmp_path):
    common = {"train_examples": 8, "held_out": 2, "progress": "silent", "max_completion_length": 8}
    path = tmp_path / "rm"
    api.train("reward-model", "preference", budget=8, run=path, batch_size=8, model=model_folder, **common)
    own = IterativeGRPOConfig(
        model=str(model_folder), rewards=(f"{__name__}:noting",), reward_model=str(path), **NOTING
    )
    member = built("IterativeGRPO", IterativeGRPO, own, task=prompts)
    STATES.clear()
    member.learner.iterate()
    assert set(STATES) == {(0, 4, 0.0)}
    assert member.score(2, lambda: False).scores == [0.25, 0.25]


def right(completions, answer, **_):
    ANSWERS.extend(answer)
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


ANSWERS = []


def test_a_column_that_some_rows_lack_is_none_in_every_batch(model_folder, tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{i}="} | ({} if i % 2 else {"answer": str(i)}) for i in range(10)]
    path.write_text("\n".join(map(json.dumps, rows)))
    values = NOTING | {"prompts_per_batch": 1, "num_generations": 3}
    own = GRPOConfig(model=str(model_folder), rewards=("numeric", f"{__name__}:right"), **values)
    learner = built("GRPO", GRPO, own, task=str(path)).learner
    ANSWERS.clear()
    for _ in range(8):
        learner.iterate()
    assert len(ANSWERS) == 24
    assert {tuple(ANSWERS[i : i + 3]) for i in range(0, 24, 3)} > {(None,) * 3}


def test_the_engine_of_training_is_that_of_the_member(model_folder):
    config = GRPOConfig(model=str(model_folder), train_examples=4, held_out=2)
    member = built("GRPO", GRPO, config)
    assert member.engine is member.learner.sampler.engine


def test_a_function_with_the_parameters_of_the_learner_passes_shards(model_folder):
    shards = Shards(2)

    def kind(*arguments, **options):
        return SFT(*arguments, **options, shards=shards)

    config = SFTConfig(model=str(model_folder), train_examples=4, held_out=2)
    assert built("SFT", kind, config, shards=shards).learner.shards is shards
