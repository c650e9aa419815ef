"""GRPO and its presets: closed forms, a dense twin, invariances, filters, resume, and learning."""

import logging
import math
import warnings

import pytest
import torch

from operant import ops, streams
from operant.language.divergence import is_weighted
from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Completion
from operant.language.examples import Prompt
from operant.language.grpo import GRPO, PRESETS, GRPOConfig
from operant.language.grpo_batch import plan
from operant.language.packing import Sample, pack
from operant.language.process_rewards import step_rewards_of
from operant.language.rewards import combine
from operant.language.rollouts import Answers, Rollout, compute_rewards
from operant.language.tasks import find
from operant.runtime.encoding import digest
from operant.runtime.shards import Alone, Shards
from operant.state import clone
from runtime.teams import team

EOS = 2
PROMPTS = [Prompt([1, *ids], {"prompt": str(ids)}) for ids in ([3], [4, 5], [6, 3, 4], [7], [5, 5], [6, 7])]


def varied(completion_ids, **_):
    """Return rewards that rarely coincide."""
    return [sum((i + 1) * (token == 5) - 0.3 * (token == 6) for i, token in enumerate(ids)) for ids in completion_ids]


def first(completion_ids, **_):
    """Return reward 1 for answers whose first token is in one half of the vocabulary."""
    return [float(ids[0] >= 4) for ids in completion_ids]


@pytest.fixture(autouse=True)
def same_networks():
    """Seed the global generator, from which transformers draws initial weights, so that tests are independent."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def make_learner(make_model):
    def make(
        *,
        reward=varied,
        max_tokens=6,
        model=None,
        engine=None,
        rows=PROMPTS,
        seed=0,
        budget=100,
        steps=None,
        shards=None,
        **values,
    ):
        values = {"learning_rate": 1e-2, "prompts_per_batch": 4, "num_generations": 4, "max_grad_norm": 1e9} | values
        model = model or make_model(vocab_size=8)
        return GRPO(
            GRPOConfig(**values),
            model,
            engine or NativeEngine(model),
            rows,
            combine([reward]),
            max_tokens=max_tokens,
            seed=seed,
            budget=budget,
            steps=steps,
            shards=shards,
        )

    return make


def rollout_of(learner, groups):
    """Return a rollout of given completions, with their log-probabilities under the model; ids for each prompt."""
    size = len(groups[0][1])
    prompts = [prompt for prompt, completions in groups for _ in completions]
    ids = [list(c) for _, completions in groups for c in completions]
    with torch.no_grad():
        packed = pack([Sample(p.prompt, c) for p, c in zip(prompts, ids, strict=True)])
        rows = learner.model.log_probs(packed)[0].split(packed.lengths.tolist())
    completions = [Completion(c, r.tolist(), c[-1] != EOS) for c, r in zip(ids, rows, strict=True)]
    answers = Answers(prompts, completions, [""] * len(ids))
    return Rollout(answers, compute_rewards(learner.sampler.rewards, answers), size)


def record(learner, *, move=True):
    """Record the gradient and the parameters of every optimizer step; without `move` the parameters stay unchanged."""
    notes, step = [], learner.stepper.step

    def noted(progress):
        values = learner.stepper.parameters
        gradient = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in values.items()}
        notes.append((gradient, {n: p.detach().clone() for n, p in values.items()}, progress))
        if move:
            return step(progress)
        for p in values.values():
            p.grad = None
        return torch.zeros(()), 0.0

    learner.stepper.step = noted
    return notes


def gradient(learner, batch):
    """Return the gradient of the only step of a batch, flat."""
    notes = record(learner, move=False)
    learner.stepper.steps = 1  # without the check of a run's first step
    learner.update(batch, began=0)

    ((found, _, _),) = notes
    return torch.cat([g.flatten() for g in found.values()])


def flat_grad(model, value):
    parameters = list(model.trained().values())
    found = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, found, strict=True)]
    )


def close(found, expected, tolerance=2e-4):
    """Compare gradients by their size."""
    assert float(expected.norm()) > 1e-4
    assert float((found - expected).norm() / expected.norm()) < tolerance


def dense(model, prompt, completion, temperature=1.0):
    """Compute log-probabilities of a completion by transformers' own forward pass."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = model.network(input_ids=ids, use_cache=False).logits[0].float() / temperature
    return logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None]).squeeze(1)


# --- expected gradients: all groups of one-token and two-token answers, weighted by their probability


def enumerate_groups(answers, group):
    return torch.cartesian_prod(*[torch.arange(len(answers))] * group)


def expected_gradient(learner, answers, group):
    """Sum over all groups their probability times the gradient of a batch of that group alone."""
    prompt = PROMPTS[0]
    sets = enumerate_groups(answers, group)
    with torch.no_grad():
        log_probs = torch.stack([dense(learner.model, prompt.prompt, a).sum() for a in answers])
    chance = log_probs[sets].sum(1).exp()
    assert float(chance.sum()) == pytest.approx(1, abs=1e-4)
    batch = learner.estimate_advantages(
        rollout_of(learner, [(prompt, [answers[i] for i in row]) for row in sets.tolist()])
    )
    scale = (chance * len(sets)).repeat_interleave(group)  # the mean over groups becomes the expectation
    return gradient(learner, batch._replace(advantages=[a * s for a, s in zip(batch.advantages, scale, strict=True)]))


def expected_reward(learner, answers, reward=varied):
    rewards = torch.tensor(reward(completion_ids=answers))
    chance = torch.stack([dense(learner.model, PROMPTS[0].prompt, a).sum() for a in answers]).exp()
    return (chance * rewards).sum()


ONE = [[token] for token in range(8)]
TWO = [[EOS]] + [[a, b] for a in (0, 1, 3) for b in range(4)]


