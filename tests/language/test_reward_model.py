"""Reward models: losses by hand, invariances, recovered rewards, resume, and learning."""

import math

import numpy as np
import pytest
import torch

from operant import api, ops
from operant.language import tasks
from operant.language.configs import ModelOptions
from operant.language.examples import Pair, Ranking, Stepwise, stepwise
from operant.language.models import ScalarHead, load
from operant.language.packing import Sample
from operant.language.reward_model import Example, RewardModel, RewardModelConfig, example, load_scorer, pairs_of
from operant.language.rewards import name_of
from operant.state import clone

EOS = 2
PAIRS = [
    Pair([1, 10, 11], [20, 21, EOS], [30, EOS]),
    Pair([1, 10, 11], [40, EOS], [20, 21, EOS], 0.5),
    Pair([1, 12], [22, 23, 24, 25, EOS], [31, 32, EOS]),
    Pair([1, 13, 14, 15], [50, EOS], [51, 52, 53, 54, EOS]),
]
RANKINGS = [
    Ranking([1, 10], [[20, EOS], [21, EOS], [22, 23, EOS]], [1.0, 2.0, 3.0]),
    Ranking([1, 11], [[30, EOS], [31, EOS], [32, EOS], [33, EOS]], [1.0, 2.0, 2.0, 4.0]),
    Ranking([1, 12], [[40, EOS], [41, EOS]], [1.0, 2.0]),
]
STEPS = [
    Stepwise([1, 10], [[20, 21, 5], [22, 5], [23, EOS]], [1.0, 1.0, 0.0]),
    Stepwise([1, 11, 12], [[30, EOS]], [1.0]),
    Stepwise([1, 13], [[40, 5], [41, 42, EOS]], [0.0, 0.0]),
]


def learner(rows=PAIRS, *, budget=100, model=None, head=None, **values):
    config = RewardModelConfig(**({"learning_rate": 1e-3, "batch_size": len(rows)} | values))
    model = load(ModelOptions(), seed=0) if model is None else model
    return RewardModel(config, model, rows, seed=0, budget=budget, head=head)


def opinionated(seed=1):
    """Return a head with random weights."""
    head = ScalarHead(128)
    head.weight.data.normal_(std=0.1, generator=torch.Generator().manual_seed(seed))
    return head


def recorded(own, rows):
    """Return the metrics of an update, and the gradient that its optimizer step would use, before it is clipped."""
    found = {}

    def step(progress):
        found.update({n: p.grad.clone() for n, p in own.stepper.parameters.items() if p.grad is not None})
        for p in own.stepper.parameters.values():
            p.grad = None
        return torch.zeros(()), 0.0

    own.stepper.step = step
    return own.update([example(row) for row in rows]), found


def score(own, prompt, completion):
    """Compute the score by the plain forward pass of transformers, at the last token: the dense twin."""
    ids = torch.tensor([[*prompt, *completion]])
    hidden = own.model.network.base_model(input_ids=ids).last_hidden_state[0, -1]
    return hidden @ own.scorer.head.weight + own.scorer.head.bias


# --- scores and losses


