"""Uses of reward models: scores of sampled answers, steps in token ids, loading of runs, and errors."""

import pytest
import torch

from operant import api
from operant.language import tasks
from operant.language.best import ModelWeights
from operant.language.configs import ModelOptions
from operant.language.engines.protocol import Completion
from operant.language.examples import Prompt
from operant.language.models import ScalarHead, load
from operant.language.packing import Sample, pack
from operant.language.runs import load_trained
from operant.language.scoring import (
    RewardModelFunction,
    Scorer,
    load_scorer,
    load_step_rewards,
    lowest_log_probs,
    starting_head,
    step_ends,
    step_places,
)
from operant.language.tokenizer import encode_pair, encode_prompt
from operant.runtime.evaluation import Evaluation
from operant.runtime.weights import Best

EOS = 2
SMALL = {"budget": 8, "train_examples": 8, "held_out": 4, "batch_size": 4, "progress": "silent"}


@pytest.fixture(scope="module")
def scorer():
    head = ScalarHead(128)
    head.weight.data.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    head.bias.data.fill_(0.25)
    return Scorer(load(ModelOptions(), seed=0), head)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    api.train("reward-model", "preference", run=folder / "outcome", **SMALL)
    api.train("process-reward-model", "steps", run=folder / "process", **SMALL)
    api.train("sft", "arithmetic", run=folder / "sft", **SMALL)
    return folder


def test_places_are_those_of_the_tokens():
    samples = [Sample([1, 9], [20, 21, 22]), Sample([1, 9], [30, 31]), Sample([1, 8], [40])]
    packed = pack(samples)
    found = step_places(packed, samples, [[0, 2], [1], [0]])
    assert packed.ids[found.ends].tolist() == [20, 22, 31, 40]


def test_scores_do_not_depend_on_the_company(scorer):
    samples = [Sample([1, 9, 10], [20, 21, EOS]), Sample([1, 9, 10], [30, EOS]), Sample([1, 8], [40, 41, 42, EOS])]
    together = scorer.scores(samples)
    alone = torch.cat([scorer.scores([sample]) for sample in samples])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    steps = scorer.step_scores(samples, [[0, 2], [1], [1, 3]], tokens=1)
    torch.testing.assert_close(torch.stack([row[-1] for row in steps]), together, atol=1e-5, rtol=1e-5)
    assert [len(row) for row in steps] == [2, 1, 2]
    assert not together.requires_grad


def test_the_lowest_log_probs_of_steps_are_those_of_their_tokens():
    """Compare with a loop over answers, steps and tokens.

    The second answer shares its beginning with the first, the third only its prompt, and the fourth has no prompt.
    """
    samples = [Sample([1, 9], [20, 21, 22, 23]), Sample([1, 9], [20, 21, 24]), Sample([1, 9], [30, 31])]
    samples.append(Sample([], [50, 51, 52]))
    ends = [[1, 2, 3], [0, 2], [1], [0, 2]]
    packed = pack(samples)
    places = step_places(packed, samples, ends)
    last = [s.completion[end] for s, row in zip(samples, ends, strict=True) for end in row]
    assert packed.ids[places.ends].tolist() == last
    assert places.steps == [3, 2, 1, 2]
    # 11 of 12 tokens: the first token of the last answer has no log-probability
    log_probs = -torch.rand(11, generator=torch.Generator().manual_seed(3))
    rows = [row.tolist() for row in log_probs.split(packed.lengths.tolist())]
    rows[3] = [0.0, *rows[3]]
    expected = []
    for row, places_ in zip(rows, ends, strict=True):
        starts = [0, *(end + 1 for end in places_[:-1])]
        expected += [
            [min(row[start : end + 1]), min(row[: end + 1])] for start, end in zip(starts, places_, strict=True)
        ]
    found = lowest_log_probs(log_probs, places)
    torch.testing.assert_close(found, torch.tensor(expected))