@pytest.mark.parametrize(("preset", "share"), [("rloo", 1.0), ("dr-grpo", 2 / 3)])
def test_the_expected_gradient_is_the_policy_gradient(make_learner, preset, share):
    learner = make_learner(max_tokens=1, **PRESETS[preset] | {"num_generations": 3, "prompts_per_batch": 512})
    close(expected_gradient(learner, ONE, 3), -share * flat_grad(learner.model, expected_reward(learner, ONE)))


@pytest.mark.parametrize(("preset", "share"), [("rloo", 1.0), ("dr-grpo", 1 / 2)])
def test_it_is_also_with_answers_of_different_lengths(make_learner, make_model, preset, share):
    def threes(completion_ids, **_):
        return [sum((i + 1.0) * (token == 3) for i, token in enumerate(ids)) for ids in completion_ids]

    values = PRESETS[preset] | {"num_generations": 2, "prompts_per_batch": 169}
    learner = make_learner(model=make_model(vocab_size=4), reward=threes, max_tokens=2, **values)
    expected = flat_grad(learner.model, expected_reward(learner, TWO, threes))
    close(expected_gradient(learner, TWO, 2), -share / 2 * expected)  # the constant is 2 tokens


def test_standardized_groups_climb_a_function_of_the_pass_rate(make_learner):
    """With right and wrong answers GRPO follows F'(p)∇p, where F' is large for prompts that are hard or easy."""
    group = 3
    learner = make_learner(
        reward=first, max_tokens=1, **PRESETS["grpo"] | {"num_generations": group, "prompts_per_batch": 512}
    )
    p = expected_reward(learner, ONE, first)
    rate, slope = float(p.detach()), 0.0
    for k in range(1, group):
        spread = math.sqrt(k * (group - k) / group / (group - 1)) + 1e-4
        slope += math.comb(group, k) * rate**k * (1 - rate) ** (group - k) * k * (group - k) / group**2 / spread
    close(expected_gradient(learner, ONE, group), -slope / (rate * (1 - rate)) * flat_grad(learner.model, p))


def test_dr_grpo_is_leave_one_out_times_g_minus_1_over_g(make_learner):
    one, other = (make_learner(**PRESETS[name]) for name in ("dr-grpo", "rloo"))
    rollout, _ = one.collect()
    close(
        gradient(one, one.estimate_advantages(rollout)),
        3 / 4 * gradient(other, other.estimate_advantages(rollout)),
        1e-5,
    )


@pytest.mark.parametrize("weights", ["token_mean", "sequence_mean", "constant"])
def test_the_bandit_view_is_the_token_view_at_equal_lengths(make_learner, weights):
    learner = make_learner(loss_aggregation=weights, max_tokens=3)
    groups = [(p, [[3, 5, 6], [5, 5, 7], [4, 6, EOS], [6, 6, 6]]) for p in PROMPTS[:4]]
    rollout = rollout_of(learner, groups)
    advantages = ops.group_advantages(rollout.rewards())
    bandit = sum(
        a * dense(learner.model, p.prompt, c).sum() / 3
        for (p, completions), row in zip(groups, advantages, strict=True)
        for c, a in zip(completions, row, strict=True)
    )
    close(gradient(learner, learner.estimate_advantages(rollout)), -flat_grad(learner.model, bandit / 16))


# --- the divergence


@pytest.fixture
def divergence(make_learner, make_model):
    def make(estimator, weighted, *, old=None):
        """Return expected gradients of an estimate on all one-token answers, KL(policy‖ref) and KL(ref‖policy)."""
        learner = make_learner(beta=1.0, kl_estimator=estimator, kl_weighted=weighted)
        other = make_model(vocab_size=8, seed=1)
        learner.model.load_state_dict({n: p.detach().clone() for n, p in other.trained().items()})
        packed = pack([Sample(PROMPTS[1].prompt, c) for c in ONE])
        new, ref = learner.model.log_probs(packed)[0], learner.reference.log_probs(packed)
        before = new.detach() if old is None else make_model(vocab_size=8, seed=old).log_probs(packed)[0].detach()
        estimate = (before.exp() * learner._divergence(packed, new, before)).sum()
        exact = ops.categorical_kl(new, ref), ops.categorical_kl(ref, new)
        return [flat_grad(learner.model, value) for value in (estimate, *exact)]

    return make


def test_k2_as_a_loss_follows_the_reverse_divergence(divergence):
    found, reverse, forward = divergence("k2", False)
    close(found, reverse)
    assert float((found - forward).norm() / forward.norm()) > 0.05


def test_k3_as_a_loss_follows_the_forward_divergence(divergence):
    found, reverse, forward = divergence("k3", False)
    close(found, forward)
    assert float((found - reverse).norm() / reverse.norm()) > 0.05


@pytest.mark.parametrize("old", [None, 5])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_estimates_with_their_ratio_follow_the_reverse_divergence_for_any_sampler(divergence, estimator, old):
    found, reverse, _ = divergence(estimator, True, old=old)
    close(found, reverse)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_every_estimator_alone_follows_the_reverse_divergence(divergence, estimator):
    found, reverse, _ = divergence(estimator, None)
    close(found, reverse)


def test_the_presets_follow_a_divergence(divergence):
    for preset in ("grpo", "prorl"):
        values = GRPOConfig(**PRESETS[preset])
        found, reverse, _ = divergence(values.kl_estimator, is_weighted(values.kl_estimator, values.kl_weighted))
        close(found, reverse)


# --- a dense twin of loss and gradient, padded, with all formulas written out