def test_a_score_is_read_at_the_last_token():
    own = learner(head=opinionated())
    samples = [Sample(p.prompt, c) for p in PAIRS for c in (p.chosen, p.rejected)]
    with torch.no_grad():
        expected = torch.stack([score(own, s.prompt, s.completion) for s in samples])
    torch.testing.assert_close(own.scorer.scores(samples), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(own.scorer.scores(samples, tokens=1), expected, atol=1e-4, rtol=1e-4)


def test_a_new_head_loses_log_2():
    own = learner(PAIRS[:1])
    metrics = own.iterate()
    assert float(metrics["losses/reward"]) == pytest.approx(math.log(2), abs=1e-6)
    assert (metrics["accuracy"], metrics["mean_reward"], own.consumed) == (0.5, 0.0, 1)


def test_the_loss_of_pairs_by_hand():
    """Scores 2 and 1, and 0 and 1 with a margin of 0.5: mean of log(1 + e^-1) and log(1 + e^1.5) is 1.007338."""
    own, batch = learner(), [example(PAIRS[0]), example(PAIRS[1])]
    scores = torch.tensor([2.0, 1.0, 0.0, 1.0])
    pairs = pairs_of(batch, scores.device)
    assert pairs.better.tolist() == [0, 2]
    assert pairs.margins.tolist() == [0, 0.5]
    own.scorer.read = lambda *_: scores
    judged = own.score(batch)[1]
    assert judged.losses.tolist() == pytest.approx([0.313262, 1.701413], abs=1e-5)
    assert judged.right.tolist() == [1, 0]
    assert judged.margins.tolist() == [1, -1]


def test_a_ranking_is_all_its_pairs_and_each_weighs_the_same():
    ranking = example(RANKINGS[0])
    pairs = pairs_of([ranking], torch.device("cpu"))
    assert sorted(zip(pairs.better.tolist(), pairs.worse.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 2)]
    assert pairs.weights.tolist() == pytest.approx([1 / 3] * 3)
    tied = pairs_of([example(RANKINGS[1])], torch.device("cpu"))
    assert len(tied.better) == 5  # of six pairs, those of equal rank are left out
    own, scores = learner(), torch.tensor([1.0, 0.5, -0.2])
    own.scorer.read = lambda *_: scores
    expected = sum(math.log1p(math.exp(-d)) for d in (0.5, 1.2, 0.7)) / 3
    assert float(own.score([ranking])[1].losses) == pytest.approx(expected, abs=1e-6)


def test_a_ranking_of_two_is_a_pair():
    results = []
    for rows, how in (
        ([PAIRS[0]], "pairs"),
        ([Ranking(PAIRS[0].prompt, [PAIRS[0].chosen, PAIRS[0].rejected], [1.0, 2.0])], "pairs"),
        ([Ranking(PAIRS[0].prompt, [PAIRS[0].chosen, PAIRS[0].rejected], [1.0, 2.0])], "plackett-luce"),
        ([Ranking(PAIRS[0].prompt, [PAIRS[0].rejected, PAIRS[0].chosen], [2.0, 1.0])], "plackett-luce"),
    ):
        results.append(recorded(learner(rows, head=opinionated(), ranking_loss=how), rows))
    (first, gradient), *others = results
    for metrics, other in others:
        assert float(metrics["losses/reward"]) == pytest.approx(float(first["losses/reward"]), rel=1e-5)
        for name in gradient:
            torch.testing.assert_close(other[name], gradient[name], atol=1e-6, rtol=1e-3)


def test_plackett_luce_of_three_by_hand():
    own, scores = learner([RANKINGS[0]], ranking_loss="plackett-luce"), torch.tensor([0.3, 1.0, -0.5])
    own.scorer.read = lambda *_: scores
    first = -0.3 + math.log(math.exp(0.3) + math.exp(1.0) + math.exp(-0.5))
    second = -1.0 + math.log(math.exp(1.0) + math.exp(-0.5))
    assert float(own.score(own.examples)[1].losses) == pytest.approx(first + second, abs=1e-6)


def test_the_loss_of_steps_is_a_cross_entropy_at_their_last_tokens():
    own = learner(STEPS, head=opinionated(), supervision="process")
    logits, labels = [], []
    with torch.no_grad():
        for row in STEPS:
            seen = []
            for step, label in zip(row.steps, row.labels, strict=True):
                seen += step
                logits.append(score(own, row.prompt, seen))
                labels.append(label)
    chances = torch.stack(logits).sigmoid()
    expected = [-math.log(p if label else 1 - p) for p, label in zip(chances.tolist(), labels, strict=True)]
    metrics, _ = recorded(own, STEPS)
    assert float(metrics["losses/reward"]) == pytest.approx(sum(expected) / 6, rel=1e-3)
    right = [(p > 0.5) == bool(label) for p, label in zip(chances.tolist(), labels, strict=True)]
    assert float(metrics["accuracy"]) == pytest.approx(sum(right) / 6)
    assert own.accuracies(STEPS) == pytest.approx([sum(right[:3]) / 3, float(right[3]), sum(right[4:]) / 2])


# --- invariances of comparisons


@pytest.mark.parametrize(("rows", "how"), [(PAIRS, "pairs"), (RANKINGS, "pairs"), (RANKINGS[::2], "plackett-luce")])
def test_a_constant_of_the_prompt_changes_neither_loss_nor_gradient(rows, how):
    """Check r(x, y) + c(x), with another constant for each prompt."""
    own = learner(rows, head=opinionated(), ranking_loss=how)
    metrics, gradient = recorded(own, rows)
    read = own.scorer.read
    prompts = [row.prompt for row in rows for _ in (row.completions if isinstance(row, Ranking) else (0, 1))]
    constants = torch.tensor([2.0 * (prompt[1] - 8) for prompt in prompts])
    own.scorer.read = lambda *given: read(*given) + constants
    shifted, other = recorded(own, rows)
    assert float(shifted["mean_reward"]) > float(metrics["mean_reward"]) + 3
    assert float(shifted["losses/reward"]) == pytest.approx(float(metrics["losses/reward"]), rel=1e-4)
    for name in gradient:
        torch.testing.assert_close(other[name], gradient[name], atol=1e-5, rtol=1e-3)


def test_parameters_without_effect_on_comparisons_are_not_trained():
    own = learner()
    names = set(own.stepper.parameters)
    assert "head.weight" in names
    assert "head.bias" not in names
    assert not any("lm_head" in name for name in names)
    before = clone(own.model.state_dict())
    for _ in range(3):
        own.iterate()
    changed = {name for name, value in own.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "lm_head" not in name}
    assert "head.bias" in learner(STEPS, supervision="process").stepper.parameters


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (PAIRS, {}),
        (RANKINGS, {}),
        (RANKINGS[::2], {"ranking_loss": "plackett-luce"}),
        (STEPS, {"supervision": "process"}),
    ],
)
def test_micro_batches_and_order_change_nothing(rows, values):
    results = []
    for tokens, order in ((16_384, rows), (1, rows), (14, rows[::-1])):
        results.append(recorded(learner(rows, head=opinionated(), micro_batch_tokens=tokens, **values), order))
    (first, gradient), *others = results
    for metrics, other in others:
        for name in ("losses/reward", "accuracy", "mean_reward", "min_reward", "num_tokens"):
            assert float(metrics[name]) == pytest.approx(float(first[name]), rel=1e-4, abs=1e-6)
        for name in gradient:
            torch.testing.assert_close(other[name], gradient[name], atol=2e-5, rtol=1e-3)


