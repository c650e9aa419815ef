"""RLHF with PPO: a dense twin of loss and gradient, the closed form of its optimum, invariances, resume, learning."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from operant import api, ops
from operant.language import models
from operant.language.configs import ModelOptions
from operant.language.critic import Critic
from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Completion
from operant.language.examples import Prompt
from operant.language.packing import Sample, pack
from operant.language.rewards import Rewards, combine
from operant.language.rlhf import PRESETS, RLHF, RLHFConfig
from operant.language.rollouts import Answers, Rollout
from operant.state import clone

EOS = 2
PROMPTS = [Prompt([1, 10 + i], {"prompt": chr(65 + i)}) for i in range(6)]
ANSWERS = [([20, 21, 22, EOS], False), ([23], True), ([24, EOS], False), ([20, 25, 26, 27, 28], True)]
SCORES = [1.0, -0.5, 0.25, 2.0]


def count_letter(prompts, completions, completion_ids, **_):
    return [sum(token in range(20, 60) for token in ids) / 4 for ids in completion_ids]


def learner(model, *, own=None, rewards=count_letter, asked=PROMPTS, max_tokens=5, budget=60, seed=0, **values):
    config = RLHFConfig(**({"learning_rate": 3e-3, "prompts_per_batch": 6} | values))
    critic = own or (Critic.sharing(model) if config.critic == "shared" else Critic.copy_of(model))
    engine = NativeEngine(model)
    limits = {"max_tokens": max_tokens, "seed": seed, "budget": budget}
    return RLHF(config, model, engine, asked, combine([rewards]), critic=critic, **limits)


def rollout(order=range(4), scores=SCORES):
    """Return four answers to four prompts as sampled ones; their log-probabilities are arbitrary."""
    table = torch.tensor([scores[i] for i in order]).unsqueeze(1)
    completions = [Completion(ids, [-1.0] * len(ids), cut) for ids, cut in (ANSWERS[i] for i in order)]
    answers = Answers([PROMPTS[i] for i in order], completions, [""] * 4)
    return Rollout(answers, Rewards(table, table.squeeze(1), ~table.squeeze(1).isnan(), ("r",)), 1)


def disturb(module, scale=0.02, seed=5):
    generator = torch.Generator().manual_seed(seed)
    for value in module.trained().values():
        value.data += scale * torch.randn(value.shape, generator=generator, dtype=value.dtype)


def gradients(stepper):
    """Recover the gradient of an optimizer's first step: Adam's first moment is 1 - 0.9 of it."""
    return {name: moments["exp_avg"] / (1 - 0.9) for name, moments in stepper.state_dict()["moments"].items()}


def one_step(model, *, order=range(4), scores=SCORES, moved=True, **values):
    """Take one optimizer step on the four answers, from a policy that differs from both reference and old policy."""
    critic = Critic.sharing(model) if values.get("critic") == "shared" else Critic.copy_of(model)
    quiet = {"importance_sampling_correction": "none", "num_iterations": 1, "max_grad_norm": 1e9, "critic_warmup": 0}
    found = learner(model, own=critic, **(quiet | values))
    disturb(critic, 0.1, seed=1)
    disturb(model, 0.02, seed=2)  # now the reference is another policy
    found.iterations = 3
    batch, judged = found.estimate_advantages(rollout(order, scores))
    if moved:
        disturb(model, 0.02, seed=3)  # now the old policy is another one, too
        disturb(critic, 0.02, seed=4)
    return SimpleNamespace(learner=found, batch=batch, judged=judged, metrics=found.update(batch, began=0))


# --- a twin without packing, op by op from the papers


def dense(model, sample, temperature=1.0):
    """Return log-probabilities of a completion and the hidden states of the whole sequence, by plain transformers."""
    ids = torch.tensor([[*sample.prompt, *sample.completion]])
    answer = model.network(input_ids=ids, output_hidden_states=True)
    start = len(sample.prompt)
    logits = answer.logits[0] / temperature
    log_probs = logits.log_softmax(-1)[start - 1 : -1].gather(1, ids[0, start:, None]).squeeze(1)
    return log_probs, answer.hidden_states[-1][0]


def values_of(critic, model, sample):
    trunk = model if critic.trunk is None else critic.trunk
    hidden = dense(trunk, sample)[1]
    states = hidden @ critic.head.weight + critic.head.bias
    return states[len(sample.prompt) - 1 : -1], states[-1]


def padded_gae(rewards, values, last_values, lengths, *, lam):
    """Compute advantages by the sum of residuals, on a padded table whose padding holds arbitrary numbers."""
    longest = max(lengths)
    table = torch.full((len(lengths), longest), 1e9)
    for b, n in enumerate(lengths):
        following = [*values[b][1:].tolist(), last_values[b]]
        deltas = [float(rewards[b][t]) + following[t] - float(values[b][t]) for t in range(n)]
        for t in range(n):
            table[b, t] = sum(lam**k * deltas[t + k] for k in range(n - t))
    return table


def twin(make_model, config, *, bootstrap):
    """Compute the loss and its gradients with respect to policy and critic, from scratch."""
    model = make_model()
    reference = make_model()
    critic = Critic.sharing(model) if config.critic == "shared" else Critic.copy_of(model)
    disturb(critic, 0.1, seed=1)
    disturb(model, 0.02, seed=2)
    samples = [Sample(PROMPTS[i].prompt, ids) for i, (ids, _) in enumerate(ANSWERS)]
    lengths = [len(s.completion) for s in samples]
    with torch.no_grad():
        old = [dense(model, s)[0] for s in samples]
        ref = [dense(reference, s)[0] for s in samples]
        old_values, last = zip(*(values_of(critic, model, s) for s in samples), strict=True)
    rewards = [-config.beta * (a - b) for a, b in zip(old, ref, strict=True)]
    for row, score in zip(rewards, SCORES, strict=True):
        row[-1] += score
    last_values = [float(v) if cut and bootstrap else 0.0 for v, (_, cut) in zip(last, ANSWERS, strict=True)]
    table = padded_gae(rewards, old_values, last_values, lengths, lam=config.gae_lambda)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    targets = [table[b, :n] + old_values[b] for b, n in enumerate(lengths)]
    live = table[mask]
    advantages = (table - live.mean()) / (live.var() + 1e-8).sqrt()
    disturb(model, 0.02, seed=3)
    disturb(critic, 0.02, seed=4)
    loss = torch.zeros(())
    for b, (sample, n) in enumerate(zip(samples, lengths, strict=True)):
        new, values = dense(model, sample)[0], values_of(critic, model, sample)[0]
        weight = {"token_mean": 1 / sum(lengths), "sequence_mean": 1 / (4 * n), "constant": 1 / (4 * 5)}[
            config.loss_aggregation
        ]
        for t in range(n):
            rho, a = (new[t] - old[b][t]).exp(), advantages[b, t]
            policy = -torch.minimum(rho * a, rho.clamp(1 - config.epsilon, 1 + config.clip_range[1]) * a)
            if config.objective == "penalty":
                policy = -rho * a
            if config.objective != "clip":
                policy = policy + config.kl_coef * (rho - 1 - rho.log())
            value, held = values[t], old_values[b][t]
            near = held + (value - held).clamp(-config.clip_range_vf, config.clip_range_vf)
            error = 0.5 * torch.maximum((value - targets[b][t]) ** 2, (near - targets[b][t]) ** 2)
            loss = loss + weight * (policy + config.vf_coef * error)
    loss.backward()
    return model, critic, table


TWINS = [
    {},
    {"objective": "penalty", "kl_coef": 0.7, "loss_aggregation": "sequence_mean"},
    {"objective": "clip-and-penalty", "kl_coef": 0.3, "loss_aggregation": "constant", "gae_lambda": 0.5},
    {"critic": "shared", "clip_range_vf": 0.05, "epsilon": 0.01, "epsilon_high": 0.02, "beta": 2.0},
    {"bootstrap_truncated": True, "gae_lambda": 1.0},
]


@pytest.mark.parametrize("values", TWINS, ids=str)
def test_loss_and_gradient_are_those_of_a_dense_twin(make_model, values):
    found = one_step(make_model(), **values)
    config = found.learner.config
    model, critic, table = twin(make_model, config, bootstrap=config.bootstrap_truncated)
    lengths = [len(ids) for ids, _ in ANSWERS]
    expected = ops.whiten(torch.cat([row[:n] for row, n in zip(table, lengths, strict=True)]))
    torch.testing.assert_close(torch.cat(found.batch.advantages), expected, rtol=1e-3, atol=1e-4)
    for name, gradient in gradients(found.learner.stepper).items():
        torch.testing.assert_close(gradient, model.trained()[name].grad, rtol=1e-3, atol=2e-6)
    for name, gradient in gradients(found.learner.critic_stepper).items():
        torch.testing.assert_close(gradient, critic.trained()[name].grad, rtol=1e-3, atol=2e-6)
    assert config.epsilon == 0.2 or float(found.metrics["policy/clipfrac_avg"]) > 0


def test_vpg_follows_the_policy_gradient_once(make_model):
    found = one_step(make_model(), step="vpg", moved=False)
    model = make_model()
    disturb(model, 0.02, seed=2)
    packed = pack(found.batch.samples)
    new, _ = model.log_probs(packed)
    advantages = torch.cat(found.batch.advantages)
    (-(new * advantages).mean()).backward()
    for name, gradient in gradients(found.learner.stepper).items():
        torch.testing.assert_close(gradient, model.trained()[name].grad, rtol=1e-3, atol=2e-6)
    assert found.learner.stepper.steps == 1


@pytest.mark.parametrize(
    "values", [{}, {"critic": "shared"}, {"loss_aggregation": "sequence_mean", "objective": "penalty"}]
)
def test_micro_batches_and_the_order_of_answers_change_nothing(make_model, values):
    whole = one_step(make_model(), **values)
    split = one_step(make_model(), micro_batch_tokens=1, **values)
    turned = one_step(make_model(), order=[2, 0, 3, 1], **values)
    for other in (split, turned):
        for which in ("stepper", "critic_stepper"):
            found, expected = gradients(getattr(other.learner, which)), gradients(getattr(whole.learner, which))
            for name, gradient in expected.items():
                torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=2e-6)
        for name in whole.metrics.keys() & {
            "losses/policy",
            "losses/value",
            "policy/approxkl_avg",
            "policy/clipfrac_avg",
        }:
            assert float(other.metrics[name]) == pytest.approx(float(whole.metrics[name]), rel=1e-3, abs=1e-6)


def test_an_answer_without_a_reward_is_left_out(make_model):
    batch, judged = learner(make_model()).estimate_advantages(rollout(scores=[1.0, math.nan, 0.25, 2.0]))
    assert [s.completion for s in batch.samples] == [ANSWERS[i][0] for i in (0, 2, 3)]
    assert float(judged["objective/scores"]) == pytest.approx(3.25 / 3)


def test_a_batch_without_rewards_changes_nothing(make_model, caplog):
    model = make_model()
    found = learner(model, rewards=lambda prompts, **_: [None] * len(prompts))
    before = clone(model.state_dict())
    with pytest.warns(RuntimeWarning, match="no reward function applies"):
        metrics = found.iterate()
    assert metrics["health/empty_batches"] == 1.0
    count = found.config.prompts_per_batch
    assert f"Nothing to learn from {count} prompts: " in caplog.text
    assert f"{count} of {count} answers have no reward: <lambda> returned None" in caplog.text
    caplog.clear()
    assert found.iterate()["health/empty_batches"] == 1.0
    assert not caplog.text, "the message is logged once"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_answer_without_an_end_gets_its_penalty(make_model):
    _, judged = learner(make_model(), missing_eos=-3.0).estimate_advantages(rollout())
    assert float(judged["objective/scores"]) == pytest.approx((1.0 - 3.0 + 0.25 - 3.0) / 4)
    assert float(judged["val/num_eos_tokens"]) == 2


def test_the_value_after_the_end_is_never_used(make_model):
    """An answer's advantages do not change with the value of the state after its end, and of no other state."""
    model = make_model()
    for bootstrap in (False, True):
        found = learner(model, bootstrap_truncated=bootstrap, normalize_advantage="none", gamma=0.9)
        disturb(found.critic, 0.1)
        first = found.estimate_advantages(rollout())[0].advantages
        after = found.critic

        class Shifted:
            head, trunk = after.head, after.trunk

            def __call__(self, packed, hidden=None, critic=after):
                values = critic(packed, hidden)
                return values._replace(after=values.after + 7.0)

        found.critic = Shifted()
        second = found.estimate_advantages(rollout())[0].advantages
        for (_, cut), a, b in zip(ANSWERS, first, second, strict=True):
            assert torch.equal(a, b) == (not (cut and bootstrap))