def twin_advantages(rewards, config, lengths, max_tokens):
    if config.overlong_buffer:
        buffer = round(config.overlong_buffer * max_tokens)
        rewards = [
            [
                r - config.overlong_penalty * min(1, max(0, (n - (max_tokens - buffer)) / buffer))
                for r, n in zip(row, own, strict=True)
            ]
            for row, own in zip(rewards, lengths, strict=True)
        ]
    found = []
    for row in rewards:
        mean = sum(row) / len(row)
        std = math.sqrt(sum((r - mean) ** 2 for r in row) / (len(row) - 1))
        match config.advantage:
            case "group":
                found += [0.0 if std == 0 else (r - mean) / (std + 1e-4) for r in row]
            case "mean":
                found += [r - mean for r in row]
            case "leave-one-out":
                found += [r - (sum(row) - r) / (len(row) - 1) for r in row]
    return torch.tensor(found)


def twin_loss(config, max_tokens, *, new, old, ref, advantages, mask):
    """Compute the loss of one optimizer step from `[B, L]` log-probabilities."""
    live = mask.float()
    lengths = live.sum(1)
    gap = torch.where(mask, new - old, 0.0)
    a = advantages[:, None]
    match config.objective:
        case "cispo":
            losses = -gap.exp().clamp(max=1 + config.clip_range[1]).detach() * a * new
        case "sequence":
            rho = (gap.sum(1) / lengths).exp()[:, None].expand_as(new)
            losses = -torch.minimum(rho * a, rho.clamp(1 - config.epsilon, 1 + config.clip_range[1]) * a)
        case "clip":
            rho = gap.exp()
            losses = -torch.minimum(rho * a, rho.clamp(1 - config.epsilon, 1 + config.clip_range[1]) * a)
    if config.beta:
        d = torch.where(mask, new - ref, 0.0)
        kl = {"k2": d**2 / 2, "k3": (-d).exp() - 1 + d}[config.kl_estimator]
        losses = losses + config.beta * kl * (
            gap.exp() if is_weighted(config.kl_estimator, config.kl_weighted) else 1.0
        )
    losses = torch.where(mask, losses, 0.0)
    match config.loss_aggregation:
        case "token_mean":
            return losses.sum() / live.sum()
        case "sequence_mean":
            return (losses.sum(1) / lengths).mean()
        case "constant":
            return (losses.sum(1) / max_tokens).mean()


def padded(model, batch, step, width, temperature):
    found, mask = torch.zeros(len(step), width), torch.zeros(len(step), width, dtype=torch.bool)
    rows = []
    for k, i in enumerate(step):
        row = dense(model, batch.samples[i].prompt, batch.samples[i].completion, temperature)
        rows.append(torch.cat([row, torch.zeros(width - len(row))]))
        mask[k, : len(row)] = True
    return torch.stack(rows) if rows else found, mask


@pytest.mark.parametrize("preset", [*PRESETS, None])
def test_every_preset_against_a_dense_twin(make_learner, make_model, preset):
    """Use two epochs of two steps: only the first step is on-policy, and large steps make the clips effective."""
    values = dict(PRESETS.get(preset, {})) | {
        "num_generations": 4,
        "num_minibatches": 2,
        "num_iterations": 2,
        "micro_batch_tokens": 24,
    }
    if preset in ("grpo", "prorl"):
        values["beta"] = 0.3
    if preset == "cispo":
        values["epsilon_high"] = 0.5  # weights of 5 are rare
    if preset == "gspo":
        values |= {"epsilon": 0.05, "epsilon_high": 0.1, "learning_rate": 1e-3}  # or every sequence would be clipped
    learner = make_learner(importance_sampling_correction="none", **values)
    config, width = learner.config, learner.max_tokens
    before, twin = make_model(vocab_size=8), make_model(vocab_size=8)
    ref = make_model(vocab_size=8)
    rollout, _ = learner.collect()
    assert len(rollout) == 4
    batch = learner.estimate_advantages(rollout)
    generator = streams.torch_generator(0, "minibatches", 0)
    steps = plan(batch, group=4, steps=2, tokens=24, generator=generator) * 2
    assert max(len(step.parts) for step in steps) > 1  # several micro-batches
    notes = record(learner)
    metrics = learner.update(batch, began=0)
    lengths = torch.tensor([len(c.ids) for c in rollout.answers.completions]).view(4, 4)
    advantages = twin_advantages(rollout.rewards().tolist(), config, lengths.tolist(), width)
    losses = []
    for planned, (found, parameters, _) in zip(steps, notes, strict=True):
        step = [i for part in planned.parts for i in part]
        twin.load_state_dict(parameters)
        new, mask = padded(twin, batch, step, width, config.temperature)
        with torch.no_grad():
            old, _ = padded(before, batch, step, width, config.temperature)
            reference, _ = padded(ref, batch, step, width, config.temperature)
        loss = twin_loss(config, width, new=new, old=old, ref=reference, advantages=advantages[step], mask=mask)
        own, expected = torch.cat([g.flatten() for g in found.values()]), flat_grad(twin, loss)
        if float(expected.norm()) == 0:  # everything is clipped
            assert losses
            assert float(own.norm()) == 0
        else:
            close(own, expected, 1e-3)
        losses.append(float(loss.detach()))
    own = float(metrics["losses/policy"]) + float(metrics.get("losses/kl", 0.0))
    if config.objective != "cispo":  # whose loss has a gradient, but no meaningful value
        assert own == pytest.approx(sum(losses) / len(losses), abs=1e-4)
    assert float(metrics["clip_ratio/region_mean"]) > 0


def test_the_square_root_of_g_scales_the_policy_term_alone(make_learner):
    plain, root = (make_learner(group_loss_scale=scale) for scale in ("1/G", "1/sqrt(G)"))
    rollout, _ = plain.collect()
    close(
        gradient(root, root.estimate_advantages(rollout)), 2 * gradient(plain, plain.estimate_advantages(rollout)), 1e-5
    )


# --- what counts and what does not


