import json

import numpy as np
import pytest
import torch

import operant
from operant.language import ledger as ledgers
from operant.language.critic import Critic
from operant.language.engines.native import NativeEngine
from operant.language.examples import Prompt
from operant.language.grpo import GRPO, PRESETS, GRPOConfig
from operant.language.ledger import take_ledger
from operant.language.rewards import combine
from operant.language.rlhf import RLHF, RLHFConfig
from operant.runtime.ledger import ledgers_of, read_ledger

PROMPTS = [Prompt([1, *ids], {"prompt": str(ids)}) for ids in ([3], [4, 5], [6, 3, 4], [7], [5, 5], [6, 7])]


def varied(completion_ids, **_):
    return [sum((i + 1) * (token == 5) - 0.3 * (token == 6) for i, token in enumerate(ids)) for ids in completion_ids]


@pytest.fixture
def make_learner(make_model, characters):
    def make(reward=varied, **values):
        values = {
            "learning_rate": 0.05,
            "prompts_per_batch": 4,
            "num_generations": 4,
            "micro_batch_tokens": 40,
        } | values
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = make_model(vocab_size=8)
        model.tokenizer = characters
        config, engine = GRPOConfig(**values), NativeEngine(model)
        return GRPO(config, model, engine, PROMPTS, combine([reward]), max_tokens=6, seed=0, budget=100)

    return make


def total(found, column):
    return float(found.columns[column].astype(np.float64).sum()) + found.rest[column]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_columns_sum_to_the_logged_loss(make_learner, preset):
    sizes = {"num_minibatches": 2, "num_generations": 4, "num_iterations": 2, "ref_reset_interval": 0}
    learner = make_learner(**PRESETS[preset] | sizes)
    for _ in range(2):
        metrics = learner.iterate()
        found = take_ledger(learner, consumed=learner.consumed, seed=0)
        assert total(found, "policy") == pytest.approx(float(metrics["losses/policy"]), abs=1e-6)
        assert found.columns["clipped"].mean() == pytest.approx(float(metrics["clip_ratio/region_mean"]), abs=1e-6)
        assert found.columns["entropy"].mean() == pytest.approx(float(metrics["entropy"]), rel=1e-5)
        assert found.loss["losses/policy"] == pytest.approx(float(metrics["losses/policy"]), abs=1e-6)
        assert ("reference" in found.columns) is ("losses/kl" in metrics) is ("kl" in found.columns)
        if "losses/kl" in metrics:
            assert total(found, "reference") == pytest.approx(float(metrics["losses/kl"]), abs=1e-6)
            assert found.columns["kl"].mean() == pytest.approx(float(metrics["kl"]), abs=1e-6)
    assert found.columns["clipped"].any() or preset not in {"dapo", "prorl"}


def test_a_row_holds_what_its_term_is_made_of(make_learner):
    learner = make_learner(num_iterations=2, beta=0.1, loss_aggregation="sequence_mean")
    learner.iterate()
    found = take_ledger(learner, consumed=4, seed=3)
    c = found.columns
    assert found.steps == 2
    advantage, ratio = c["advantage"], c["ratio"]
    surrogate = np.minimum(ratio * advantage, ratio.clip(0.8, 1.2) * advantage)
    np.testing.assert_allclose(c["policy"], -c["weight"] * c["importance"] * surrogate / 2, atol=1e-7)
    np.testing.assert_allclose(c["reference"], 0.1 * c["weight"] * c["kl"] / 2, atol=1e-8)
    first = [slice(v.start, v.start + v.length) for v in found.visits if v.step == 0]
    assert all((ratio[part] == 1).all() for part in first)
    assert not (ratio == 1).all()