# --- coefficients


def test_divergence_is_exactly_zero_at_first_and_costs_later(make_model):
    found = learner(make_model(), beta=0.3)
    first = found.iterate()
    assert first["health/empty_batches"] == 0.0
    assert float(first["objective/kl"]) == 0.0
    later = [found.iterate() for _ in range(3)][-1]
    assert float(later["objective/kl"]) != 0.0
    assert float(later["objective/non_score_reward"]) == pytest.approx(-0.3 * float(later["objective/kl"]), rel=1e-5)


def test_the_price_of_divergence_moves_towards_its_target(make_model):
    model = make_model()
    found = learner(model, beta=1.0, beta_target=1e-3, beta_horizon=60)
    found.iterate()
    assert found.beta == pytest.approx(1 - 0.2 * 6 / 60)  # no divergence yet: 20 % too low at most
    disturb(model, 0.3)
    found.iterations = 1
    batch, judged = found.estimate_advantages(rollout())
    kl = float(judged["objective/kl"])
    error = min(max(kl / 1e-3 - 1, -0.2), 0.2)
    assert found.beta == pytest.approx((1 - 0.02) * (1 + error * len(batch.samples) / 60))


def test_the_penalty_is_doubled_after_a_long_step_and_halved_after_a_short_one(make_model):
    for rate, expected in ((0.1, 2.0), (1e-9, 0.5)):
        found = learner(make_model(), objective="penalty", learning_rate=rate, kl_coef_target=1e-3)
        metrics = found.iterate()
        assert float(metrics["policy/kl_coef"]) == 1.0
        assert found.kl_coef == expected
    found = learner(make_model(), objective="penalty", kl_coef_target=None)
    metrics = found.iterate()
    assert found.kl_coef == 1.0
    assert "policy/approxkl_avg" in metrics
    assert "policy/clipfrac_avg" not in metrics, "nothing is clipped"