def test_process_advantages_of_real_answers(make_model, characters):
    """R is (1, 1, 1), (1, 0, 0), (0) and (0), whose steps stop early: mean 1/2, unbiased variance 2/7."""
    prompt = Prompt(characters("12+7+5=")["input_ids"], {"prompt": "12+7+5="})
    texts = ["12+7=19\n19+5=24\n24", "12+7=19\n19+5=23\n23", "24", "12+7=19\n"]
    cut = [False, False, False, True]
    ids = [
        characters(t, add_special_tokens=False)["input_ids"] + [EOS] * (not c) for t, c in zip(texts, cut, strict=True)
    ]
    completions = [Completion(row, [0.0] * len(row), c) for row, c in zip(ids, cut, strict=True)]
    model = make_model()
    config = GRPOConfig(supervision="process", num_generations=3, statistics=1, prompts_per_batch=1)
    judged = combine([varied])
    options = {"max_tokens": 30, "seed": 0, "budget": 1, "steps": step_rewards_of(find("steps"), characters)}
    learner = GRPO(config, model, NativeEngine(model), [prompt], judged, **options)
    answers = Answers([prompt] * 4, completions, texts)
    batch = learner.estimate_advantages(
        Rollout(answers, compute_rewards(judged, answers), 4, options["steps"]([prompt] * 4, completions))
    )
    spread = math.sqrt(2 / 7) + 1e-4
    right, wrong = 1 / 2 / spread, -1 / 2 / spread
    lines = [[3 * right] * 8 + [2 * right] * 8 + [right] * 3, [right + 2 * wrong] * 8 + [2 * wrong] * 8 + [wrong] * 3]
    assert len(batch.samples) == 3  # the fourth answer is only part of the statistics
    for found, expected in zip(batch.advantages, [*lines, [wrong] * 3], strict=True):
        torch.testing.assert_close(found, torch.tensor(expected))
    assert [row[-1] == EOS for row in ids] == [True, True, True, False]  # each EOS has the advantage of its last step


def test_process_supervision_keeps_groups_whose_steps_differ(make_model, characters):
    prompt = Prompt(characters("1+2=")["input_ids"], {"prompt": "1+2="})
    model = make_model()

    def nothing(completions, **_):
        return [0.0] * len(completions)

    calls = []

    def halves(prompts, completions):
        calls.append(len(completions))
        rewards = torch.arange(len(completions)).view(-1, 1) % 2.0
        return rewards, torch.zeros(len(completions), 1, dtype=torch.int64), torch.ones_like(rewards, dtype=torch.bool)

    config = GRPOConfig(supervision="process", filter="refill", prompts_per_batch=2, num_generations=2)
    options = {"max_tokens": 4, "seed": 0, "budget": 9, "steps": halves}
    learner = GRPO(config, model, NativeEngine(model), [prompt], combine([nothing]), **options)
    metrics = learner.iterate()
    assert metrics["sampling/rounds"] == 1
    assert metrics["sampling/groups"] == 2
    assert metrics["reward_std"] == 0
    assert metrics["frac_reward_zero_std"] == 0, "the rewards of the steps differ"
    assert calls == [4], "a process reward model may be large: it evaluates each answer once"


def test_extra_answers_sharpen_the_statistics_and_are_not_learned_from(make_learner):
    learner = make_learner(statistics=2)
    rollout, _ = learner.collect()
    batch = learner.estimate_advantages(rollout)
    assert rollout.rewards().shape == (4, 6)
    assert len(batch.samples) == 16
    expected = ops.group_advantages(rollout.rewards())[:, :4].flatten()
    torch.testing.assert_close(torch.stack([a[0] for a in batch.advantages]), expected)
    kept = [c for i, c in enumerate(rollout.answers.completions) if i % 6 < 4]
    assert [s.completion for s in batch.samples] == [c.ids for c in kept]
    torch.testing.assert_close(torch.cat(batch.behavior), torch.tensor([x for c in kept for x in c.log_probs]))


CUT = [
    (PROMPTS[0], [[3, EOS], [5, 5, 6, 3], [5, EOS], [4, 4, 4, 4]]),
    (PROMPTS[1], [[EOS], [6, EOS], [7, EOS], [5, EOS]]),
]


# TRL's losses (dapo, grpo, dr_grpo) of `[B, L]` losses of tokens and a mask without the answers that were cut off.
MASKED_LOSSES = {
    "token_mean": lambda losses, live, longest: (losses * live).sum() / live.sum(),
    "sequence_mean": lambda losses, live, longest: ((losses * live).sum(-1) / live.sum(-1).clamp(min=1.0)).mean(),
    "constant": lambda losses, live, longest: (losses * live).sum() / (losses.size(0) * longest),
}


@pytest.mark.parametrize("weights", list(MASKED_LOSSES))
def test_masking_has_the_gradient_of_a_padded_twin(make_learner, weights):
    learner = make_learner(mask_truncated_completions=True, loss_aggregation=weights, max_tokens=4)
    rollout = rollout_of(learner, CUT)
    batch = learner.estimate_advantages(rollout)
    new, mask = padded(learner.model, batch, range(8), 4, 1.0)
    advantages = ops.group_advantages(rollout.rewards()).flatten()
    losses = -(new - new.detach()).exp() * advantages[:, None]
    loss = MASKED_LOSSES[weights](losses, (mask & batch.counts[:, None]).float(), 4)
    close(gradient(learner, batch), flat_grad(learner.model, loss))


@pytest.mark.parametrize("weights", list(MASKED_LOSSES))
def test_filtered_answers_leave_the_denominator_of_tokens_and_stay_in_the_statistics(make_learner, weights):
    learner = make_learner(mask_truncated_completions=True, loss_aggregation=weights, max_tokens=4)
    rollout = rollout_of(learner, CUT)
    batch = learner.estimate_advantages(rollout)
    assert batch.counts.tolist() == [True, False, True, False] + [True] * 4
    advantages = ops.group_advantages(rollout.rewards()).flatten()
    assert [float(a[0]) for a in batch.advantages] == pytest.approx(advantages.tolist())
    live = [i for i in range(8) if batch.counts[i]]
    sizes = {i: len(batch.samples[i].completion) for i in live}
    each = {"token_mean": lambda i: 1 / sum(sizes.values()), "sequence_mean": lambda i: 1 / 8 / sizes[i]}
    weigh = each.get(weights, lambda i: 1 / 8 / 4)
    rows = {i: dense(learner.model, *batch.samples[i][:2]) for i in live}
    close(
        gradient(learner, batch), -flat_grad(learner.model, sum(weigh(i) * advantages[i] * rows[i].sum() for i in live))
    )