# --- recovered rewards


def test_it_recovers_known_differences_of_reward():
    """On pairs in the proportions of Bradley and Terry the likeliest scores are the rewards, up to a constant."""
    reward, copies = torch.tensor([1.0, 0.0, -0.7, 0.4]), 50
    answers, rows = [[40, EOS], [41, EOS], [42, EOS], [43, EOS]], []
    for i in range(4):
        for j in range(i):
            wins = round(copies * float(torch.sigmoid(reward[i] - reward[j])))
            rows += [Pair([1, 7], answers[i], answers[j])] * wins + [Pair([1, 7], answers[j], answers[i])] * (
                copies - wins
            )
    own = learner(rows, budget=50 * len(rows), lr_schedule="cosine")
    while own.consumed < own.budget:
        own.iterate()
    found = own.scorer.scores([Sample([1, 7], answer) for answer in answers])
    torch.testing.assert_close(found - found.mean(), reward - reward.mean(), atol=0.06, rtol=0)


def test_scores_are_centered_at_the_end():
    own = learner(budget=3 * len(PAIRS), centering_examples=6)
    for _ in range(2):
        own.iterate()
    assert own.scorer.head.bias.item() == 0
    before = own.accuracies(PAIRS)
    own.iterate()
    samples = [Sample(p.prompt, c) for p in PAIRS for c in (p.chosen, p.rejected)][:6]
    assert float(own.scorer.scores(samples).mean()) == pytest.approx(0, abs=1e-5)
    assert own.scorer.head.bias.item() != 0
    assert len(before) == len(PAIRS)


