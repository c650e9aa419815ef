import math

import pytest
import torch

from operant.language.engines import Completion, NativeEngine, Sampling
from operant.language.examples import Prompt
from operant.language.packing import Sample
from operant.language.process_rewards import table
from operant.language.rewards import combine
from operant.language.rollouts import (
    Answers,
    Rollout,
    Sampler,
    ask,
    compute_rewards,
    length_metrics,
    reward_metrics,
    shuffled,
)
from operant.language.tokenizer import encode_prompt
from operant.runtime.encoding import digest
from operant.runtime.shards import Alone, Shards
from operant.state import clone
from runtime.teams import team


def lengths_of(prompts, completions, **columns):
    return [float(len(text)) for text in completions]


def digits(prompts, completions, answer, **columns):
    return [None if a is None else float(a in text) for a, text in zip(answer, completions, strict=True)]


def asked(characters, texts):
    return [Prompt(encode_prompt(characters, text), {"prompt": text, "answer": text[:1]}) for text in texts]


@pytest.fixture
def make_sampler(make_model, characters):
    def make(*, seed=0, rewards=(lengths_of,), count=5):
        engine = NativeEngine(make_model())
        prompts = asked(characters, [f"{i}+1=" for i in range(count)])
        return Sampler(engine, prompts, combine(list(rewards)), characters, Sampling(max_tokens=6), seed=seed)

    return make


# Prompts in order


@pytest.mark.parametrize("steps", [[5] * 4, [3, 3, 7, 1, 6], [20], [1] * 20])
def test_every_epoch_visits_each_thing_once_however_it_is_divided(steps):
    walk = [i for n, count in enumerate(steps) for i in shuffled(5, sum(steps[:n]), count, seed=3)]
    assert walk == shuffled(5, 0, 20, seed=3)
    epochs = [walk[i : i + 5] for i in range(0, 20, 5)]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_the_walk_belongs_to_its_seed():
    assert shuffled(50, 0, 50, seed=0) != shuffled(50, 0, 50, seed=1)
    assert shuffled(50, 7, 0, seed=0) == []


# Requests


def test_answers_to_a_prompt_lie_side_by_side(make_sampler, characters):
    rollout = make_sampler().draw(3, 4)
    assert len(rollout) == 3
    assert rollout.group == 4
    answers = rollout.answers
    assert [p.row["prompt"] for p in answers.prompts] == [
        answers.prompts[4 * i].row["prompt"] for i in range(3) for _ in range(4)
    ]
    assert len({p.row["prompt"] for p in answers.prompts}) == 3
    assert rollout.rewards().shape == rollout.valid().shape == (3, 4)
    assert rollout.rewards().flatten().tolist() == [float(len(text)) for text in answers.texts]
    for prompt, completion, text, sample in zip(
        answers.prompts, answers.completions, answers.texts, answers.samples(), strict=True
    ):
        assert text == characters.decode(completion.ids, skip_special_tokens=True)
        assert sample == Sample(prompt.prompt, completion.ids)


def test_prompts_follow_the_walk(make_sampler):
    sampler = make_sampler()
    seen = [p.row["prompt"] for n in (2, 4, 1) for p in sampler.draw(n, 2).answers.prompts[::2]]
    assert seen == [f"{i}+1=" for i in shuffled(5, 0, 7, seed=0)]
    assert sampler.asked == 7


def test_answers_have_the_version_of_the_weights(make_sampler):
    sampler = make_sampler()
    for version in (0, 1, 7):  # a resumed run continues the count
        if version:
            sampler.update(sampler.engine.model, version)
        assert {c.version for c in sampler.draw(2, 2).answers.completions} == {sampler.version} == {version}


@pytest.mark.parametrize("version", [2, 4])
def test_answers_of_other_weights_are_rejected_before_they_are_judged(make_sampler, version):
    sampler = make_sampler()
    sampler.update(sampler.engine.model, 3)
    sampler.engine.version, sampler.rewards = version, None
    said = f"weights of version {version} sampled a completion, expected at most max_staleness=0 updates .* version 3"
    with pytest.raises(ValueError, match=said):
        sampler.draw(2, 2)


def test_a_sampler_resumes_exactly(make_sampler):
    one, two = make_sampler(), make_sampler()
    one.draw(3, 2)
    two.load_state_dict(one.state_dict())
    for _ in range(2):
        mine, yours = one.draw(4, 2).answers, two.draw(4, 2).answers
        assert mine.texts == yours.texts
        assert [c.log_probs for c in mine.completions] == [c.log_probs for c in yours.completions]


def test_seeds_differ(make_sampler):
    assert make_sampler(seed=0).draw(5, 2).answers.texts != make_sampler(seed=1).draw(5, 2).answers.texts


def test_without_prompts_there_is_nothing_to_train_on(make_model, characters):
    with pytest.raises(ValueError, match="there are no training prompts"):
        Sampler(NativeEngine(make_model()), [], combine([lengths_of]), characters, Sampling(max_tokens=2), seed=0)


# Rollouts