def test_a_head_with_features_reads_them(scorer):
    head = ScalarHead(128, features=2)
    head.features.data.copy_(torch.tensor([0.5, 2.0]))
    own = Scorer(scorer.model, head)
    samples = [Sample([1, 9, 10], [20, 21, EOS]), Sample([1, 8], [40, 41, 42, EOS])]
    found = own.step_scores(samples, [[0, 2], [1, 3]])
    alone = own.step_scores(samples, [[0, 2], [1, 3]], tokens=1)
    for one, other, row in zip(found, alone, scorer.model.completion_log_probs(samples, tokens=1000), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
        first, second = (row[0], row[1:]) if len(row) == 3 else (row[:2].min(), row[2:])
        expected = torch.stack([2.5 * first, 0.5 * second.min() + 2.0 * row.min()])
        torch.testing.assert_close(one, expected, atol=1e-5, rtol=1e-5)


def test_the_body_of_a_tied_model_has_its_embeddings(scorer):
    names = scorer.body()
    assert not any("lm_head" in name for name in names)
    assert any("embed_tokens" in name for name in names)
    network = scorer.model.network
    own = network.lm_head.weight
    network.lm_head.weight = network.model.embed_tokens.weight
    try:
        assert any("embed_tokens" in name for name in scorer.body())
    finally:
        network.lm_head.weight = own


@pytest.mark.parametrize(
    ("text", "ends", "ended"),
    [
        ("1+2=3\n3", [5, 7], True),
        ("1+2=3\n3", [5, 6], False),
        ("12", [2], True),
        ("1\n2\n", [1, 4], True),
        ("1\n2\n", [1, 3], False),
        ("\n\n", [0, 2], True),
        ("", [0], True),
    ],
)
def test_steps_end_at_separators_and_at_the_end(characters, text, ends, ended):
    ids = characters.encode(text, add_special_tokens=False) + [EOS] * ended
    assert step_ends(characters, ids, "\n") == ends


def test_steps_end_where_those_of_the_training_rows_do(characters):
    task = tasks.find("steps")
    for row in task.stepwise_rows("train", 5, seed=0):
        from_text = encode_pair(characters, row["prompt"], "\n".join(row["completions"]), eos_ids={EOS})[1]
        total, expected = 0, []
        for step in row["completions"]:
            total += len(step) + 1
            expected.append(total - 1)
        assert step_ends(characters, from_text, "\n") == expected


def test_a_longer_separator_ends_a_step_at_its_last_token(characters):
    ids = [*characters.encode("a. Step b", add_special_tokens=False), EOS]
    assert step_ends(characters, ids, ". Step ") == [7, 9]


def test_the_tokens_that_were_sampled_are_scored(scorer):
    reward = RewardModelFunction(scorer, process=False, separator="\n")
    prompt = encode_prompt(scorer.model.tokenizer, "ab")
    cut = scorer.model.tokenizer.encode("xyz", add_special_tokens=False)
    sampled = [cut, [*cut, EOS]]
    found = reward(["ab"] * 2, ["xyz"] * 2, sampled, prompt_ids=[prompt] * 2, truncated=[True, False], answer=["5"] * 2)
    expected = scorer.scores([Sample(prompt, ids) for ids in sampled]).tolist()
    assert found == pytest.approx(expected, abs=1e-5)
    assert found[0] != pytest.approx(found[1], abs=1e-3)
    texts_alone = reward(["ab"] * 2, ["xyz"] * 2, [[], []], truncated=[True, False])
    assert texts_alone == pytest.approx(expected, abs=1e-5)


def test_another_vocabulary_tokenizes_the_texts_again(scorer, words):
    own = scorer.model.tokenizer
    reward = RewardModelFunction(scorer, process=False, separator="\n", tokenizer=words)
    found = reward(["ab"], ["xyz"], [[300, 301, 302, 303]], prompt_ids=[[308, 309]])
    expected = scorer.scores([Sample(*encode_pair(own, "ab", "xyz", eos_ids={EOS}))])
    assert found == pytest.approx(expected.tolist(), abs=1e-5)


def test_tools_and_variables_of_the_template_are_in_prompts_that_are_tokenized_again(scorer, words, monkeypatch):
    own = scorer.model.tokenizer
    shown = "{{ tools | length if tools else 0 }}{{ mode }}{% for m in messages %}{{ m.content }}{% endfor %}"
    monkeypatch.setattr(own, "chat_template", shown)
    reward = RewardModelFunction(scorer, process=False, separator="\n", tokenizer=words)
    asked, answer = [{"role": "user", "content": "ab"}], [{"role": "assistant", "content": "xyz"}]
    columns = {"tools": [[{"name": "f"}]], "chat_template_kwargs": [{"mode": "q"}]}
    (found,) = reward([asked], [answer], [[300]], **columns)
    (expected,) = scorer.scores(
        [Sample(own.encode("1qab", add_special_tokens=False), [*own.encode("xyz", add_special_tokens=False), EOS])]
    )
    assert found == pytest.approx(float(expected), abs=1e-5)


def test_an_answer_with_a_character_without_a_token_has_no_reward(scorer, words):
    for process in (False, True):
        reward = RewardModelFunction(scorer, process=process, separator="\n", tokenizer=words)
        (expected,) = reward(["ab"], ["xyz"], [[300]])
        found = reward(["ab"] * 3, ["\ufffd", "xyz", "caf\ufffd"], [[300]] * 3)
        assert found == [None, pytest.approx(expected, rel=1e-5), None]
        assert reward(["ab"], ["\ufffd"], [[300]]) == [None]
        with pytest.raises(ValueError, match="no token for 'é'"):
            reward(["é"], ["xyz"], [[300]])  # of a prompt it is an error of the data


def test_a_process_model_rewards_an_answer_with_the_probability_that_all_is_right(scorer):
    reward = RewardModelFunction(scorer, process=True, separator="\n")
    (found,) = reward(["ab"], ["1\n2"], [[]])
    prompt, ids = encode_pair(scorer.model.tokenizer, "ab", "1\n2", eos_ids={EOS})
    (steps,) = scorer.step_scores([Sample(prompt, ids)], [[1, 3]])
    assert found == pytest.approx(float(steps.sigmoid().prod()), rel=1e-5)


def test_a_run_becomes_a_reward_function(runs):
    reward = load_scorer(str(runs / "outcome"))
    trained = api.load(runs / "outcome").experiment.members[0].learner.scorer
    rows = tasks.find("preference").pairs("held-out", 4, seed=0)
    found = reward([r["prompt"] for r in rows], [r["chosen"] for r in rows], [[]] * 4)
    tokenizer = trained.model.tokenizer
    samples = [Sample(*encode_pair(tokenizer, r["prompt"], r["chosen"], eos_ids={EOS})) for r in rows]
    assert found == pytest.approx(trained.scores(samples).tolist(), abs=1e-6)
    assert not any(p.requires_grad for p in reward.scorer.head.parameters())


def test_a_process_run_scores_steps(runs):
    step_rewards = load_step_rewards(str(runs / "process"))
    tokenizer = load_scorer(str(runs / "process")).scorer.model.tokenizer
    prompts, completions = [], []
    for text in ("12+7=19\n19-5=14\n14", "12"):
        prompt, ids = encode_pair(tokenizer, "12+7-5=", text, eos_ids={EOS})
        prompts.append(Prompt(prompt, {"prompt": "12+7-5="}))
        completions.append(Completion(ids, [0.0] * len(ids), False))
    rewards, ends, exists = step_rewards(prompts, completions)
    assert exists.tolist() == [[True, True, True], [True, False, False]]
    assert ends.tolist() == [[7, 15, 18], [2, 0, 0]]
    assert ((rewards[exists] > 0) & (rewards[exists] < 1)).all()


def test_a_new_reward_model_starts_from_the_head_of_another(runs):
    init = str(runs / "outcome")
    model = load_trained(ModelOptions(init=init), seed=0)
    head = starting_head(init, model, seed=0)
    assert head is not None
    torch.testing.assert_close(head.weight, load_scorer(init).scorer.head.weight)
    assert starting_head(str(runs / "sft"), model, seed=0) is None
    assert starting_head("", model, seed=0) is None


def test_unsuitable_runs_are_rejected(runs, words):
    with pytest.raises(ValueError, match=r"is a run of sft, which trains no reward model"):
        load_scorer(str(runs / "sft"))
    with pytest.raises(ValueError, match=r"is an outcome reward model, but --supervision process needs a process"):
        load_step_rewards(str(runs / "outcome"))
    with pytest.raises(ValueError, match=r"another vocabulary than the policy"):
        load_step_rewards(str(runs / "process"), tokenizer=words)


def test_grpo_is_rewarded_by_a_process_model(runs, tmp_path):
    values = {
        "supervision": "process",
        "reward_model": str(runs / "process"),
        "prompts_per_batch": 2,
        "num_generations": 2,
        "budget": 2,
    }
    result = api.train(
        "grpo", "steps", run=tmp_path / "run", held_out=2, max_completion_length=12, progress="silent", **values
    )
    assert result.outcome.consumed == 2


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds") / "run"
    api.train("reward-model", "preference", run=folder, seeds=2, learning_rate=1e-3, **SMALL)
    return str(folder)


@pytest.mark.parametrize("algorithm", ["grpo", "rlhf"])
def test_each_seed_is_rewarded_by_the_reward_model_of_its_own_seed(two_seeds, tmp_path, monkeypatch, algorithm):
    models = []
    monkeypatch.setattr(
        "operant.language.members.load_scorer",
        lambda run, **options: models.append(load_scorer(run, **options)) or models[-1],
    )
    values = {"prompts_per_batch": 2, "num_generations": 2, "budget": 2, "held_out": 2, "max_completion_length": 4}
    values |= {"reward_model": two_seeds, "micro_batch_tokens": 100, "num_minibatches": 1, "progress": "silent"}
    api.train(algorithm, "preference", run=tmp_path / "run", seeds=(1, 2), **values)
    for model, seed in zip(models, (1, 0), strict=True):  # the run lacks seed 2: its first one
        torch.testing.assert_close(model.scorer.head.weight, load_scorer(two_seeds, seed=seed).scorer.head.weight)
        assert model.tokens == 100
    assert not torch.equal(models[0].scorer.head.weight, models[1].scorer.head.weight)


def test_forward_passes_have_at_most_the_given_number_of_tokens(scorer, monkeypatch):
    sizes, read = [], Scorer.read
    monkeypatch.setattr(Scorer, "read", lambda self, batch, at: sizes.append(len(batch.ids)) or read(self, batch, at))
    for process in (False, True):
        found = [
            RewardModelFunction(scorer, process=process, separator="\n", **limit)(["ab", "ac"], ["x", "y"], [[], []])
            for limit in ({}, {"tokens": 1})
        ]
        assert found[0] == pytest.approx(found[1], abs=1e-5)
    one = sizes[1]
    assert sizes == [2 * one, one, one] * 2


def test_the_best_weights_of_a_run_become_a_reward_function_with_centered_scores(two_seeds):
    trained = api.load(two_seeds)
    learner = trained.experiment.members[0].learner
    samples, learner.consumed = [sample for e in learner.examples for sample in e.samples], 4
    learner.scorer.head.bias.data += 3.0  # as in the middle of a run
    Best(trained.run, index=0).offer(ModelWeights(learner), Evaluation.of([[2.0]]))
    assert float(learner.scorer.scores(samples).mean()) == pytest.approx(3.0, abs=1e-5)
    for folder in (two_seeds, f"{two_seeds}/best"):
        scores = load_scorer(folder).scorer.scores(samples)
        assert float(scores.mean()) == pytest.approx(0, abs=1e-5)
        assert float(scores.std()) > 1e-4
