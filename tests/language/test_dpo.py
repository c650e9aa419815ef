"""DPO: its derivation on a finite set, its gradient, its invariances, its closed form, resume, and learning."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from operant import api, ops
from operant.language.configs import ModelOptions
from operant.language.dpo import DPO, DPOConfig
from operant.language.examples import Pair, demonstrations, pairs
from operant.language.models import Reference, load
from operant.language.packing import Sample, pack
from operant.language.preferences.annotator import SimulatedAnnotator
from operant.language.preferences.exporting import export
from operant.language.preferences.items import Completion, Item
from operant.language.preferences.store import PreferenceStore
from operant.language.sft import SFT, SFTConfig
from operant.language.tasks.writing import hidden, write
from operant.state import clone

EOS = 2
PAIRS = [
    Pair([1, 10, 11], [20, 21, EOS], [30, EOS]),
    Pair([1, 10, 11], [40, EOS], [20, 21, EOS]),
    Pair([1, 12], [22, 23, 24, 25, EOS], [31, 32, EOS]),
    Pair([1, 13, 14, 15], [50, EOS], [51, 52, 53, 54, EOS]),
    Pair([1, 9], [60, 61, EOS], [62, 63, 64, EOS]),
]


def model_of(seed=0, **options):
    return load(ModelOptions(**options), seed=seed)


def learner(rows=PAIRS, held_out=(), *, budget=100, model=None, seed=0, **values):
    config = DPOConfig(**({"learning_rate": 1e-3, "batch_size": len(rows)} | values))
    return DPO(config, model_of() if model is None else model, rows, held_out, seed=seed, budget=budget)


def log_prob(model, prompt, completion):
    """Compute the log-probability of a completion by the plain forward pass of transformers: the dense twin."""
    ids = torch.tensor([[*prompt, *completion]])
    log_probs = model.network(input_ids=ids).logits[0].log_softmax(-1)
    start = len(prompt)
    return sum(log_probs[start - 1 + i, token] for i, token in enumerate(completion))


def gradients(model, function):
    parameters = model.trained()
    found = torch.autograd.grad(function(), list(parameters.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(parameters.items(), found, strict=True)}


def recorded(learner_, batch):
    """Return the gradient that an optimizer step of a learner would use, before it is clipped."""
    found = {}

    def step(progress):
        found.update({n: p.grad.clone() for n, p in learner_.stepper.parameters.items() if p.grad is not None})
        for p in learner_.stepper.parameters.values():
            p.grad = None
        return torch.zeros(()), 0.0

    learner_.stepper.step = step
    learner_.stepper.steps = 1  # another test covers the check of the first loss
    return learner_.update(batch), found


# --- the derivation, on a finite set of answers


REWARD = torch.tensor([1.0, 0.2, -0.5, 0.7], dtype=torch.float64)
REF = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
BETA = 0.5


def objective(policy):
    return (policy * REWARD).sum() - BETA * (policy * (policy / REF).log()).sum()


def test_the_gibbs_policy_maximizes_the_regularized_objective():
    z = (REF * (REWARD / BETA).exp()).sum()
    best = REF * (REWARD / BETA).exp() / z
    assert objective(best) == pytest.approx(float(BETA * z.log()))
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        other = torch.rand(4, generator=generator, dtype=torch.float64).softmax(0)
        divergence = (other * (other / best).log()).sum()
        assert float(objective(best) - objective(other)) == pytest.approx(float(BETA * divergence))


def test_the_reward_is_the_log_ratio_up_to_a_constant_that_cancels():
    z = (REF * (REWARD / BETA).exp()).sum()
    best = REF * (REWARD / BETA).exp() / z
    implicit = BETA * (best / REF).log()
    torch.testing.assert_close(implicit + BETA * z.log(), REWARD)
    preferred = torch.sigmoid(implicit[:, None] - implicit[None])
    torch.testing.assert_close(preferred, torch.sigmoid(REWARD[:, None] - REWARD[None]))
    shifted = torch.sigmoid((REWARD + 7.0)[:, None] - (REWARD + 7.0)[None])
    torch.testing.assert_close(preferred, shifted)


# --- loss and gradient


def test_the_first_loss_is_log_2():
    own = learner()
    metrics = own.iterate()
    assert float(metrics["losses/dpo"]) == pytest.approx(math.log(2), abs=1e-5)
    assert float(metrics["rewards/margins"]) == pytest.approx(0, abs=1e-5)
    assert own.consumed == len(PAIRS)
    assert float(own.iterate()["losses/dpo"]) < math.log(2) - 0.01


@pytest.mark.parametrize(
    ("loss_type", "beta", "expected"), [("sigmoid", 0.3, math.log(2)), ("hinge", 0.3, 1.0), ("ipo", 0.1, 25.0)]
)
@pytest.mark.parametrize("precompute", [True, False])
def test_the_first_loss_of_each_kind(loss_type, beta, expected, precompute):
    metrics = learner(loss_type=loss_type, beta=beta, precompute_ref_log_probs=precompute).iterate()
    assert float(metrics["losses/dpo"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss_type", ["sigmoid", "hinge", "ipo"])
def test_a_first_loss_that_is_off_names_its_cause(loss_type):
    own = learner(loss_type=loss_type)
    own.accuracies()
    own.precomputed = own._precompute()
    with torch.no_grad():
        for parameter in own.model.trained().values():
            parameter.mul_(1.3)
    with pytest.raises(ValueError, match=r"first DPO loss is .*equal to its reference has loss .*dropout"):
        own.iterate()
    assert own.stepper.steps == 0


def test_the_gradient_is_that_of_equation_7():
    pair, model, reference = PAIRS[2], model_of(), model_of(seed=5)
    with torch.no_grad():
        ref = [log_prob(reference, pair.prompt, c) for c in (pair.chosen, pair.rejected)]
        now = [log_prob(model, pair.prompt, c) for c in (pair.chosen, pair.rejected)]
    beta = 0.4
    margin = beta * ((now[0] - ref[0]) - (now[1] - ref[1]))
    chosen, rejected = (
        gradients(model, lambda c=c: log_prob(model, pair.prompt, c)) for c in (pair.chosen, pair.rejected)
    )
    own = learner([pair], model=model, beta=beta)
    own.precomputed = torch.stack(ref).view(1, 2)
    metrics, found = recorded(own, [0])
    assert float(metrics["losses/dpo"]) == pytest.approx(float(-logsigmoid(margin)), abs=1e-5)
    factor = -beta * torch.sigmoid(-margin)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, factor * (chosen[name] - rejected[name]), atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("loss_type", ["sigmoid", "hinge", "ipo"])
def test_the_loss_is_that_of_a_dense_twin(loss_type):
    model, reference = model_of(), model_of(seed=5)
    with torch.no_grad():
        table = [
            [[log_prob(m, p.prompt, c) for c in (p.chosen, p.rejected)] for p in PAIRS] for m in (model, reference)
        ]
        policy, ref = torch.tensor(table)
    if loss_type == "ipo":
        lengths = torch.tensor([[len(p.chosen), len(p.rejected)] for p in PAIRS])
        policy, ref = policy / lengths, ref / lengths
    expected = ops.dpo(*policy.T, *ref.T, beta=0.2, kind=loss_type).mean()
    own = learner(model=model, beta=0.2, loss_type=loss_type)
    own.precomputed = ref
    metrics, _ = recorded(own, range(len(PAIRS)))
    assert float(metrics["losses/dpo"]) == pytest.approx(float(expected), rel=1e-5)
    assert float(metrics["logps/chosen"]) == pytest.approx(float(policy[:, 0].mean()), rel=1e-5)
    margins = 0.2 * ((policy - ref)[:, 0] - (policy - ref)[:, 1])
    assert float(metrics["rewards/margins"]) == pytest.approx(float(margins.mean()), rel=1e-4)
    assert float(metrics["rewards/accuracies"]) == pytest.approx(float((margins > 0).float().mean()))


def test_label_smoothing_reaches_the_loss():
    model = model_of()
    own = learner(model=model, label_smoothing=0.2, beta=1.0)
    own.precomputed = own._precompute() + torch.tensor([-1.0, 0.5])
    metrics, _ = recorded(own, range(len(PAIRS)))
    assert float(metrics["losses/dpo"]) == pytest.approx(
        0.8 * math.log1p(math.exp(-1.5)) + 0.2 * math.log1p(math.exp(1.5))
    )


@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo"])
def test_micro_batches_and_the_order_of_pairs_change_nothing(loss_type):
    reference = model_of(seed=5)
    results = []
    for tokens, order in ((16_384, [0, 1, 2, 3, 4]), (1, [0, 1, 2, 3, 4]), (20, [4, 2, 0, 3, 1])):
        own = learner(model=model_of(), micro_batch_tokens=tokens, loss_type=loss_type)
        own.precomputed = learner(model=reference, loss_type=loss_type)._precompute()
        results.append(recorded(own, order))
    (first, gradient), *others = results
    largest = max(float(part.abs().max()) for part in gradient.values())
    for metrics, other in others:
        for name in ("losses/dpo", "rewards/margins", "logps/rejected", "num_tokens"):
            assert float(metrics[name]) == pytest.approx(float(first[name]), rel=1e-5, abs=1e-6)
        for name in gradient:
            torch.testing.assert_close(other[name], gradient[name], atol=1e-6 * largest, rtol=1e-4)


def test_tokens_of_the_prompt_do_not_count():
    own = learner([PAIRS[0]])
    packed = own._packed([0])
    assert packed.lengths.tolist() == [3, 2]
    assert packed.targets.tolist() == [*PAIRS[0].chosen, *PAIRS[0].rejected]


def test_only_pairs_within_the_budget_are_precomputed():
    own, whole = (learner(PAIRS, PAIRS[:1], batch_size=2, budget=budget) for budget in (3, 5))
    steps = [[float(each.iterate()["losses/dpo"]) for _ in range(2)] for each in (own, whole)]
    assert steps[0] == pytest.approx(steps[1], abs=1e-4)
    known = (own.precomputed != 0).all(1)
    assert known.tolist().count(True) == 4 + 1  # two batches, and the held-out pair
    assert known[-1]
    assert (whole.precomputed != 0).all()
    assert own.state_dict()["precomputed"].isfinite().all()  # as checkpoints require
    assert all(math.isfinite(share) for share in own.accuracies())


def test_a_live_reference_is_the_same_as_a_precomputed_one():
    once, live = (learner(precompute_ref_log_probs=how) for how in (True, False))
    for _ in range(3):
        first, second = once.iterate(), live.iterate()
    assert float(first["losses/dpo"]) == pytest.approx(float(second["losses/dpo"]), abs=1e-5)
    assert once.reference is None
    assert live.precomputed is None


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft reads it from transformers
def test_the_reference_of_a_new_adapter_is_the_model_without_it():
    own = learner(model=model_of(lora_r=4), precompute_ref_log_probs=False)
    assert own.iterate()["losses/dpo"] == pytest.approx(math.log(2), abs=1e-5)
    assert own.state_dict()["reference"] == {"parameters": None}
    packed = own._packed(range(len(PAIRS)))
    torch.testing.assert_close(own.reference.log_probs(packed), Reference(model_of()).log_probs(packed))
    assert float(own.iterate()["rewards/margins"]) > 0


# --- closed form


def test_on_full_support_data_it_approaches_the_gibbs_policy():
    """With pairs from Bradley and Terry in exact proportion: π -> ref·exp(r/β)/Z among the answers."""
    reward, beta, copies = torch.tensor([1.0, 0.0, -0.7, 0.4]), 0.5, 25
    answers = [[40], [41], [42], [43]]
    rows = []
    for i in range(4):
        for j in range(i):
            wins = round(copies * float(torch.sigmoid(reward[i] - reward[j])))
            rows += [Pair([1, 7], answers[i], answers[j])] * wins + [Pair([1, 7], answers[j], answers[i])] * (
                copies - wins
            )
    model = model_of()

    def among():
        with torch.no_grad():
            log_probs = model.log_probs(pack([Sample([1, 7], a) for a in answers]))[0]
        return log_probs.log_softmax(0)

    ref = among()
    own = learner(rows, model=model, beta=beta, learning_rate=2e-3, budget=120 * len(rows), lr_schedule="cosine")
    while own.consumed < own.budget:
        own.iterate()
    target, found = (ref + reward / beta).log_softmax(0), among()
    divergence = float((found.exp() * (found - target)).sum())
    assert divergence < 0.01
    assert float((ref.exp() * (ref - target)).sum()) > 0.3  # the divergence before training


# --- resume


@pytest.mark.parametrize("precompute", [True, False])
def test_resume_is_exact(precompute):
    values = {"batch_size": 2, "precompute_ref_log_probs": precompute, "lr_schedule": "linear", "budget": 20}
    whole = learner(held_out=PAIRS[:2], **values)
    for _ in range(3):
        whole.iterate()
    half = clone(whole.state_dict())
    for _ in range(3):
        whole.iterate()
    resumed = learner(held_out=PAIRS[:2], **values)
    resumed.load_state_dict(half)
    for _ in range(3):
        resumed.iterate()
    expected, found = whole.state_dict(), resumed.state_dict()
    for name, value in expected["model"].items():
        assert torch.equal(value, found["model"][name])
    assert whole.consumed == resumed.consumed
    assert whole.accuracies() == resumed.accuracies()
    if precompute:
        assert torch.equal(expected["precomputed"], found["precomputed"])
    else:
        for name, value in expected["reference"]["parameters"].items():
            assert torch.equal(value, found["reference"]["parameters"][name])
            assert not torch.equal(value, found["model"][name]) or value.numel() < 200


def test_a_state_of_other_pairs_is_rejected():
    own = learner()
    own.iterate()
    with pytest.raises(ValueError, match=r"of 5 pairs, but there are 3.*the run that saved it"):
        learner(PAIRS[:3]).load_state_dict(own.state_dict())


# --- data


def test_pairs_of_a_cut_prompt_and_nothing_else_are_left_out(characters):
    rows = [
        {"prompt": "a", "chosen": "xxxxxy", "rejected": "xxxxxz"},
        {"prompt": "a", "chosen": "y", "rejected": "z"},
    ]
    kept = pairs(characters, rows, eos_ids={EOS}, max_completion_length=5)
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beta": 0.0}, r"beta must be in \(0, inf\), got 0.0"),
        ({"label_smoothing": 0.5}, "label_smoothing must be in"),
        (
            {"loss_type": "ipo", "label_smoothing": 0.1},
            "label_smoothing=0.1 has an effect only with loss_type=sigmoid, got loss_type=ipo: .*leave out label_",
        ),
        ({"loss_type": "kto"}, "loss_type must be sigmoid, ipo or hinge"),
        ({"batch_size": 0}, "batch_size must be in"),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        DPOConfig(**values)


def test_a_task_without_preferences_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"arithmetic.* has no preference examples"):
        api.train("dpo", "arithmetic", budget=1, run=tmp_path / "run", progress="silent")


# --- whole runs


def labeled(path: Path, count: int) -> Path:
    """Label preferences with a simulated annotator, by the store, and write them in TRL's format."""
    letters = "bcdfgh"
    with PreferenceStore(path / "store.sqlite") as store:
        items = [
            Item.of(f"q{i}", [Completion("a" * (1 + i % 3)), Completion(letters[i % 6] * (1 + i % 2))])
            for i in range(count)
        ]
        store.add_items(items)
        annotator = SimulatedAnnotator(
            lambda prompts, completions, completion_ids, **_: [float(c.count("a")) for c in completions], temperature=0
        )
        annotator.label(store)
        return export(store, path / "pairs.jsonl").path


