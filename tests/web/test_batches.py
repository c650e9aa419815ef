import json

import pytest
import torch

from operant import api, ops
from operant.build import reassemble
from operant.runtime.encoding import digest
from operant.runtime.ledger import read_ledger
from operant.runtime.run import Run
from operant.web import batches, explorables, travel
from operant.web.explorables import ROLLOUT, SAMPLES
from operant.web.workers import NotFoundError

EVERY = 128
SMALL = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "hidden_sizes": (8,)}
WORDS = {"train_examples": 24, "held_out": 2, "prompts_per_batch": 4, "num_generations": 4, "evaluate_every": 4}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with a run of PPO, one of GRPO, and one without batches."""
    path = tmp_path_factory.mktemp("batches") / "runs"
    silent = {"progress": "silent"}
    api.train("ppo", "CartPole-v1", seeds=2, budget=1024, run=path / "ppo", keep_checkpoints=4, **SMALL, **silent)
    api.train("grpo", "arithmetic", seeds=2, budget=8, run=path / "words", num_iterations=2, **WORDS, **silent)
    api.train("q-learning", "FrozenLake-v1", seeds=1, budget=100, run=path / "lake", **silent)
    return path


def batch(runs, run, at=None, **which):
    answer = batches.batch(runs, run, at, **which)
    while not answer["done"]:
        answer = batches.batch(runs, run, answer["at"], **which)
    return answer


def learner_at(path, at):
    learner = reassemble(Run.open(path), remote_code=False).learner
    while learner.consumed < at:
        learner.iterate()
    return learner


def test_runs_with_batches_are_listed(runs):
    assert batches.index(runs) == {"runs": ["ppo", "words"]}


def test_the_batch_of_an_update_is_that_of_the_training(runs):
    found = batch(runs, "ppo", 3 * EVERY)
    assert (found["at"], found["end"], found["every"], found["samples"]) == (3 * EVERY, 1024 - EVERY, EVERY, EVERY)
    before, after = (learner_at(runs / "ppo", at) for at in (3 * EVERY, 4 * EVERY))
    rollout = before.agent.collect(32)
    samples = before.estimate_advantages(rollout)
    networks, head = after.agent.networks, after.agent.head
    log_probs = head.log_prob(networks.policy(samples.obs), networks.free, samples.actions)
    assert found["log_probs"] == log_probs[0].tolist()
    assert found["old_log_probs"] == samples.old_log_probs[0].tolist()
    assert found["advantages"] == samples.standardized().advantages[0].tolist()
    assert found["log_probs"] != found["old_log_probs"]
    assert found["rollout"]["rewards"] == rollout.rewards[:, 0, 0].tolist()
    assert set(found["rollout"]) == set(ROLLOUT)


def test_seed_and_environment_are_chosen(runs):
    found = batch(runs, "ppo", 3 * EVERY, seed=1, environment=2)
    assert (found["seeds"], found["seed"], found["environments"], found["environment"]) == ([0, 1], 1, 4, 2)
    learner = learner_at(runs / "ppo", 3 * EVERY)
    rollout = learner.agent.collect(32)
    samples = learner.estimate_advantages(rollout)
    assert found["old_log_probs"] == samples.old_log_probs[1].tolist()
    assert found["rollout"]["terminated"] == rollout.terminated[:, 1, 2].tolist()
    assert found["old_log_probs"] != batch(runs, "ppo", 3 * EVERY)["old_log_probs"]
    assert batch(runs, "ppo", 3 * EVERY, environment=99)["environment"] == 3
    words = batch(runs, "words", seed=1)
    assert (words["seeds"], words["seed"], words["environments"]) == ([0, 1], 1, 0)
    ratios = read_ledger(runs / "words", words["at"], 1).columns["ratio"]
    assert words["samples"] == len(ratios)


def test_a_seed_that_was_not_trained_is_an_error(runs):
    for run in ("ppo", "words"):
        with pytest.raises(ValueError, match="seed must be one of 0, 1, got 7"):
            batches.batch(runs, run, seed=7)


def test_the_rollout_gives_the_advantages_of_the_training(runs):
    found = batch(runs, "ppo", 3 * EVERY)
    learner = learner_at(runs / "ppo", 3 * EVERY)
    raw = learner.estimate_advantages(learner.agent.collect(32)).advantages[0].view(32, 4)[:, 0]
    (curve, *_) = explorables.draw(None, "lambda", {"gamma": 0.99, "lam": learner.config.gae_lambda}, found["rollout"])[
        "curves"
    ]
    assert curve["y"] == pytest.approx(raw.tolist(), abs=1e-4)


def test_a_look_at_a_batch_leaves_the_run_where_it_was(runs):
    batch(runs, "ppo", 3 * EVERY)
    arrived = travel.go(runs, "ppo", 3 * EVERY)
    assert (arrived["done"], arrived["origin"]) == (True, "here")
    assert arrived["sha256"] == digest(learner_at(runs / "ppo", 3 * EVERY).state_dict())


def test_the_last_update_comes_first(runs):
    assert batch(runs, "ppo")["at"] == batch(runs, "ppo", 10**9)["at"] == 1024 - EVERY


def test_the_batch_of_a_language_model_is_its_ledger(runs):
    found = batch(runs, "words")
    ledger = read_ledger(runs / "words", found["at"], 0)
    count = len(ledger.columns["ratio"])
    assert (found["samples"], found["rollout"], len(found["log_probs"])) == (count, None, min(count, 400))
    ratios = torch.tensor(found["log_probs"], dtype=torch.float64).exp()
    assert set(ratios.float().tolist()) <= set(ledger.columns["ratio"].tolist())
    assert batch(runs, "words", 0)["at"] == 4


def test_dots_are_on_the_curves_of_their_signs():
    given = {"log_probs": [0.0, 0.5, -0.5, 0.1], "old_log_probs": [0.0] * 4, "advantages": [2.0, 0.3, -1.0, 0.0]}
    found = explorables.draw(None, "clip", {"epsilon": 0.2, "epsilon_high": 0.3}, given)
    raised, lowered = found["dots"]
    assert (raised["x"], lowered["x"]) == (pytest.approx([1.0, torch.e**0.5]), pytest.approx([torch.e**-0.5]))
    assert (raised["y"], lowered["y"]) == (pytest.approx([1.0, 1.3]), pytest.approx([-0.8]))
    assert found["facts"]["ratios beyond the range"] == 0.5
    new, old = (torch.tensor(given[name]) for name in SAMPLES[:2])
    assert found["facts"]["KL of the update, nats"] == pytest.approx(float(ops.approximate_kl(new, old)))
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "given",
    [{}, {"log_probs": "x"}, {"log_probs": [[1.0]]}, {"log_probs": [1.0, 2.0]}, {"log_probs": [float("inf")]}],
    ids=["none", "text", "nested", "lengths", "Inf"],
)
def test_columns_that_are_no_batch_are_an_error(given):
    whole = {"old_log_probs": [0.0], "advantages": [1.0]}
    with pytest.raises(ValueError, match="batch"):
        explorables.draw(None, "clip", {}, whole | given)


def test_runs_without_batches_are_an_error(runs):
    with pytest.raises(ValueError, match="lake has no batches"):
        batches.batch(runs, "lake")
    with pytest.raises(NotFoundError):
        batches.batch(runs, "../x")