# --- resume


@pytest.mark.parametrize(
    ("rows", "how", "more"),
    [
        (PAIRS, "outcome", {}),
        (STEPS, "process", {}),
        (STEPS, "process", {"lm_coef": 1.0, "step_log_probs": True}),
    ],
)
def test_resume_is_exact(rows, how, more):
    values = {"batch_size": 2, "supervision": how, "lr_schedule": "linear", "budget": 12, **more}
    whole = learner(rows, **values)
    for _ in range(3):
        whole.iterate()
    half = clone(whole.state_dict())
    for _ in range(3):
        whole.iterate()
    resumed = learner(rows, **values)
    resumed.load_state_dict(half)
    for _ in range(3):
        resumed.iterate()
    for part in ("model", "head"):
        for name, value in whole.state_dict()[part].items():
            assert torch.equal(value, resumed.state_dict()[part][name]), name
    assert whole.consumed == resumed.consumed == 12


# --- bad input


@pytest.mark.parametrize(
    ("rows", "values", "message"),
    [
        (STEPS, {}, r"row 1 is a Stepwise, but supervision=outcome needs pairs.*supervision=process"),
        (PAIRS, {"supervision": "process"}, r"row 1 is a Pair, but supervision=process.*supervision=outcome"),
        (RANKINGS, {"ranking_loss": "plackett-luce"}, r"row 2 has ties .*ranking_loss=pairs"),
        (PAIRS, {"ranking_loss": "plackett-luce"}, r"row 2 has a margin.*ranking_loss=pairs"),
    ],
)
def test_rows_that_do_not_fit_are_rejected(rows, values, message):
    with pytest.raises(ValueError, match=message):
        learner(rows, **values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "batch_size must be in"),
        ({"supervision": "both"}, "supervision must be outcome or process"),
        ({"ranking_loss": "mean"}, "ranking_loss must be pairs or plackett-luce"),
        ({"centering_examples": -1}, "centering_examples must be in"),
        ({"step_separator": ""}, "step_separator must not be empty"),
        ({"step_log_probs": True, "lm_coef": 1.0}, "step_log_probs needs supervision=process and an lm_coef above 0"),
        ({"step_log_probs": True, "supervision": "process"}, "got supervision=process and lm_coef=0: set lm_coef=1"),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        RewardModelConfig(**values)


def test_a_task_without_preferences_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"arithmetic.* has no preference examples"):
        api.train("reward-model", "arithmetic", budget=1, run=tmp_path / "run", progress="silent")


def test_an_example_has_the_content_of_its_row():
    assert example(PAIRS[1]) == Example(
        samples=[Sample([1, 10, 11], [40, EOS]), Sample([1, 10, 11], [20, 21, EOS])],
        ends=[[1], [2]],
        labels=[1.0, 2.0],
        margin=0.5,
        imitated=[[True] * 2, [False] * 3],
    )
    assert example(STEPS[0]).ends == [[2, 4, 6]]
    assert example(STEPS[0]).imitated == [[True] * 5 + [False] * 2]
    assert ops.bradley_terry(torch.zeros(1), torch.zeros(1)).item() == pytest.approx(math.log(2))


# --- imitation as a second loss