def test_only_the_critic_learns_while_it_warms_up(make_model):
    model = make_model()
    found = learner(model, critic_warmup=2, beta_target=1.0, critic="shared")
    before = clone(model.state_dict())
    head = found.critic.head.weight.clone()
    for _ in range(2):
        metrics = found.iterate()
    assert "losses/policy" not in metrics
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(found.critic.head.weight, head)
    assert found.beta == 0.05
    found.iterate()
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_learning_rate_of_the_critic_does_not_warm_up(make_model):
    """The first steps of Adam move every parameter by the learning rate."""
    moved = []
    for ratio in (0.0, 0.9):
        found = learner(make_model(), critic_warmup=1, warmup_ratio=ratio, budget=600, weight_decay=0.0)
        head = found.critic.head.weight.clone()
        found.iterate()
        moved.append(found.critic.head.weight - head)
    assert moved[0].abs().max() > 0
    torch.testing.assert_close(moved[1], moved[0])


@pytest.mark.parametrize("budget", [1, 6])
@pytest.mark.parametrize("step", ["ppo", "vpg"])
def test_a_batch_that_uses_the_whole_budget_is_learned_from(step, budget, make_model):
    """A schedule that decays to 0 at the end of the budget is read in the middle of each step's share of it."""
    model = make_model()
    found = learner(model, step=step, budget=budget, lr_schedule="linear", critic_warmup=0)
    before = clone(model.state_dict())
    found.iterate()
    assert found.consumed == 6
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_no_two_seeds_share_the_order_of_minibatches(make_model):
    found = {}
    for seed in range(4):
        one = learner(make_model(), seed=seed, num_minibatches=4)
        for one.iterations in range(4):
            batch, _ = one.estimate_advantages(rollout())
            found[seed, one.iterations] = str([batch.owners[i] for steps in batch.plans[0] for p in steps for i in p])
    assert len(set(found.values())) > 7, "the sum of seed and iteration gives 7 orders"
    assert [found[0, i] for i in (1, 2, 3)] != [found[1, i] for i in (0, 1, 2)]