def test_tokens_belong_to_their_answers(make_learner):
    learner = make_learner(num_minibatches=2)
    learner.iterate()
    batch = learner.take_learned().batch
    learner.iterate()
    found = take_ledger(learner, consumed=8, seed=0)
    assert len(found.answers) == 16
    assert [answer["prompt"] for answer in found.answers] == [i // 4 for i in range(16)]
    for visit in found.visits:
        pieces = found.columns["piece"][visit.start : visit.start + visit.length]
        assert "".join(found.pieces[piece] for piece in pieces) == found.answers[visit.answer]["text"]
        (advantage,) = set(found.columns["advantage"][visit.start : visit.start + visit.length].tolist())
        group = [a["reward"] for a in found.answers if a["prompt"] == found.answers[visit.answer]["prompt"]]
        centered = found.answers[visit.answer]["reward"] - sum(group) / 4
        assert advantage * centered > 0 or advantage == pytest.approx(centered, abs=1e-6)
    assert len(batch.samples) == 16


def test_a_batch_is_taken_once_and_one_of_nothing_is_none(make_learner):
    learner = make_learner()
    assert take_ledger(learner, consumed=0, seed=0) is None
    learner.iterate()
    assert take_ledger(learner, consumed=4, seed=0) is not None
    assert take_ledger(learner, consumed=4, seed=0) is None
    alike = make_learner(lambda completions, **_: [1.0] * len(completions), filter="drop")
    alike.iterate()
    assert take_ledger(alike, consumed=4, seed=0) is None
    assert take_ledger(object(), consumed=4, seed=0) is None


def test_tokens_beyond_the_limit_are_summed(make_learner, monkeypatch):
    monkeypatch.setattr(ledgers, "MOST_TOKENS", 50)
    learner = make_learner(beta=0.1)
    metrics = learner.iterate()
    found = take_ledger(learner, consumed=4, seed=0)
    assert len(found.answers) in {4, 8, 12}
    assert len(found.columns["policy"]) <= 50
    assert found.rest["tokens"] + len(found.columns["policy"]) == metrics["num_tokens"]
    assert total(found, "policy") == pytest.approx(float(metrics["losses/policy"]), abs=1e-6)


@pytest.mark.filterwarnings("ignore:no reward function applies")
def test_answers_without_a_reward_and_those_cut_off_say_so(make_learner):
    learner = make_learner(
        lambda completion_ids, **_: [float(ids[0]) if ids[0] % 2 else None for ids in completion_ids],
        mask_truncated_completions=True,
    )
    learner.iterate()
    found = take_ledger(learner, consumed=4, seed=0)
    assert any(answer["reward"] is None for answer in found.answers)
    assert not any(answer["counts"] for answer in found.answers if answer["reward"] is None)
    seen = {visit.answer for visit in found.visits}
    assert seen == {i for i, answer in enumerate(found.answers) if answer["counts"]}
    assert len(seen) < 16
    json.dumps(found.answers, allow_nan=False)


SMALL = {"train_examples": 24, "held_out": 4, "prompts_per_batch": 4, "num_generations": 4, "evaluate_every": 8}


def test_a_run_keeps_the_batch_before_each_evaluation(tmp_path):
    run = operant.train(
        "grpo", "arithmetic", seeds=(3, 4), budget=24, run=tmp_path / "run", progress="silent", **SMALL
    ).run
    assert ledgers_of(run.path) == [(at, seed) for at in (8, 16, 24) for seed in (3, 4)]
    found = read_ledger(run.path, 16, 4)
    assert (found.consumed, found.seed, len(found.prompts), len(found.answers)) == (16, 4, 4, 16)
    assert {answer["version"] for answer in found.answers} == {3}, "the fourth batch"
    samples = [json.loads(line) for line in run.samples_path.read_text().splitlines()]
    assert {(one["consumed"], one["version"]) for one in samples} == {(at, at // 4) for at in (0, 8, 16, 24)}
    assert total(found, "policy") == pytest.approx(found.loss["losses/policy"], abs=1e-6)


def by_step(found, column):
    """Return the mean over optimizer steps of the mean of a column over their tokens."""
    rows = [found.columns[column][visit.start : visit.start + visit.length] for visit in found.visits]
    steps = [
        [row for row, visit in zip(rows, found.visits, strict=True) if visit.step == k] for k in range(found.steps)
    ]
    return float(np.mean([np.concatenate(step).mean() for step in steps]))


@pytest.fixture
def make_rlhf(make_model, characters):
    def make(reward=varied, **values):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = make_model(vocab_size=8)
        model.tokenizer = characters
        values = {"learning_rate": 0.05, "prompts_per_batch": 4, "num_generations": 2, "beta": 0.1} | values
        config = RLHFConfig(**values)
        critic = Critic.sharing(model) if config.critic == "shared" else Critic.copy_of(model)
        limits = {"max_tokens": 6, "seed": 0, "budget": 100}
        return RLHF(config, model, NativeEngine(model), PROMPTS, combine([reward]), critic=critic, **limits)

    return make


@pytest.mark.parametrize(
    "values",
    [
        {"num_minibatches": 2, "num_iterations": 3},
        {"loss_aggregation": "sequence_mean", "micro_batch_tokens": 10},
        {"loss_aggregation": "constant", "objective": "penalty", "critic": "shared"},
        {"step": "vpg", "num_minibatches": 2},
        {
            "importance_sampling_correction": "mask",
            "importance_sampling_cap": 1.0001,
            "temperature": 0.7,
            "ent_coef": 0.1,
        },
    ],
)
def test_the_column_of_rlhf_sums_to_the_logged_loss(make_rlhf, values):
    learner = make_rlhf(**values)
    count = 1 if "step" in values else learner.config.num_iterations * learner.config.num_minibatches
    for version in range(2):
        metrics = learner.iterate()
        found = take_ledger(learner, consumed=learner.consumed, seed=0)
        assert {answer["version"] for answer in found.answers} == {version}
        assert found.steps == count
        assert total(found, "policy") == pytest.approx(float(metrics["losses/policy"]), abs=1e-6)
        assert found.loss["losses/policy"] == pytest.approx(float(metrics["losses/policy"]), abs=1e-6)
        for column, metric in (("entropy", "policy/entropy_avg"), ("ratio", "val/ratio")):
            assert by_step(found, column) == pytest.approx(float(metrics[metric]), rel=1e-4)
        assert "reference" not in found.columns
        assert (len(found.prompts), len(found.answers)) == (4, 8)


def test_a_row_of_rlhf_goes_from_the_reward_to_the_term(make_rlhf):
    learner = make_rlhf(num_iterations=2, normalize_advantage="none", gae_lambda=1.0)
    learner.iterate()
    learner.take_learned()
    learner.iterate()
    found = take_ledger(learner, consumed=8, seed=3)
    c = found.columns
    surrogate = np.minimum(c["ratio"] * c["advantage"], c["ratio"].clip(0.8, 1.2) * c["advantage"])
    np.testing.assert_allclose(c["policy"], -c["weight"] * c["importance"] * surrogate / 2, atol=1e-7)
    clipped = ((c["ratio"] < 0.8) & (c["advantage"] < 0)) | ((c["ratio"] > 1.2) & (c["advantage"] > 0))
    assert (c["clipped"] == clipped).all()
    assert clipped.any()
    assert np.abs(c["kl"]).max() > 1e-3
    for visit in found.visits:
        rows = slice(visit.start, visit.start + visit.length)
        reward, value, score = c["reward"][rows], c["value"][rows], found.answers[visit.answer]["reward"]
        price = -0.1 * c["kl"][rows]
        np.testing.assert_allclose(reward, price + score * (np.arange(visit.length) == visit.length - 1), atol=1e-6)
        np.testing.assert_allclose(c["advantage"][rows], reward[::-1].cumsum()[::-1] - value, atol=1e-5)
        assert "".join(found.pieces[i] for i in c["piece"][rows]) == found.answers[visit.answer]["text"]


@pytest.mark.filterwarnings("ignore:no reward function applies")
def test_answers_that_rlhf_drops_are_in_no_ledger(make_rlhf):
    learner = make_rlhf(lambda completion_ids, **_: [None if ids[0] % 2 else float(len(ids)) for ids in completion_ids])
    learner.iterate()
    found = take_ledger(learner, consumed=4, seed=0)
    assert 0 < len(found.answers) < 8
    assert {answer["prompt"] for answer in found.answers} == set(range(len(found.prompts)))
    assert all(answer["counts"] and answer["reward"] is not None for answer in found.answers)


def test_tokens_of_rlhf_beyond_the_limit_are_summed(make_rlhf, monkeypatch):
    monkeypatch.setattr(ledgers, "MOST_TOKENS", 50)
    learner = make_rlhf(num_iterations=3)
    metrics = learner.iterate()
    found = take_ledger(learner, consumed=4, seed=0)
    assert len(found.columns["policy"]) <= 50
    assert found.rest["tokens"] > 0
    assert total(found, "policy") == pytest.approx(float(metrics["losses/policy"]), abs=1e-6)


def test_there_is_no_ledger_without_a_step_on_tokens(make_rlhf):
    warming, natural = make_rlhf(critic_warmup=1), make_rlhf(step="trpo")
    warming.iterate()
    natural.iterate()
    assert take_ledger(warming, consumed=4, seed=0) is None
    assert take_ledger(natural, consumed=4, seed=0) is None
    warming.iterate()
    assert take_ledger(warming, consumed=8, seed=0) is not None


def test_a_run_of_rlhf_keeps_its_batches(tmp_path):
    sizes = SMALL | {"num_generations": 1, "critic_warmup": 0}
    run = operant.train("rlhf", "arithmetic", seeds=1, budget=16, run=tmp_path / "run", progress="silent", **sizes).run
    assert ledgers_of(run.path) == [(8, 0), (16, 0)]
    found = read_ledger(run.path, 16, 0)
    assert total(found, "policy") == pytest.approx(found.loss["losses/policy"], abs=1e-6)