def test_tokens_that_the_correction_drops_stay_in_the_denominator(make_learner):
    learner = make_learner(importance_sampling_correction="mask", max_tokens=4)
    batch = learner.estimate_advantages(rollout_of(learner, CUT))
    whole = gradient(learner, batch)
    behavior = [row.clone() for row in batch.behavior]
    behavior[1][2] -= 5.0  # the engine gives this token a far lower probability
    rest = gradient(learner, batch._replace(behavior=behavior))
    token = batch.advantages[1][2] * dense(learner.model, *batch.samples[1][:2])[2]
    tokens = sum(len(s.completion) for s in batch.samples)
    close(rest, whole + flat_grad(learner.model, token / tokens))


def test_the_correction_weighs_the_policy_loss_and_not_the_divergence(make_learner):
    def alike(completion_ids, **_):
        return [1.0] * len(completion_ids)

    learner = make_learner(reward=alike, beta=0.3, importance_sampling_correction="mask", max_tokens=4)
    noise = torch.Generator().manual_seed(0)
    for value in learner.model.trained().values():  # move away from the reference
        value.data += 0.1 * torch.randn(value.shape, generator=noise)
    batch = learner.estimate_advantages(rollout_of(learner, CUT))
    whole = gradient(learner, batch)
    shifted = [row + 0.4 if index % 2 else row - 5.0 for index, row in enumerate(batch.behavior)]
    assert whole.norm() > 0.01
    assert torch.equal(gradient(learner, batch._replace(behavior=shifted)), whole)


def test_answers_that_nothing_rewards_have_no_advantage(make_learner):
    def some(completion_ids, **_):
        return [None if ids[0] == 5 else float(ids[0]) for ids in completion_ids]

    learner = make_learner(reward=some, max_tokens=1)
    groups = [(PROMPTS[0], [[5], [3], [4], [7]]), (PROMPTS[1], [[5], [5], [5], [3]])]
    with pytest.warns(RuntimeWarning, match="no reward function applies"):
        batch = learner.estimate_advantages(rollout_of(learner, groups))
    found = torch.stack([a[0] for a in batch.advantages]).view(2, 4)
    spread = math.sqrt(13 / 3) + 1e-4
    torch.testing.assert_close(found, torch.tensor([[0, -5 / 3, -2 / 3, 7 / 3], [0] * 4]) / spread)
    assert batch.counts.tolist() == [False, True, True, True, False, False, False, True]


@pytest.mark.parametrize("weights", list(MASKED_LOSSES))
def test_answers_that_nothing_rewards_are_in_no_mean_of_the_loss(make_learner, make_model, weights):
    def some(completion_ids, **_):
        return [None if ids[0] == 5 else float(ids[0]) for ids in completion_ids]

    quiet = {"loss_aggregation": weights, "beta": 0.5, "reward": some, "max_tokens": 4}
    groups = [(PROMPTS[0], [[5, 3, 3], [3, 4, EOS], [4], [7, 7]]), (PROMPTS[1], [[5], [5], [5], [5, EOS]])]
    rewarded = [(PROMPTS[0], [[3, 4, EOS], [4], [7, 7]])]
    found = list[torch.Tensor]()
    for size, rows in ((4, groups), (3, rewarded)):
        learner = make_learner(num_generations=size, prompts_per_batch=len(rows), **quiet)
        for value in learner.model.trained().values():
            value.data *= 1.1  # away from the reference
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            batch = learner.estimate_advantages(rollout_of(learner, rows))
        found.append(gradient(learner, batch))
    close(*found)


def test_a_short_overlong_buffer_has_one_token(make_learner):
    learner = make_learner(reward=lambda completion_ids, **_: [1.0] * len(completion_ids), overlong_buffer=0.05)
    batch = learner.estimate_advantages(rollout_of(learner, [(PROMPTS[0], [[3] * 5 + [EOS], [3] * 4 + [EOS]])]))
    assert batch.rewards.tolist() == [0.0, 1.0]


@pytest.mark.filterwarnings("ignore:no reward function applies")
@pytest.mark.parametrize(("rewarded", "share"), [(0, "16 of 16"), (1, "12 of 16")])
def test_missing_rewards_are_named_if_there_is_nothing_to_learn(make_learner, caplog, rewarded, share):
    def silent(completion_ids, **_):
        return [1.0 if i % 4 < rewarded else None for i in range(len(completion_ids))]

    learner = make_learner(reward=silent, filter="drop")
    with caplog.at_level(logging.WARNING):
        learner.iterate()
    answers = learner.config.prompts_per_batch * learner.config.num_generations
    assert answers == 16
    assert f"{share} answers have no reward: silent returned None, failed or timed out" in caplog.text
    assert ("easier or harder prompts" in caplog.text) == bool(rewarded)