def test_values_are_regressed_on_the_score_while_the_critic_warms_up(make_model):
    batch, _ = learner(make_model(), critic_warmup=1).estimate_advantages(rollout())
    for targets, score in zip(batch.targets, SCORES, strict=True):
        torch.testing.assert_close(targets, torch.full_like(targets, score))


def test_an_engine_with_other_weights_is_reported_immediately(make_model):
    found = learner(make_model())
    found.sampler.engine = NativeEngine(make_model(seed=1))
    with pytest.raises(ValueError, match="nats off the trainer's before the first step"):
        found.iterate()


# --- the optimum


TWO_TOKENS = [[EOS], *([a, b] for a, b in itertools.product(range(6), repeat=2) if a != EOS)]


def test_it_approaches_the_reference_times_the_exponential_of_the_score(make_model):
    """Use answers of at most two tokens from a vocabulary of six: policy and optimum can be enumerated."""
    model, beta = make_model(vocab_size=6, hidden_size=16), 0.5
    generator = torch.Generator().manual_seed(5)
    score = dict(zip(map(tuple, TWO_TOKENS), torch.randn(len(TWO_TOKENS), generator=generator).tolist(), strict=True))
    prompt = Prompt([1, 3, 4], {"prompt": "x"})
    packed = pack([Sample(prompt.prompt, answer) for answer in TWO_TOKENS])

    def policy():
        with torch.no_grad():
            return ops.segment_sum(model.log_probs(packed)[0], packed.owner, len(TWO_TOKENS))

    assert float(policy().exp().sum()) == pytest.approx(1.0, abs=1e-5)
    scores = torch.tensor([score[tuple(answer)] for answer in TWO_TOKENS])
    optimum = (policy() + scores / beta).log_softmax(0)

    def rewarded(completion_ids, **_):
        return [score[tuple(ids)] for ids in completion_ids]

    def distance():
        return float((policy().exp() * (policy() - optimum)).sum())

    start = distance()
    values = {
        "prompts_per_batch": 1,
        "num_generations": 256,
        "learning_rate": 1e-2,
        "lr_schedule": "linear",
        "beta": beta,
    }
    values |= {"normalize_advantage": "none", "gae_lambda": 1.0, "max_tokens": 2, "budget": 40}
    found = learner(model, rewards=rewarded, asked=[prompt], **values)
    while found.consumed < found.budget:
        found.iterate()
    assert start > 1.0
    assert distance() < 0.05