def test_a_part_and_the_whole(make_sampler):
    sampler = make_sampler(rewards=(lengths_of, digits))
    one, two = sampler.draw(3, 2), sampler.draw(2, 2)
    whole = Rollout.join([one, two])
    assert len(whole) == 5
    assert torch.equal(whole.rewards(), torch.cat([one.rewards(), two.rewards()]))
    part = whole.take([4, 0])
    assert part.answers.texts == two.answers.texts[2:] + one.answers.texts[:2]
    assert torch.equal(part.rewards(), whole.rewards()[[4, 0]])
    assert torch.equal(part.judged.table, whole.judged.table[[8, 9, 0, 1]])
    assert part.judged.names == ("lengths_of", "digits")
    none = whole.take([])
    assert len(none) == 0
    assert len(Rollout.join([none, two])) == 2


def test_steps_go_with_their_answers(make_sampler):
    def lines(prompts, completions):
        width = 1 + max(len(c.ids) for c in completions)
        exists = torch.arange(width) < torch.tensor([[len(c.ids)] for c in completions])
        numbers = torch.arange(len(prompts) * width).view(-1, width).float()
        return numbers * exists, torch.arange(width).expand(len(prompts), -1) * exists, exists

    sampler = make_sampler()
    one, two = sampler.draw(3, 2, steps=lines), sampler.draw(2, 2, steps=lines)
    whole = Rollout.join([one, two])
    for rollout in (whole, whole.take([4, 0, 2]), whole.take([1])):
        lengths = [len(c.ids) for c in rollout.answers.completions]
        rewards, ends, exists = rollout.step_rewards()
        assert rewards.shape == ends.shape == exists.shape == (len(rollout), 2, max(lengths))
        assert exists.sum(-1).flatten().tolist() == lengths
        assert (ends.amax(-1).flatten() + 1).tolist() == lengths
    first = whole.take([1]).step_rewards()[0]
    assert torch.equal(first[0], one.step_rewards()[0][1, :, : first.shape[-1]])
    assert len(Rollout.join([whole.take([]), two]).step_rewards()[0]) == 2
    with pytest.raises(ValueError, match="the steps of these answers have no rewards"):
        sampler.draw(1, 2).step_rewards()


# Scoring


USER = {"role": "user", "content": "hi"}
SIDES = {side: [USER, {"role": "assistant", "content": text}] for side, text in (("chosen", "yes"), ("rejected", "no"))}


@pytest.mark.parametrize("row", [{"prompt": [USER]}, SIDES, {"prompt": "hi", **SIDES}])
def test_answers_to_conversations_are_messages(row):
    seen = {}

    def watch(prompts, completions, completion_ids):
        seen.update(prompts=prompts, completions=completions, completion_ids=completion_ids)
        return [1.0]

    answers = Answers([Prompt([1, 3], row)], [Completion([7, 2], [-1.0, -1.0], False)], ["x"])
    compute_rewards(combine([watch]), answers)
    assert seen == {
        "prompts": [[USER]],
        "completions": [[{"role": "assistant", "content": "x"}]],
        "completion_ids": [[7, 2]],
    }


def test_functions_know_how_far_training_is(make_sampler, make_model):
    steps = []

    def reward(completions, trainer_state, log_metric):
        steps.append(vars(trainer_state))
        log_metric("seen", len(steps))
        return [0.0] * len(completions)

    sampler = make_sampler()
    sampler.rewards, sampler.budget, sampler.prompts_per_batch = combine([reward]), 7, 2
    parts = []
    for version, draws in ((1, [2]), (2, [1, 1]), (3, [2])):  # a batch may be refilled
        parts += [sampler.draw(count, 2) for count in draws]
        sampler.update(make_model(), version)
    assert [state["global_step"] for state in steps] == [0, 1, 1, 2]
    assert {state["max_steps"] for state in steps} == {4}
    assert reward_metrics(parts[1])["seen"] == 2
    assert reward_metrics(Rollout.join(parts[:2]))["seen"] == pytest.approx(4 / 3)  # of four answers 1, of two 2
    whole = Rollout.join(parts)
    assert reward_metrics(whole)["seen"] == 2.5
    assert "seen" not in reward_metrics(Rollout.join([whole.take([0]), whole.take([])])), "the others were counted, too"


def test_functions_that_log_do_not_replace_the_metrics_of_training():
    def logging(completions, log_metric):
        log_metric("reward", 99.0)
        log_metric("seen", 3.0)
        return [1.0 for _ in completions]

    answers = Answers([Prompt([1, 3], {"prompt": "a"})], [Completion([7, 2], [-1.0, -1.0], False)], ["x"])
    found = reward_metrics(Rollout(answers, compute_rewards(combine([logging]), answers), 1))
    assert (found["reward"], found["seen"]) == (1.0, 3.0)