def test_punishing_lengths_moves_rewards_and_hides_from_the_filter(make_learner, caplog):
    def alike(completion_ids, **_):
        return [1.0] * len(completion_ids)

    learner = make_learner(reward=alike, overlong_buffer=0.5, filter="refill", max_rounds=2)
    batch = learner.estimate_advantages(
        rollout_of(learner, [(PROMPTS[0], [[3, EOS], [3] * 3, [3] * 4 + [EOS], [3] * 6])])
    )
    shaped = torch.tensor([[1.0, 1.0, 1 / 3, 0.0]])
    torch.testing.assert_close(torch.stack([a[0] for a in batch.advantages]), ops.group_advantages(shaped)[0])
    before = clone(learner.model.state_dict())
    with caplog.at_level(logging.WARNING):
        metrics = learner.iterate()
    assert "Nothing to learn from 8 prompts" in caplog.text
    assert metrics["health/empty_batches"] == 1
    assert metrics["sampling/rounds"] == 2
    assert metrics["sampling/groups"] == 0
    assert not [name for name in metrics if name.startswith("losses/")]  # no misleading loss of 0
    assert learner.consumed == 8
    for name, value in learner.model.state_dict().items():
        assert torch.equal(value, before[name])
    caplog.clear()
    assert learner.iterate()["health/empty_batches"] == 1
    assert not caplog.text, "the message is logged once"


@pytest.mark.parametrize(
    ("good", "bad", "penalty"), [(1.0, 0.0, PRESETS["dapo"]["overlong_penalty"]), (1.0, -1.0, 1.0)]
)
def test_a_right_answer_at_the_limit_beats_a_short_wrong_one(make_learner, good, bad, penalty):
    def right(completion_ids, **_):
        return [good if ids[0] == 5 else bad for ids in completion_ids]

    learner = make_learner(reward=right, overlong_buffer=0.5, overlong_penalty=penalty)
    answers = [[5] * 6, [3, EOS], [3] * 6, [5, EOS]]  # long and right, short and wrong, long and wrong, short and right
    batch = learner.estimate_advantages(rollout_of(learner, [(PROMPTS[0], answers)]))
    long_right, short_wrong, long_wrong, short_right = (float(a[0]) for a in batch.advantages)
    assert long_wrong < short_wrong < long_right < short_right


@pytest.mark.parametrize("advantage", ["group", "batch"])
def test_epsilon_is_added_to_the_deviation(make_learner, advantage):
    learner = make_learner(advantage=advantage, advantage_eps=0.5, reward=first)
    rollout = rollout_of(learner, [(PROMPTS[0], [[5, EOS], [3, EOS], [3, EOS], [3, EOS]])])
    batch = learner.estimate_advantages(rollout)
    expected = torch.tensor([0.75, -0.25, -0.25, -0.25]) / (0.5 + 0.5)  # the unbiased deviation of (1, 0, 0, 0) is 0.5
    torch.testing.assert_close(torch.stack([a[0] for a in batch.advantages]), expected)


def test_refilled_batches_are_full_of_signal(make_learner):
    def rare(completion_ids, **_):
        return [float(ids[0] == 5) for ids in completion_ids]

    learner = make_learner(reward=rare, filter="refill", max_rounds=200, budget=1000)
    for _ in range(3):
        rollout, metrics = learner.collect()
        assert len(rollout) == metrics["sampling/groups"] == 4
        assert ops.has_signal(rollout.rewards()).all()
        asked = rollout.answers.prompts
        assert all(asked[i] is asked[i - i % 4] for i in range(16))
    assert learner.consumed > 12  # more than the prompts in the batches
    short = make_learner(reward=rare, filter="refill", max_rounds=1)
    found = [short.collect() for _ in range(5)]
    assert all(len(rollout) == metrics["sampling/groups"] for rollout, metrics in found)
    assert min(len(rollout) for rollout, _ in found) < 4
    assert short.consumed == 20