# --- runs


@pytest.mark.parametrize(
    "values",
    [
        {"num_minibatches": 3, "num_iterations": 2, "beta_target": 0.1, "objective": "clip-and-penalty"},
        {"critic": "shared", "num_generations": 2, "whiten_rewards": True},
        {"step": "trpo", "num_iterations": 1, "critic_warmup": 1},
    ],
    ids=["penalty", "shared", "trpo"],
)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(make_model, values):
    straight = learner(make_model(), **values)
    for _ in range(2):
        straight.iterate()
    state = clone(straight.state_dict())
    other = make_model()
    resumed = learner(other, **values)
    resumed.load_state_dict(state)
    assert resumed.consumed == 12
    assert resumed.sampler.version == resumed.sampler.engine.version == 2
    for _ in range(2):
        expected, found = straight.iterate(), resumed.iterate()
        assert expected.keys() == found.keys()
        assert {n: float(v) for n, v in found.items() if v == v} == {n: float(v) for n, v in expected.items() if v == v}  # noqa: PLR0124
    for name, value in straight.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)
    for name, value in straight.critic.state_dict().items():
        assert torch.equal(resumed.critic.state_dict()[name], value)


def test_coefficients_of_version_0_1_are_read(make_model):
    found = learner(make_model(), beta=0.25, objective="penalty", kl_coef=2.0, kl_coef_target=None)
    assert found.iterate()["objective/beta"] == 0.25
    state = clone(found.state_dict())
    assert state["coefficients"] == {"beta": 0.25, "kl_coef": 2.0}
    found.load_state_dict(state | {"coefficients": {"kl": 0.5, "beta": 3.0}})
    assert (found.beta, found.kl_coef) == (0.5, 3.0)


