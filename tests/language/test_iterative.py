"""Iterative GRPO: comparisons of the newest answers, replay, new references, resume, and learning."""

import json

import pytest
import torch

from operant import api
from operant.language.engines.native import NativeEngine
from operant.language.examples import Pair, Prompt
from operant.language.iterative import Companions, IterativeGRPO, IterativeGRPOConfig, companions, reward_run
from operant.language.models import LanguageModel
from operant.language.preferences.annotator import SimulatedAnnotator
from operant.language.reward_model import RewardModel, RewardModelConfig
from operant.language.rewards import combine
from operant.language.scoring import RewardModelFunction
from operant.language.tokenizer import decode
from operant.language.verifiers import find
from operant.runtime.run import Run
from operant.runtime.settings import Settings
from operant.state import clone

PROMPTS = [Prompt([1, 40 + i], {"prompt": chr(61 + i), "extra": i}) for i in range(6)]
OLD = [Pair([1, 50 + i], [60, 2], [61, 62, 2]) for i in range(8)]


def early(prompts, completions, completion_ids, **_):
    """Return the share of characters in the first half of the alphabet."""
    return [sum(c < "O" for c in text) / max(len(text), 1) for text in completions]


@pytest.fixture(autouse=True)
def same_networks():
    """Seed the global generator, from which transformers draws initial weights, so that tests are independent."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def make_learner(make_model):
    def make(*, temperature=0.0, history=OLD, seed=0, **values):
        model, other = make_model(seed=seed), make_model(seed=seed + 50)
        reward = RewardModel(RewardModelConfig(learning_rate=3e-3), other, [], seed=0, budget=100)
        others = Companions(reward, SimulatedAnnotator(early, temperature=temperature), list(history))
        scorer = RewardModelFunction(reward.scorer, process=False, separator="\n")
        config = IterativeGRPOConfig(
            **{
                "learning_rate": 1e-3,
                "prompts_per_batch": 4,
                "num_generations": 4,
                "ref_reset_interval": 2,
                "reward_batch_size": 4,
            }
            | values
        )
        options = {"max_tokens": 6, "seed": 0, "budget": 400, "others": others}
        return IterativeGRPO(config, model, NativeEngine(model), PROMPTS, combine([scorer]), **options)

    return make


def test_an_iteration_renews_the_reference_and_trains_the_reward_model(make_learner):
    learner = make_learner(replay=0.2)
    start = clone(learner.reward.state_dict())
    learner.iterate()
    assert len(learner.newest) == 4  # one comparison per prompt
    assert torch.equal(learner.reward.state_dict()["head"]["weight"], start["head"]["weight"])
    metrics = learner.iterate()
    assert metrics["reward_model/comparisons"] == 8
    assert metrics["reward_model/replayed"] == 2  # 2 of 10 are old
    assert metrics["reward_model/accuracy_before"] == 0.5  # all scores were 0
    assert metrics["reward_model/accuracy"] > 0.5
    assert (len(learner.newest), len(learner.labeled)) == (0, 8)
    assert not torch.equal(learner.reward.state_dict()["head"]["weight"], start["head"]["weight"])
    state = learner.grpo.state_dict()
    assert all(torch.equal(v, state["model"][n]) for n, v in state["reference"]["parameters"].items())
    assert learner.reward.consumed == 10


@pytest.mark.parametrize(("replay", "count"), [(0.0, 0), (0.1, 1), (0.5, 8), (0.9, 8)])
def test_the_share_of_older_comparisons(make_learner, replay, count):
    learner = make_learner(replay=replay)
    learner.newest = [Pair([1, 70], [70 + i, 2], [80 + i, 2]) for i in range(8)]
    assert learner.retrain()["reward_model/replayed"] == count  # there are at most 8 older ones


def test_the_replay_grows_with_the_labels(make_learner):
    learner = make_learner(replay=0.5, history=[])
    found = [learner.iterate() for _ in range(6)]
    assert not any("reward_model/replayed" in metrics for metrics in found[::2])
    new = [metrics["reward_model/comparisons"] for metrics in found[1::2]]
    assert [metrics["reward_model/replayed"] for metrics in found[1::2]] == [0, min(new[0], new[1]), new[2]]
    assert min(new) > 4
    assert len(learner.labeled) == sum(new)


def test_comparisons_are_the_annotators_and_of_the_answers_themselves(make_learner):
    learner = make_learner()
    answers = {
        "prompts": ["="] * 3,
        "completions": ["Az", "Az", "AB"],
        "completion_ids": [[36, 93, 2], [36, 93, 2], [36, 37, 2]],
        "prompt_ids": [[1, 32]] * 3,
        "truncated": [False] * 3,
        "extra": [7] * 3,
    }
    assert learner.compare(answers) == Pair([1, 32], [36, 37, 2], [36, 93, 2])
    alike = answers | {"completions": ["Az"] * 3}
    assert learner.compare(alike) is None
    tied = answers | {"completions": ["AB", "BA", "AA"]}
    assert learner.compare(tied) is None


def test_the_annotator_sees_the_columns_of_the_row(make_learner):
    learner, seen = make_learner(), []

    def reward(prompts, completions, completion_ids, **columns):
        seen.append(columns)
        return [0.0, 1.0]

    learner.annotator = SimulatedAnnotator(reward, temperature=0.0)
    learner.iterate()
    assert {columns["extra"][0] for columns in seen} <= set(range(6))
    assert all(set(columns) == {"extra", "prompt_ids", "truncated", "trainer_state"} for columns in seen)
    learner.iterate()
    states = [columns["trainer_state"] for columns in seen]
    assert [(state["global_step"], state["max_steps"]) for state in states] == [(0, 100)] * 4 + [(1, 100)] * 4


@pytest.mark.parametrize("name", ["length:target=2", "soft-overlong:buffer=6"])
def test_the_annotator_may_count_the_tokens_of_the_answers(make_learner, name):
    learner = make_learner()
    known = combine([find(name, max_completion_length=6)])
    learner.annotator = SimulatedAnnotator(lambda **given: known(**given).total.tolist(), temperature=0.0)
    answers = {"prompts": ["="] * 2, "completions": ["Az", "B"], "completion_ids": [[36, 93, 2], [37, 2]]}
    given = answers | {"prompt_ids": [[1, 32]] * 2, "truncated": [False] * 2}
    assert learner.compare(given) == Pair([1, 32], [37, 2], [36, 93, 2])


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    return one == other


@pytest.mark.parametrize("after", [1, 2, 3])
def test_resume_is_exact(make_learner, after):
    whole = make_learner(temperature=1.0)
    for _ in range(after):
        whole.iterate()
    state = clone(whole.state_dict())
    again = make_learner(temperature=1.0, seed=3)
    again.load_state_dict(state)
    for _ in range(3):
        whole.iterate()
        again.iterate()
    assert equal(whole.state_dict(), again.state_dict())


def test_it_learns_what_the_annotator_likes_from_a_reward_model_that_knows_nothing(make_learner):
    learner = make_learner(prompts_per_batch=6, num_generations=6, learning_rate=1e-2, beta=0.0, filter="none")
    liked = []
    inner = learner.grpo.sampler.rewards

    def noted(**given):
        liked.append(sum(early(given["prompts"], given["completions"], [])) / len(given["completions"]))
        return inner(**given)

    learner.grpo.sampler.rewards = noted
    for _ in range(40):
        learner.iterate()
    assert sum(liked[:4]) / 4 < 0.6
    assert sum(liked[-4:]) / 4 > 0.85, liked


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ref_reset_interval": 0}, "ref_reset_interval"),
        ({"replay": 1.0}, "replay"),
        ({"supervision": "process"}, "supervision=outcome"),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        IterativeGRPOConfig(**values)


def test_another_vocabulary_is_rejected(make_learner, make_model, words):
    learner, network = make_learner(), make_model(vocab_size=400).network
    other = LanguageModel(network, words, stop=frozenset({2}))
    reward = RewardModel(RewardModelConfig(), other, [], seed=0, budget=1)
    others = Companions(reward, learner.annotator, [])
    with pytest.raises(ValueError, match="another vocabulary than the policy"):
        IterativeGRPO(learner.config, learner.model, None, PROMPTS, None, max_tokens=4, seed=0, budget=1, others=others)


def test_a_run_from_a_reward_model_of_a_run(tmp_path):
    common = {"train_examples": 16, "held_out": 2, "progress": "silent", "max_completion_length": 12}
    api.train("reward-model", "preference", budget=32, run=tmp_path / "rm", batch_size=8, **common)
    with pytest.raises(ValueError, match="--reward-model RUN"):
        api.train("iterative-grpo", "preference", budget=8, run=tmp_path / "none", **common)
    values = {
        "prompts_per_batch": 4,
        "num_generations": 3,
        "ref_reset_interval": 2,
        "reward_model": str(tmp_path / "rm"),
        "replay": 0.5,
    }
    trained = api.train("iterative-grpo", "preference", budget=16, run=tmp_path / "run", **values, **common)
    (learner,) = trained.experiment.learner.learners
    assert len(learner.labeled) == 16
    assert max(len(side) for pair in learner.history for side in (pair.chosen, pair.rejected)) == 12
    assert len(trained.evaluate(2).scores) == 1
    with pytest.raises(ValueError, match="is a run of iterative-grpo"):
        reward_run(str(tmp_path / "run"))
    with pytest.raises(ValueError, match="for the simulated annotator"):
        companions(learner.config, [], None, limits={}, seed=0, budget=1, device="cpu")


def test_a_reward_model_of_rankings_continues_with_their_best_and_worst(tmp_path):
    rows = [
        {"prompt": f"{word} ", "completions": ["best", "good", "bad"]} for word in ("owl", "fox", "cat", "dog", "ant")
    ]
    (tmp_path / "rankings.jsonl").write_text("\n".join(map(json.dumps, rows)))
    common = {"held_out": 1, "progress": "silent", "max_completion_length": 12}
    api.train("reward-model", str(tmp_path / "rankings.jsonl"), budget=8, run=tmp_path / "rm", batch_size=4, **common)
    values = {"prompts_per_batch": 4, "num_generations": 2, "reward_model": str(tmp_path / "rm"), "train_examples": 8}
    trained = api.train("iterative-grpo", "preference", budget=4, run=tmp_path / "run", **values, **common)
    (learner,) = trained.experiment.learner.learners
    sides = {tuple(decode(learner.model.tokenizer, side) for side in (p.chosen, p.rejected)) for p in learner.history}
    assert sides == {("best", "bad")}


def test_a_reward_model_of_steps_is_rejected(tmp_path):
    run = Run.create(tmp_path / "rm", Settings("reward-model", "steps"), RewardModelConfig(supervision="process"))
    with pytest.raises(ValueError, match=r"a process reward model, .* with supervision=outcome"):
        reward_run(str(run.path))