@pytest.mark.parametrize(("budget", "asked"), [(4, 4), (6, 6), (9, 9)])
def test_refilling_ends_with_the_budget_and_a_batch_has_at_least_one_round(make_learner, budget, asked):
    learner = make_learner(
        reward=lambda completion_ids, **_: [0.0] * len(completion_ids), filter="refill", budget=budget
    )
    rollout, metrics = learner.collect()
    assert (len(rollout), learner.consumed) == (0, asked)
    assert metrics["sampling/rounds"] == -(-budget // 4)
    learner.sampler.asked = budget - 1
    learner.collect()
    assert learner.consumed == budget + 3


@pytest.mark.parametrize("values", [{"filter": "drop"}, {"filter": "refill", "max_rounds": 2}])
def test_a_batch_without_signal_has_the_metrics_of_its_rewards(make_learner, values):
    def alike(completion_ids, log_metric, **_):
        log_metric("answers", len(completion_ids))
        return [0.0] * len(completion_ids)

    metrics = make_learner(reward=alike, **values).iterate()
    assert (metrics["sampling/groups"], metrics["health/empty_batches"], metrics["answers"]) == (0, 1, 16)


@pytest.mark.parametrize("weights", ["sequence_mean", "constant"])
def test_dropping_groups_is_upweighting_the_others(make_learner, weights):
    groups = [(p, [[5, 3, EOS], [4, EOS], [5, EOS], [3, EOS]]) for p in PROMPTS[:3]]
    groups.append((PROMPTS[3], [[3, EOS], [4, EOS], [7, EOS], [3, 4, EOS]]))  # all rewards are 0
    learner = make_learner(loss_aggregation=weights, filter="drop")
    rollout = rollout_of(learner, groups)
    assert learner.signal(rollout).tolist() == [True, True, True, False]
    kept = rollout.take([0, 1, 2])
    close(
        gradient(learner, learner.estimate_advantages(kept)),
        4 / 3 * gradient(learner, learner.estimate_advantages(rollout)),
        1e-5,
    )


# --- invariances and checks of the first step


@pytest.mark.parametrize("preset", ["grpo", "dapo", "gspo"])
def test_micro_batches_and_the_order_of_groups_change_nothing(make_learner, preset):
    values = dict(PRESETS[preset]) | {"num_generations": 4, "num_minibatches": 1, "filter": "none"}
    learner = make_learner(**values)
    rollout, _ = learner.collect()
    whole = gradient(learner, learner.estimate_advantages(rollout))
    close(gradient(learner, learner.estimate_advantages(rollout.take([2, 0, 3, 1]))), whole, 1e-4)
    for tokens in (1, 17, 40):
        parts = make_learner(micro_batch_tokens=tokens, **values)
        close(gradient(parts, parts.estimate_advantages(rollout)), whole, 1e-4)


@pytest.mark.parametrize(
    "values", [{}, {"num_minibatches": 4}, {"num_minibatches": 2, "num_iterations": 2, "micro_batch_tokens": 20}]
)
def test_the_first_ratios_are_exactly_1(make_learner, values):
    learner = make_learner(beta=0.1, **values)
    rollout, _ = learner.collect()
    ratios = []
    inner = learner._step

    def step(*arguments):
        report, seen = inner(*arguments)
        ratios.append(torch.cat([part.ratios for part in seen]))
        return report, seen

    learner._step = step
    metrics = learner.update(learner.estimate_advantages(rollout), began=0)
    assert (ratios[0] == 0).all()
    assert all((later != 0).any() for later in ratios[1:])
    assert float(metrics["sampling/sampling_logp_difference/max"]) < 1e-4


def test_an_engine_with_other_weights_is_noticed(make_learner, make_model):
    learner = make_learner(engine=NativeEngine(make_model(vocab_size=8, seed=7)))
    with pytest.raises(ValueError, match="it has other weights, another temperature or another precision"):
        learner.iterate()


def test_a_model_that_is_not_deterministic_is_noticed(make_learner, make_model):
    model, generator = make_model(vocab_size=8), torch.Generator().manual_seed(0)
    noise = lambda module, arguments, found: found + 1e-3 * torch.randn(found.shape, generator=generator)  # noqa: E731
    learner = make_learner(model=model)
    model.network.model.norm.register_forward_hook(noise)
    with pytest.raises(ValueError, match="ratio should be exactly 1"):
        learner.iterate()


def test_a_temperature_is_that_of_sampler_trainer_and_reference(make_learner):
    learner = make_learner(temperature=1.7, beta=0.1)
    metrics = learner.iterate()
    assert float(metrics["sampling/sampling_logp_difference/max"]) < 1e-4
    assert float(metrics["kl"]) == pytest.approx(0, abs=1e-6)


def test_bfloat16(make_learner, make_model):
    model = make_model(vocab_size=8, dtype=torch.bfloat16)
    learner = make_learner(model=model, beta=0.1, num_minibatches=2)
    for _ in range(3):
        metrics = learner.iterate()
        assert math.isfinite(float(metrics["losses/gradient_norm"]))
    assert learner.stepper.steps == 6


def test_the_schedule_follows_the_prompts_within_a_batch(make_learner):
    learner = make_learner(num_minibatches=2)
    notes = record(learner)
    learner.iterate()
    learner.iterate()
    assert [progress for _, _, progress in notes] == pytest.approx([0.01, 0.03, 0.05, 0.07])


@pytest.mark.parametrize(("budget", "expected"), [(8, [1 / 8, 3 / 8, 5 / 8, 7 / 8]), (5, [1 / 8, 3 / 8, 5 / 8, 7 / 8])])
def test_the_schedule_ends_with_the_last_whole_batch(make_learner, budget, expected):
    learner = make_learner(num_minibatches=2, budget=budget)
    notes = record(learner)
    while learner.consumed < budget:
        learner.iterate()
    assert [progress for _, _, progress in notes] == pytest.approx(expected)


def test_metrics_have_the_usual_names(make_learner):
    plain, held = make_learner().iterate(), make_learner(beta=0.1).iterate()
    assert {"reward", "reward_std", "rewards/varied/mean", "completions/clipped_ratio", "entropy"} <= plain.keys()
    assert {"frac_reward_zero_std", "num_tokens", "clip_ratio/low_mean", "losses/policy"} <= plain.keys()
    assert held.keys() - plain.keys() == {"kl", "losses/kl"}
    assert all(math.isfinite(float(value)) for value in held.values())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_generations": 1}, "num_generations"),
        ({"num_minibatches": 5, "prompts_per_batch": 4}, "num_minibatches"),
        ({"supervision": "process", "advantage": "mean"}, "needs advantage=group"),
        ({"supervision": "process", "overlong_buffer": 0.2}, "overlong_buffer=0"),
        ({"overlong_penalty": 0.0}, "overlong_penalty"),
        ({"advantage_eps": -1e-4}, "advantage_eps"),
        ({"beta": 0.1, "kl_estimator": "k1", "kl_weighted": False}, "expected gradient of 0"),
        ({"beta": 0.1, "kl_estimator": "k2", "kl_weighted": True}, "gradient of no divergence: leave out kl_weighted"),
        ({"dual_clip": 0.5}, "dual_clip"),
        ({"filter": "maybe"}, "filter"),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        GRPOConfig(**values)


def test_process_supervision_needs_rewards_of_steps(make_learner):
    with pytest.raises(ValueError, match="a task with rewards of steps, or a process reward model"):
        make_learner(supervision="process")


# --- reset, resume, learning


def test_a_reset_renews_the_reference_and_forgets_the_moments(make_learner):
    learner = make_learner(beta=0.1, ref_reset_interval=2)
    learner.iterate()
    learner.iterate()
    state = learner.state_dict()
    for name, value in state["reference"]["parameters"].items():
        assert torch.equal(value, state["model"][name])
    assert state["optimizer"]["moments"] == {}
    notes = record(learner)
    rollout, _ = learner.collect()
    assert float(learner.update(learner.estimate_advantages(rollout), began=0)["kl"]) == pytest.approx(0, abs=1e-6)
    ((_, before, _),) = notes
    moved = max(float((p.detach() - before[n]).abs().max()) for n, p in learner.model.trained().items())
    assert moved == pytest.approx(0.01, rel=0.01)  # the first step of Adam has the length of the step size


RUNS = {
    "grpo": PRESETS["grpo"],
    "dapo": PRESETS["dapo"] | {"num_generations": 4, "num_minibatches": 4},
    "prorl": PRESETS["prorl"] | {"num_generations": 4, "ref_reset_interval": 2},
    "epochs": {"num_iterations": 2, "num_minibatches": 2, "statistics": 1},
}


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    return one == other


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("after", [1, 2, 3])
def test_resume_is_exact(make_learner, make_model, name, after):
    whole = make_learner(**RUNS[name])
    for _ in range(after):
        whole.iterate()
    state = clone(whole.state_dict())
    again = make_learner(model=make_model(vocab_size=8, seed=9), **RUNS[name])
    again.load_state_dict(state)
    assert equal(again.state_dict(), state)
    assert again.sampler.version == again.sampler.engine.version == after
    for _ in range(2):
        one, other = whole.iterate(), again.iterate()
        assert {k: repr(float(v)) for k, v in one.items()} == {k: repr(float(v)) for k, v in other.items()}  # NaN, too
    assert equal(whole.state_dict(), again.state_dict())


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_learns(make_learner, preset):
    def fives(completion_ids, **_):
        return [ids.count(5) / 6 for ids in completion_ids]

    values = dict(PRESETS[preset]) | {
        "num_minibatches": 2,
        "num_generations": 8,
        "prompts_per_batch": 6,
        "learning_rate": 2e-2,
        "ref_reset_interval": 0,
    }
    learner = make_learner(reward=fives, **values | {"overlong_buffer": 0.0, "max_grad_norm": 1.0})
    rewards = [float(learner.iterate()["reward"]) for _ in range(16)]
    assert rewards[0] < 0.3
    assert max(rewards[-5:]) > 0.8, rewards


@pytest.mark.parametrize("values", [{}, {"num_iterations": 2, "num_minibatches": 2}, {"micro_batch_tokens": 1}])
def test_the_kl_of_a_batch_is_measured_after_its_updates_even_with_one_step(make_learner, values):
    small = float(make_learner(learning_rate=1e-4, **values).iterate()["policy/kl_old"])
    large = float(make_learner(learning_rate=3e-2, **values).iterate()["policy/kl_old"])
    assert 0 < small < large / 50


OWN = """
from operant import ops


def tokens(new, old, advantages, batch, config):
    low, high = config.clip_range
    return ops.clipped_surrogate(new, old, advantages, clip_low=low, clip_high=high)


def group(rewards):
    deviations = rewards - rewards.mean(1, keepdim=True)
    return deviations / (rewards.std(1, keepdim=True) + 1e-4)


def total(new, old, advantages, batch, config):
    return tokens(new, old, advantages, batch, config).sum()
"""


def test_a_custom_objective_and_advantage_replace_the_built_in_ones(make_learner, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    built_in = make_learner()
    own = make_learner(advantage=f"{tmp_path / 'mine.py'}:group", objective=f"{tmp_path / 'mine.py'}:tokens")
    for learner in (built_in, own):
        learner.iterate()
    for name, tensor in built_in.model.state_dict().items():
        torch.testing.assert_close(own.model.state_dict()[name], tensor)
    with pytest.raises(ValueError, match=r"mine\.py:total must return the losses of \d+ tokens, a tensor of shape"):
        make_learner(objective=f"{tmp_path / 'mine.py'}:total").iterate()
    with pytest.raises(ValueError, match=r"advantage must be group, .* or a custom function, path/to/file\.py:name"):
        make_learner(advantage="median")


# --- shards


@pytest.mark.parametrize("weights", ["token_mean", "sequence_mean", "constant"])
def test_shards_have_the_gradient_of_the_whole_batch(make_learner, weights):
    values = {"loss_aggregation": weights, "beta": 0.1, "mask_truncated_completions": True}
    whole, parts = make_learner(**values), make_learner(**values, shards=Shards(4, Alone()))
    rollout, _ = whole.collect()
    batch = whole.estimate_advantages(rollout)
    assert 0 < int(batch.counts.sum()) < len(batch.counts), "some answers do not count"
    close(gradient(parts, batch), gradient(whole, batch), 1e-5)


@pytest.mark.parametrize(
    "values",
    [
        *({"filter": "refill", **PRESETS[name], "num_generations": 4, "num_minibatches": 2} for name in PRESETS),
        {"num_iterations": 2, "num_minibatches": 3, "statistics": 2, "filter": "drop"},
    ],
    ids=[*PRESETS, "several epochs"],
)
def test_the_number_of_processes_changes_no_bit_of_what_is_learned(make_learner, make_model, values):
    def learned(group, models):
        learner = make_learner(shards=Shards(4, group), model=models[group.rank], **values)
        reports = [learner.iterate() for _ in range(3)]
        return digest(learner.state_dict()), digest({"metrics": [clone(report) for report in reports]})

    alone = learned(Alone(), [make_model(vocab_size=8)])
    for size in (2, 3):
        models = [make_model(vocab_size=8) for _ in range(size)]
        assert {*team(size, lambda rank, models=models: learned(rank, models))} == {alone}


def test_a_run_continues_exactly_on_another_number_of_processes(make_learner, make_model):
    models = [make_model(vocab_size=8) for _ in range(8)]

    def learner_of(group):
        return make_learner(shards=Shards(4, group), beta=0.1, model=models.pop())

    def begun(group):
        learner = learner_of(group)
        learner.iterate()
        return clone(learner.state_dict())

    saved = team(4, begun)[0]

    def resumed(group):
        learner = learner_of(group)
        learner.load_state_dict(saved)
        learner.iterate()
        return digest(learner.state_dict())

    whole = learner_of(Alone())
    whole.iterate()
    whole.iterate()
    assert {*team(2, resumed), resumed(Alone())} == {digest(whole.state_dict())}