def test_an_adapted_policy_has_itself_without_the_adapter_for_a_reference(make_network, characters):
    network = make_network()
    model = models.finish(network, characters, ModelOptions(lora_r=2), seed=0)
    found = learner(model, learning_rate=0.05)
    packed = pack([Sample(PROMPTS[0].prompt, [20, 21])])
    start = found.reference.log_probs(packed)
    metrics = [found.iterate() for _ in range(3)]
    assert float(metrics[0]["objective/kl"]) == 0.0
    assert float(metrics[-1]["objective/kl"]) != 0.0
    assert torch.equal(found.reference.log_probs(packed), start)
    with torch.no_grad():
        assert not torch.equal(model.log_probs(packed)[0], start)


@pytest.mark.parametrize("step", ["ppo", "vpg", "trpo"])
def test_it_learns_to_write_what_is_rewarded(make_model, step):
    """40 of 99 tokens are rewarded: random answers get 0.40 per token, 0.5 per answer of 5."""
    values = {"prompts_per_batch": 32, "beta": 0.01, "gae_lambda": 0.95} | (
        {"target_kl": 0.02} if step == "trpo" else {}
    )
    values |= {"learning_rate": 0.02 if step == "vpg" else 3e-3, "critic_learning_rate": 3e-3, "step": step}
    found = learner(make_model(), budget=32 * 12, asked=PROMPTS * 6, **values)
    rewards = []
    while found.consumed < found.budget:
        rewards.append(float(found.iterate()["objective/scores"]))
    assert rewards[0] < 0.65
    assert rewards[-1] > rewards[0] + 0.25


def test_a_whole_run_with_a_reward_model(tmp_path):
    sizes = {"train_examples": 32, "held_out": 4, "progress": "silent"}
    api.train("reward-model", "preference:noise=0", run=tmp_path / "rm", budget=32, batch_size=8, **sizes)
    run = tmp_path / "rlhf"
    values = {
        "reward_model": str(tmp_path / "rm"),
        "max_completion_length": 8,
        "prompts_per_batch": 8,
        "critic_warmup": 1,
        **sizes,
    }
    result = api.train("rlhf", "preference:noise=0", run=run, budget=16, **values)
    (member,) = result.experiment.members
    assert member.learner.critic.trunk.network is not member.learner.model.network
    assert member.learner.critic.head.weight.abs().sum().item() > 0
    assert [len(scores) for scores in result.outcome.evaluation.episode_scores] == [4]
    assert api.load(run).evaluate().mean == result.outcome.evaluation.mean


def test_a_run_that_trains_only_its_critic_gives_a_warning(tmp_path, caplog):
    values = {"prompts_per_batch": 4, "critic_warmup": 1, "train_examples": 4, "held_out": 2, "progress": "silent"}
    api.train("rlhf", "preference", run=tmp_path / "run", budget=4, max_completion_length=4, **values)
    assert "The policy is not trained: the budget of 4 prompts ends within critic_warmup=1" in caplog.text