def test_reward_functions_are_given_what_the_rows_have():
    seen = {}

    def watch(prompts, completions, completion_ids, **columns):
        seen.update(columns, prompts=prompts, completions=completions, completion_ids=completion_ids)
        return [1.0, 2.0]

    rows = [{"prompt": "a", "answer": 5, "completion": "demonstrated"}, {"prompt": "b", "level": "hard"}]
    prompts = [Prompt([1, 3], rows[0]), Prompt([1, 4], rows[1])]
    completions = [Completion([7, 2], [-1.0, -1.0], False), Completion([8], [-1.0], True)]
    found = compute_rewards(combine([watch]), Answers(prompts, completions, ["x", "y"]))
    assert found.total.tolist() == [1.0, 2.0]
    for name in ("trainer_state", "log_metric", "log_extra"):
        del seen[name]
    assert seen == {
        "prompts": ["a", "b"],
        "completions": ["x", "y"],
        "completion_ids": [[7, 2], [8]],
        "prompt_ids": [[1, 3], [1, 4]],
        "truncated": [False, True],
        "answer": [5, None],
        "level": [None, "hard"],
    }, "the demonstrated completion is not passed on"


# Metrics


def test_lengths_by_hand():
    completions = [Completion([5] * n, [0.0] * n, cut) for n, cut in [(2, False), (6, True), (4, False)]]
    assert length_metrics(completions) == {
        "completions/mean_length": 4.0,
        "completions/min_length": 2.0,
        "completions/max_length": 6.0,
        "completions/mean_terminated_length": 3.0,
        "completions/clipped_ratio": pytest.approx(1 / 3),
    }
    cut = length_metrics(completions[1:2])
    assert math.isnan(cut["completions/mean_terminated_length"])
    assert cut["completions/clipped_ratio"] == 1


def rollout_of(table, weights, group):
    judged = combine([lambda completions, i=i, **_: table[i] for i in range(len(table))], weights)
    count = len(table[0])
    texts = ["x"] * count
    answers = Answers([Prompt([1], {"prompt": ""})] * count, [Completion([2], [0.0], False)] * count, texts)
    return Rollout(answers, compute_rewards(judged, answers), group)


def test_rewards_by_hand():
    found = reward_metrics(rollout_of([[1.0, 3.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]], [1.0, 2.0], 2))
    assert found["reward"] == pytest.approx((3 + 3 + 0 + 2) / 4)
    assert found["reward_std"] == pytest.approx((0 + math.sqrt(2)) / 2)
    names = [name for name in found if name.startswith("rewards/")]
    assert [found[name] for name in names] == [1.0, 0.5]


def test_answers_without_a_reward_are_left_out_of_the_means():
    with pytest.warns(RuntimeWarning, match="no reward function applies"):
        found = reward_metrics(rollout_of([[1.0, None, 2.0, 3.0]], [1.0], 2))
    assert found["reward"] == pytest.approx(2)
    assert found["reward_std"] == pytest.approx(math.sqrt(0.5))
    assert "reward_std" not in reward_metrics(rollout_of([[1.0, 2.0]], [1.0], 1))


def test_answers_lie_side_by_side_and_are_those_of_the_engine(make_model, characters):
    engine, sampling = NativeEngine(make_model()), Sampling(max_tokens=6)
    prompts, chance = asked(characters, ["0+0=", "1+1="]), [torch.Generator().manual_seed(5) for _ in range(2)]
    answers = ask(engine, prompts, 3, sampling, tokenizer=characters, generator=chance[0])
    direct = engine.generate([p.prompt for p in prompts], 3, sampling, generator=chance[1])
    assert answers.completions == [c for found in direct for c in found]
    assert answers.prompts == [prompts[0]] * 3 + [prompts[1]] * 3
    assert answers.texts == [characters.decode(c.ids, skip_special_tokens=True) for c in answers.completions]


def steps_of(prompts, completions):
    return table([[(float(len(c.ids)), len(c.ids) - 1)] * (1 + i % 2) for i, c in enumerate(completions)])


@pytest.mark.parametrize("count", [5, 3])
def test_shards_are_sampled_and_rewarded_alike_by_any_number_of_processes(make_sampler, count):
    def drawn(group):
        sampler = samplers.pop()
        sampler.shards = Shards(4, group)
        found = [sampler.draw(count, 2, steps=steps_of) for _ in range(2)]
        return digest({"drawn": [r.state_dict() for r in found], "sampler": sampler.state_dict()}), found

    samplers = [make_sampler(count=count) for _ in range(8)]
    (alone, found), plain = drawn(Alone()), make_sampler(count=count)
    assert {d for size in (1, 2, 4) for d, _ in team(size, drawn)} == {alone}
    for rollout in found:
        other = plain.draw(count, 2, steps=steps_of)
        assert rollout.answers.prompts == other.answers.prompts
        assert rollout.rewards().shape == (count, 2)
        assert [c.ids for c in rollout.answers.completions] != [c.ids for c in other.answers.completions]
    assert found[0].answers.completions != found[1].answers.completions


def test_a_rollout_comes_back_from_its_state(make_sampler):
    sampler = make_sampler(rewards=(lengths_of, digits))
    sampler.update(sampler.engine.model, 2)
    rollout = sampler.draw(3, 2, steps=steps_of)
    again = Rollout.of(clone(rollout.state_dict()), rollout.answers.prompts)
    assert again.answers == rollout.answers
    assert digest(again.state_dict()) == digest(rollout.state_dict())