@pytest.mark.parametrize(("rows", "supervision"), [(PAIRS, "outcome"), (STEPS, "process")])
def test_imitation_is_of_right_steps_and_of_the_better_answer(rows, supervision):
    """The second loss is the mean negative log-likelihood of the tokens of right steps, or of chosen answers."""
    values = {"supervision": supervision, "batch_size": len(rows)}
    own = learner(rows, lm_coef=2.0, head=opinionated(), **values)
    batch = [example(row) for row in rows]
    samples = [sample for e in batch for sample in e.samples]
    marks = [mark for e in batch for mark in e.imitated]
    with torch.no_grad():
        nats = [-row for row in own.model.completion_log_probs(samples, tokens=1000)]
    chosen = torch.cat([row[torch.tensor(mark)] for row, mark in zip(nats, marks, strict=True)])
    metrics, gradient = recorded(own, rows)
    assert float(metrics["losses/lm"]) == pytest.approx(float(chosen.mean()), rel=1e-5)
    alone, without = recorded(learner(rows, head=opinionated(), **values), rows)
    assert "losses/lm" not in alone
    assert float(alone["losses/reward"]) == pytest.approx(float(metrics["losses/reward"]), rel=1e-6)
    assert set(without) <= set(gradient)
    small, _ = recorded(learner(rows, lm_coef=2.0, head=opinionated(), micro_batch_tokens=1, **values), rows)
    assert float(small["losses/lm"]) == pytest.approx(float(metrics["losses/lm"]), rel=1e-5)


def test_the_gradient_of_imitation_is_that_of_its_loss_added():
    rows, values = STEPS, {"supervision": "process", "batch_size": len(STEPS)}
    (_, both), (_, double), (_, judged) = (
        recorded(learner(rows, lm_coef=coefficient, head=opinionated(), **values), rows)
        for coefficient in (1.0, 2.0, 1e-12)
    )
    for name in both:
        torch.testing.assert_close(double[name] - judged[name], 2 * (both[name] - judged[name]), atol=1e-5, rtol=1e-3)


# --- whole runs


def test_it_learns_what_is_preferred_and_rewards_with_it(tmp_path):
    """Use `preference` without noise: which of two texts has the higher hidden reward, on held-out prompts."""
    run = tmp_path / "run"
    values = {
        "budget": 640,
        "evaluate_every": 640,
        "train_examples": 640,
        "held_out": 200,
        "learning_rate": 1e-3,
        "batch_size": 16,
    }
    result = api.train("reward-model", "preference:noise=0", run=run, progress="silent", **values)
    assert result.outcome.evaluation.mean > 0.7  # random guessing gives 0.5, with a standard deviation of 0.035
    reward = load_scorer(str(run))
    assert name_of(reward) == "reward_model"
    rows = tasks.find("preference:noise=0").pairs("held-out", 50, seed=0)
    scores = [
        reward([r["prompt"] for r in rows], [r[side] for r in rows], [[]] * 50) for side in ("chosen", "rejected")
    ]
    right = sum(w > z for w, z in zip(*scores, strict=True)) / 50
    assert right > 0.6
    again = api.load(run).evaluate(200)
    assert again.mean == result.outcome.evaluation.mean


def planted(task, count, *, seed):
    """Return solutions to four prompts of a task, about half of which have a mistake."""
    generator = np.random.default_rng(seed)
    rows = task.rows("train", 4, seed=0)
    return [task.make_steps(generator, rows[i]) for i in generator.integers(4, size=count)]


def test_it_finds_planted_mistakes():
    """Use sums of two digits, and a last line that repeats the result: a wrong sum, or a wrong copy."""
    task = tasks.find("steps:terms=2,digits=1,operators=+")
    model = load(ModelOptions(), seed=0)
    train, test = (
        stepwise(model.tokenizer, planted(task, count, seed=seed), eos_ids=model.stop)
        for count, seed in ((3200, 0), (200, 1))
    )
    own = learner(
        train,
        model=model,
        supervision="process",
        batch_size=32,
        budget=3200,
        learning_rate=2e-3,
        warmup_ratio=0.05,
        lr_schedule="cosine",
    )
    while own.consumed < own.budget:
        own.iterate()
    always = np.mean([np.mean(row.labels) for row in test])  # the accuracy of calling every step right
    assert always < 0.7
    assert np.mean(own.accuracies(test)) > 0.8