def test_a_task_needs_something_that_rewards(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{c}"}}\n' for c in "abcdef"), encoding="utf-8")
    with pytest.raises(ValueError, match="there is no reward function: add --rewards or --reward-model"):
        api.train("rlhf", str(rows), run=tmp_path / "run", budget=1, progress="silent")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": "sgd"}, "step must be ppo, vpg or trpo, got 'sgd'"),
        ({"objective": "vpg"}, "objective must be clip, penalty, clip-and-penalty or a custom function, .*, got 'vpg'"),
        ({"beta": -0.1}, r"beta must be in \[0, inf\), got -0.1"),
        ({"num_minibatches": 7}, r"num_minibatches must be in \[1, 6\], got 7"),
        ({"critic": "shared", "step": "vpg"}, "critic=shared needs step=ppo.*--critic copy"),
        ({"beta": 0.0, "beta_target": 6.0}, "beta must be above 0, got 0"),
        ({"beta_target": 6.0, "beta_horizon": 3, "num_generations": 3}, r"beta_horizon must be in \(3.6, inf\), got 3"),
        ({"target_kl": 0.0}, r"target_kl must be in \(0, inf\), got 0.0"),
        ({"kl_coef": 0.05}, r"kl_coef=0.05 has an effect only with .*objective=penalty.*TRL's kl_coef\) is beta"),
        ({"kl_coef": 0.5, "objective": "penalty", "step": "vpg"}, "kl_coef=0.5 has an effect only with step=ppo"),
        ({"kl_coef_target": None}, "kl_coef_target=None has an effect only with .*the target beta_target"),
        ({"target_kl": 6.0}, "target_kl=6.0 has an effect only with step=trpo, got step=ppo .*the target beta_target"),
        ({"ent_coef": 0.1, "step": "trpo"}, "ent_coef=0.1 has an effect only with step=ppo or step=vpg, got step=trpo"),
        ({"objective": "penalty", "step": "vpg"}, "objective=penalty has an effect only with step=ppo, got step=vpg"),
        ({"epsilon": 0.3, "step": "vpg"}, "epsilon=0.3 has an effect only with step=ppo and objective=clip"),
        ({"epsilon_high": 0.3, "objective": "penalty"}, "epsilon_high=0.3 has an effect only with .*objective=clip"),
        ({"cg_damping": 0.1, "step": "vpg"}, "cg_damping=0.1 has an effect only with step=trpo.*leave out cg_damping$"),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        RLHFConfig(**({"prompts_per_batch": 6} | values))


def test_clipped_are_the_tokens_whose_clipped_term_is_the_larger_loss(make_model):
    found = one_step(make_model(), epsilon=0.001)
    batch, (parts,) = found.batch, found.batch.plans[0]
    active = [
        row
        for (_, seen) in found.learner.take_learned().found
        for tokens in seen
        for row in zip(tokens.ratios.exp(), tokens.advantages * tokens.trust, strict=True)
    ]
    share = sum(float(-a * rho.clamp(0.999, 1.001) > -a * rho) for rho, a in active) / len(active)
    assert len(active) == sum(len(batch.old[i]) for part in parts for i in part)
    assert 0 < share < 1
    assert float(found.metrics["policy/clipfrac_avg"]) == pytest.approx(share)
    outside = sum(float(abs(rho - 1) > 0.001) for rho, _ in active) / len(active)
    assert share < outside


def test_options_of_the_chosen_objective_and_step_are_accepted():
    assert RLHFConfig(objective="clip-and-penalty", kl_coef=0.5, kl_coef_target=None).kl_coef == 0.5
    assert RLHFConfig(step="trpo", target_kl=0.02, cg_damping=0.1).target_kl == 0.02
    for preset in PRESETS.values():
        assert RLHFConfig(**preset)


def test_the_kl_of_a_batch_is_measured_after_its_updates(make_model):
    still, moved = (one_step(make_model(), moved=False, learning_rate=rate).metrics for rate in (1e-6, 1e-2))
    assert 0 <= float(still["policy/kl_old"]) < float(moved["policy/kl_old"]) / 50