def test_labels_of_the_store_train_a_policy(tmp_path):
    file = labeled(tmp_path, 60)
    assert {"prompt", "chosen", "rejected"} <= json.loads(file.read_text().splitlines()[0]).keys()
    result = api.train(
        "dpo", str(file), budget=192, run=tmp_path / "run", progress="silent", learning_rate=3e-4, batch_size=16
    )
    assert result.outcome.evaluation.mean > 0.9
    assert result.outcome.evaluation.episodes == 12


def test_it_raises_the_hidden_reward():
    """A model that writes any of six texts learns from pairs of them to write the preferred ones."""
    prompt, generator = "cat likes dog:", np.random.default_rng(3)
    texts = list(dict.fromkeys(write(generator, prompt) for _ in range(7)))[:6]
    liked = torch.tensor(hidden([prompt] * 6, texts))
    model = model_of()
    rows = [{"prompt": prompt, "completion": text} for text in texts]
    shown = demonstrations(model.tokenizer, rows, eos_ids=model.stop)
    teacher = SFT(SFTConfig(learning_rate=3e-3, keep_best=False), model, shown, shown, seed=0, budget=600)
    while teacher.consumed < teacher.budget:
        teacher.iterate()

    def expected():
        likelihoods = torch.stack([row.sum() for row in model.completion_log_probs(shown, tokens=4096)])
        return float((likelihoods.softmax(0) * liked).sum()), float(likelihoods.exp().sum())

    before, known = expected()
    chosen = [(i, j) for i in range(6) for j in range(6) if liked[i] > liked[j]]
    compared = [{"prompt": prompt, "chosen": texts[i], "rejected": texts[j]} for i, j in chosen]
    encoded = pairs(model.tokenizer, compared, eos_ids=model.stop)
    own = learner(encoded, model=model, learning_rate=3e-4, budget=12 * len(encoded))
    while own.consumed < own.budget:
        own.iterate()
    after, _ = expected()
    assert known > 0.1  # the texts are a good part of its samples
    assert after > before + 0.5 * (float(liked.max()) - before)
